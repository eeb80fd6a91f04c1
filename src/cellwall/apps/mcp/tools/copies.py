"""Tools of copies: forks of a client's sandboxes, and snapshots that sandboxes are made of.

Called by `protocol` through `tools`, with checked arguments. The invariant: what a copy has not is
named in the text that the model reads, and a fork that failed is named with its reason.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cellwall.apps.mcp.tools import answers
from cellwall.model.for_model import error_for_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_types import CallToolResult

    from cellwall.apps.mcp.session import Session
    from cellwall.apps.mcp.tools import arguments
    from cellwall.apps.mcp.tools.progress import Report
    from cellwall.model.snapshot import Snapshot

_MOST_NAMED = 20
"""Most snapshots, and most things left behind, that one answer names."""


async def fork_sandbox(
    session: Session, asked: arguments.ForkSandbox, _report: Report | None
) -> CallToolResult:
    """Copy a sandbox while it lives."""
    forks = await session.fork(
        asked.sandbox_id, asked.count, reseed=asked.reseed, threads=asked.threads
    )
    made = [each.made.id for each in forks if each.made is not None]
    errors = [each.error for each in forks if each.error is not None]
    if not made:
        raise errors[0]
    left = forks[0].left_behind
    said = [f"{len(made)} of {len(forks)} copies are ready: {', '.join(made)}."]
    said += [f"The others failed. {error_for_model(errors[0])}"] if errors else []
    text = " ".join([*said, *_left(left)])
    facts = {"sandbox_ids": made, "failed": len(errors), "left_behind": list(left)}
    return answers.answer(text, {"text": text, **facts, "carries": forks[0].carries})


async def snapshot_sandbox(
    session: Session, asked: arguments.SnapshotSandbox, _report: Report | None
) -> CallToolResult:
    """Keep a sandbox as it is now."""
    sandbox = session.sandbox(asked.sandbox_id)
    made: Snapshot = await sandbox.snapshot(
        asked.name, expires_s=asked.expires_s, threads=asked.threads
    )
    said = f"Snapshot {made.name} is kept. Give its name to restore_snapshot."
    text = " ".join([said, *_left(made.left_behind)])
    return answers.answer(text, {"text": text, **_facts(made)})


async def restore_snapshot(
    session: Session, asked: arguments.RestoreSnapshot, _report: Report | None
) -> CallToolResult:
    """Make a sandbox of a snapshot."""
    sandbox = await session.restore(asked.snapshot, reseed=asked.reseed)
    said = f"Sandbox {sandbox.id} is ready: it goes on from snapshot {asked.snapshot}."
    facts = {"text": said, "sandbox_id": sandbox.id, "ends_at": sandbox.ends_at}
    about = {
        "isolation": sandbox.isolation.as_json(),
        "limits": answers.limits(sandbox.limits),
    }
    return answers.answer(said, facts, meta=about)


async def list_snapshots(
    session: Session, _asked: arguments.ListSnapshots, _report: Report | None
) -> CallToolResult:
    """List the snapshots."""
    kept = await session.library.snapshots()
    named = kept[-_MOST_NAMED:]
    more = len(kept) - len(named)
    lines = [_line(each) for each in named] + ([f"and {more} older ones"] if more else [])
    text = "\n".join(lines) or "There are no snapshots."
    facts = {"snapshots": [_facts(each) for each in named], "older": more}
    return answers.answer(text, {"text": text, **facts})


async def delete_snapshot(
    session: Session, asked: arguments.DeleteSnapshot, _report: Report | None
) -> CallToolResult:
    """Delete a snapshot."""
    await session.library.delete_snapshot(asked.snapshot)
    said = f"Snapshot {asked.snapshot} is deleted."
    return answers.answer(said, {"snapshot": asked.snapshot, "message": "deleted"})


def _facts(snapshot: Snapshot) -> dict[str, Any]:
    return {**asdict(snapshot), "left_behind": list(snapshot.left_behind)}


def _line(snapshot: Snapshot) -> str:
    size_mb = (snapshot.memory_bytes + snapshot.files_bytes) / 2**20
    left_s = max(0, round(snapshot.expires_at - time.time()))
    return (
        f"{snapshot.name}: template {snapshot.template}, {size_mb:.1f} MiB, kept {left_s} s longer"
    )


def _left(left: Sequence[str]) -> list[str]:
    """Return the sentence that names what a copy has not, if there is something."""
    if not left:
        return []
    more = ", ..." if len(left) > _MOST_NAMED else ""
    return [f"Not copied: {', '.join(left[:_MOST_NAMED])}{more}."]

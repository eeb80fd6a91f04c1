"""Making the copies of an engine: what they need of it, and where their snapshots are kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cellwall.engine.state.copies import Copies, Host
from cellwall.engine.state.durable import DurableSnapshots
from cellwall.engine.state.revival import Reviver
from cellwall.engine.state.snapshot_files import SnapshotFiles

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.engine import Engine
    from cellwall.engine.policy.selection import Runtimes
    from cellwall.engine.policy.settings import EngineSettings
    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.engine.state.copies import Heritage
    from cellwall.engine.state.part_seal import PartSeal
    from cellwall.runtimes.base import Runtime, SandboxSpec


def copies_of(
    engine: Engine,
    runtimes: Runtimes,
    claim: Callable[[Runtime, SandboxSpec], Awaitable[ClaimedSandbox]],
    adopt: Callable[[ClaimedSandbox, Runtime, Heritage], Awaitable[AsyncSandbox]],
    discard: Callable[[ClaimedSandbox, Runtime], None],
    *,
    keeps_hibernated: bool = False,
) -> Copies:
    """Return the copies of an engine. Raises UsageError if its place for snapshots is none."""
    settings = engine.settings
    durable = None
    if settings.snapshots_dir:
        files = SnapshotFiles(Path(settings.snapshots_dir), _seal(settings))
        durable = DurableSnapshots(files, engine.copies_room, engine.state_dir)
    return Copies(
        Host(
            folder=engine.state_dir,
            room=engine.copies_room,
            runtime_of=lambda sandbox: runtimes.get(sandbox.isolation.runtime),
            claim=claim,
            adopt=adopt,
            discard=discard,
            durable=durable,
            node=settings.node,
            keeps_hibernated=keeps_hibernated,
            revive=Reviver(engine, runtimes).revive,
        )
    )


def _seal(settings: EngineSettings) -> PartSeal | None:
    if not settings.snapshots_key_file:
        return None
    from cellwall.engine.state.part_seal import PartSeal  # brings a library that most do not need
    from cellwall.store.key_file import read

    return PartSeal(read(Path(settings.snapshots_key_file), "snapshots"))

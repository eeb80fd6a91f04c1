"""One program in a fresh sandbox: what is asked of the guest, and whether it has begun.

Called by `engine`, which claims the sandbox and destroys it. The invariant: `NotBegun` says that
nothing of the caller's has run, so that it may be tried in another sandbox; once code was handed
over to a guest that did not refuse it, its end is an outcome, whatever it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellwall.engine.execution import Attempt, Work
from cellwall.engine.files import file_error
from cellwall.model.errors import HostUnsupported, SandboxBroken
from cellwall.runtimes.channel import ChannelLost, GuestRefused

if TYPE_CHECKING:
    from cellwall.engine.execution import OnEvent
    from cellwall.engine.live import Live
    from cellwall.engine.requests import Plan


class NotBegun(SandboxBroken):
    """The sandbox ended between its claim and the program."""

    def __init__(self, why: str) -> None:
        """`why` is what is known of its end."""
        super().__init__(
            f"run: the sandbox ended before the program began ({why})", remedy="try again"
        )


async def begin(live: Live, work: Plan, on_event: OnEvent | None) -> Attempt:
    """Write its files and hand the program over. Raises `NotBegun`, `GuestRefused`."""
    try:
        await _write_files(live, work)
        return Attempt(live, _one_shot(work), on_event)
    except ChannelLost as error:
        raise NotBegun(error.message) from error


def _one_shot(work: Plan) -> Work:
    stdin = "none" if work.stdin is None else "stream"
    if work.is_warm:
        fields: dict[str, Any] = {
            "context": "main",
            "mode": "program",
            "filename": work.language.file_name,
            "arguments": work.arguments,
            "argv": work.args,
            "stdin": stdin,
            "output_bytes": work.limits.output_bytes,
            "display": True,
        }
        if work.tools is not None:
            fields["tools"] = work.tools.manifest
        return Work("execute", fields, work.limits, work.source, work.stdin, tools=work.tools)
    fields = {
        "argv": work.language.command(work.language.file_name, work.args),
        "env": dict(work.language.env),
        "stdin": stdin,
        "pty": None,
        "output_bytes": work.limits.output_bytes,
    }
    return Work("start", fields, work.limits, b"", work.stdin)


async def _write_files(live: Live, work: Plan) -> None:
    files = work.files
    if not work.is_warm:
        files = (*files, (work.language.file_name, work.source))
    for path, data in files:
        await live.channel.request(
            "file_write", data, path=path, append=False, parents=True, mode=None
        )


def explain(refusal: GuestRefused, work: Plan) -> Exception:
    """Return what a refusal of the guest means to the caller; `NotBegun` if nothing has run."""
    if refusal.reason == "no_context" and work.is_warm:
        return NotBegun("the process that was to run it has ended")
    if refusal.reason == "not_found" and not work.is_warm:
        return HostUnsupported(
            work.language.name,
            f"run {work.language.name}: {refusal}",
            remedy=f"install it: {work.language.install}",
        )
    return file_error(refusal, "run")

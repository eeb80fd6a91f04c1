"""What the caller of a start is told if it fails after the clone."""

from __future__ import annotations

from cellwall.model.errors import CellwallError, HostUnsupported, SandboxBroken
from cellwall.model.shortage import shortage
from cellwall.runtimes.channel.replies import ChannelLost


def explained(error: Exception, step: str) -> CellwallError:
    """Translate the error of a start that failed after the clone into one for the caller."""
    short = shortage(getattr(error, "errno", None), step, error)
    if short is not None:
        return short
    if isinstance(error, HostUnsupported):
        return error
    remedy = None
    if isinstance(error, ChannelLost):
        remedy = "try again; is this host or our cgroup short of memory or processes?"
    return SandboxBroken(f"{step}: {error}", remedy=remedy)

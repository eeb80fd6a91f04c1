"""Commands: what kits with a shell say of a sandbox that has ended, and of a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellwall import CommandResult

ENDED = "the sandbox of the earlier commands has ended, and its files are gone; call again"
NOTHING_RAN = 125
"""Exit status of a command that was not run, as env(1) and timeout(1) have it."""


def reason(done: CommandResult) -> str:
    """Return a line that says which limit ended a command; empty if it ended by itself."""
    return "" if done.outcome.is_its_own else f"[{'; '.join(done.outcome.notes)}]\n"

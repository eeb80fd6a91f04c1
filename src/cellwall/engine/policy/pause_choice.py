"""What the owner of a sandbox chose about its pauses, within the operator's bounds.

Checked before a sandbox is claimed; `engine.parts.pausing` acts by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from cellwall.engine.policy.settings import EngineSettings

Resume = Literal["auto", "manual"]
_IDLE_MOST_S = 604_800.0


@dataclass(frozen=True, slots=True)
class PauseChoice:
    """What its owner chose about pauses, and the operator's bound."""

    auto_pause_s: float | None = None
    """Seconds without activity after which it pauses; None: never, it ends after `idle_s`."""
    resume: Resume = "auto"
    """`auto`: a request resumes it. `manual`: only `resume` does, and a request is refused."""
    paused_s: float = 86_400.0
    """Most seconds that it is paused, altogether; then it ends."""
    page_out_s: float | None = None
    """Seconds of a pause after which its memory is written to swap."""
    hibernate_s: float | None = None
    """Seconds of a pause after which it is hibernated, as far as nothing would be lost."""


def check_choice(
    auto_pause_s: float | None,
    resume: str,
    settings: EngineSettings,
    hibernate_s: float | None = None,
) -> PauseChoice:
    """Return a caller's choice; without `hibernate_s`, the operator's. Raises UsageError."""
    if resume not in get_args(Resume):
        raise UsageError(f"resume: {resume!r} is not known", remedy="say 'auto' or 'manual'")
    check_seconds("auto_pause_s", auto_pause_s)
    check_seconds("hibernate_s", hibernate_s)
    kind: Resume = "manual" if resume == "manual" else "auto"
    if hibernate_s is None:
        hibernate_s = settings.hibernate_s
    return PauseChoice(auto_pause_s, kind, settings.paused_s, settings.page_out_s, hibernate_s)


def check_seconds(name: str, seconds: float | None) -> None:
    """Raise UsageError unless a caller may choose that number, or None."""
    if seconds is None:
        return
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not 1 <= seconds <= _IDLE_MOST_S:
        raise UsageError(
            f"{name}: {seconds!r} is out of bounds",
            remedy=f"give a number from 1 to {_IDLE_MOST_S:g}",
        )

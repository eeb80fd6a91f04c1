"""How far one program is: the states that every way to start a program goes through.

Used by `guest/init/first_program.py` (also under `guest/warm/fast_start.py`), by
`guest/init/contexts.py` for everything else, and by the engine for a sandbox of one program
(`runtimes/jail/single_program`). design/0030 has the table of who moves it when. It holds no
process and no evidence. The invariant: a program only moves on, and before RUNNING nothing of it
has run, so an end before that is a refusal or a lost sandbox, and never a result.
"""

from __future__ import annotations

STARTING, IDLE, HANDED_OVER, RUNNING, ENDED, REPORTED = range(6)
"""Its context has been forked; the context waits for work; it has the request but no leave to begin
(`held`); it has both; the kernel has shown that the context's end is certain; `done` was sent."""
_NAMES = ("starting", "idle", "handed over", "running", "ended", "reported")


class Progress:
    """The state of one program."""

    __slots__ = ("state",)

    def __init__(self, state: int = STARTING) -> None:
        """Begin with `state`: a context that other work has used is IDLE already."""
        self.state = state

    def advance(self, state: int) -> None:
        """Move on to a later state. A step back is a mistake of ours: RuntimeError."""
        if state <= self.state:
            raise RuntimeError(
                f"program: it is {_NAMES[self.state]} and cannot become {_NAMES[state]}"
            )
        self.state = state

    @property
    def is_ready(self) -> bool:
        """Whether the context has been idle, so that it can take work."""
        return self.state >= IDLE

    @property
    def has_begun(self) -> bool:
        """Whether something of the program may have run."""
        return self.state >= RUNNING

    @property
    def is_reported(self) -> bool:
        """Whether the engine has been told how it ended."""
        return self.state == REPORTED

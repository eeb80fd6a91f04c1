"""A stream of a single program, read on the host: output above its bound costs next to nothing.

Runs in the engine process; used by `channel`. It is init's own pump (`guest.channel.pipes`) with
one difference: init pays for a flood from the sandbox's share of the processor, but here the event
loop would pay, which all users share. So output that no caller will see is spliced to /dev/null
without a copy, one pipe's content at a time.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from cellwall.guest.channel.pipes import WIDE_PIPE_BYTES, Pump

if TYPE_CHECKING:
    from cellwall.runtimes.jail.single_program.lazy_loop import LateLoop

_NONBLOCK = 2
"""SPLICE_F_NONBLOCK of splice(2); `os` has no name for it."""


class Output(Pump):
    """One output pipe of a single program."""

    def __init__(self, loop: LateLoop, sink: Any, fd: int, event: str) -> None:  # noqa: ANN401
        """Own `fd`. `sink` has only the methods of a guest's channel that are used."""
        late: Any = loop  # likewise only the used methods of init's loop
        super().__init__(late, sink, fd, event)
        self._late = loop
        self._nowhere = -1

    def close(self) -> None:
        """Close the descriptors."""
        super().close()
        nowhere, self._nowhere = self._nowhere, -1
        if nowhere >= 0:
            os.close(nowhere)

    def _on_ready(self, _events: int) -> None:
        self.drain()

    def _read(self) -> bool:
        meter = self._meter
        if self._fd < 0 or meter is None or meter.passed < meter.limit:
            return super()._read()
        try:
            if self._nowhere < 0:
                self._nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            moved = os.splice(self._fd, self._nowhere, WIDE_PIPE_BYTES, flags=_NONBLOCK)
        except BlockingIOError:
            return False
        except OSError:
            return super()._read()  # no descriptor is left
        if not moved:
            self.close()
            return False
        meter.cut += moved
        self._tell_soon(meter)
        self._widen()
        self._late.slow_down()
        return False  # the rest is for the next time

"""The sandbox that stands still for good, with whose page frames others' are compared."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

from cellwall.jail.inspect import page_frames, posture

if TYPE_CHECKING:
    from cellwall.runtimes.channel.copy_requests import Answer, Look
    from cellwall.runtimes.jail.sandbox import JailSandbox

_MOST_DIGITS = 10
_MOST_CHILDREN = 32


class _Waiting(NamedTuple):
    """A process that stands still until it is told which of its pages are the base's."""

    first: page_frames.Reading
    """What was read of the standing one before."""
    process: page_frames.Process
    answer: Answer


class Standing:
    """A sandbox that was made ready and is never used, to compare page frames with its."""

    def __init__(self, sandbox: JailSandbox, frames: page_frames.Standing) -> None:
        """Own both."""
        self.sandbox = sandbox
        self._frames = frames
        self._waiting: list[_Waiting] = []

    async def aclose(self) -> None:
        """End it."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.process.close()
            each.answer("equal", b"")
        self._frames.close()
        if self.sandbox.entry is not None:
            self.sandbox.entry.standing -= 1
        await self.sandbox.aclose()

    def looker(self, other: JailSandbox) -> Look:
        """Return what is called when the context of another sandbox stands still.

        It reads this one now, and the other one then.
        """
        try:
            first = self._frames.read()
        except OSError:
            return lambda _pid, answer: answer("equal", b"")  # it has ended

        def look(pid: bytes, answer: Answer) -> None:
            process = None if len(pid) > _MOST_DIGITS else process_of(other.pid, pid)
            if process is None:
                answer("equal", b"")
                return
            if not self._waiting:
                asyncio.get_running_loop().call_soon(self._look)
            self._waiting.append(_Waiting(first, process, answer))

        return look

    def _look(self) -> None:
        """Compare those that have come to stand in one turn of the loop.

        Together: this one is read once more after all of them.
        """
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            found = self._frames.equal(waiting[-1].first, [each.process for each in waiting])
        except OSError:
            found = [b""] * len(waiting)
        for each, flags in zip(waiting, found, strict=True):
            each.process.close()
            each.answer("equal", flags)


def process_of(init: int, pid: bytes) -> page_frames.Process | None:
    """Return the child of an init that has a pid in the sandbox; None if there is none.

    The guest says the pid. The kernel says which processes are init's children, and what each one's
    pid is inside; whose process it is does not change while it is open here.
    """
    for each in posture.children(init)[:_MOST_CHILDREN]:
        with contextlib.suppress(OSError, ValueError):
            process = page_frames.Process(each)
            try:
                if b"%d" % process.inner_pid() == pid:
                    return process
            except (OSError, ValueError):
                pass
            process.close()
    return None


def ranges_of(maps: bytes) -> list[page_frames.Range]:
    """Return the memory that a base has pages of, as `transplant.memory_map.Base` has it.

    A fresh sandbox wrote it, which had run nothing of a caller's.
    """
    text, _, flags = maps.partition(b"\0")
    found, position = [], 0
    for line in text.splitlines():
        if b" rw-p " in line:
            place, _, end = line.split(None, 1)[0].partition(b"-")
            start, count = int(place, 16), (int(end, 16) - int(place, 16)) // page_frames.PAGE
            own = flags[position : position + count]
            position += count
            first, last = own.find(1), own.rfind(1) + 1
            if last:
                ends = (start + each * page_frames.PAGE for each in (first, last))
                found.append(page_frames.Range(*ends))
    return found

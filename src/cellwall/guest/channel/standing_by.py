"""Init's part in a copy of the whole sandbox, which the kernel under it makes (design/0043).

Used by `init/main.py` when the host announces one. Every other process stands still then, and the
channel is quiet and between two frames, on both sides. Then the kernel is written down. The first
frame after that says whether this is the sandbox that was written down, or a copy of it, which has
a new socket in the old one's place and answers nothing of what its source was asked.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from cellwall.guest.channel.errors import Refusal
from cellwall.guest.channel.streams import MOST_GRANTED_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellwall.guest.channel.channel import Channel
    from cellwall.guest.channel.frames import Header
    from cellwall.guest.channel.loop import Loop
    from cellwall.guest.channel.requests import Request
    from cellwall.guest.init.commands import Commands
    from cellwall.guest.init.contexts import Contexts
    from cellwall.guest.init.ports import Ports

_LOOK_S = 0.01
_MOST_LEFT = 100
_REMOVED = " (deleted)"
_NEVER_NAMED = ("/memfd:", "/dev/zero")


class StandingBy:
    """Whether init stands by, and for which epoch."""

    def __init__(self, loop: Loop, channel: Channel, signal_all: Callable[[bool], bool]) -> None:
        """`signal_all` stops every other process, or lets it go on."""
        self._loop = loop
        self._channel = channel
        self._signal_all = signal_all
        self._epoch = ""

    def begin(
        self, request: Request, contexts: Contexts, commands: Commands, ports: Ports | None
    ) -> None:
        """Have every other process stand still, say what a copy will not have, and be quiet."""
        if self._epoch:
            raise Refusal("busy", "stand_by: a copy is under way")
        epoch = request.text("epoch")
        if not self._signal_all(True):
            raise Refusal("unsupported", "stand_by: init is not the first process")
        gone = removed_file()
        if gone:
            self._signal_all(False)
            what = f"a file is in use that was removed: {gone}"
            raise Refusal("unsupported", f"stand_by: {what}")
        self._epoch = epoch
        left = [f"output of process {pid}" for pid in commands.leaders().values()]
        at_work = [each for each in contexts.listing() if each["state"] == "busy"]
        left += [f"answer of the cell in context {each['name']!r}" for each in at_work]
        left += ["connections through the engine"] if ports is not None and ports.is_used else []
        self._channel.send({"ev": "reply", "id": request.id, "left": left[:_MOST_LEFT]})
        self._channel.hold_after_this()
        self._loop.set_alarm(self, _LOOK_S, self._look)

    def _look(self) -> None:
        self._loop.set_alarm(self, _LOOK_S, self._look)
        self._channel.look()

    def end(
        self, request: Request, contexts: Contexts, commands: Commands, ports: Ports | None
    ) -> tuple[Header, bytes]:
        """Go on, as the sandbox that was copied or as a copy of it."""
        if not self._epoch or request.text("epoch") != self._epoch:
            raise Refusal("invalid", "wake: this is another epoch")
        self._epoch = ""
        self._loop.clear_alarm(self)
        if request.flag("copy"):
            if ports is not None:
                ports.reset_all()
            self._channel.begin_anew(request.id)
            for number in commands.leaders():
                job = commands.job(number)
                if job is not None:
                    job.grant(MOST_GRANTED_BYTES)  # no host will ever grant it more
            if request.flag("reseed", default=True):
                contexts.reseed()
        elif request.flag("renewed"):
            self._channel.renew()
        else:
            self._channel.let_go_on()
            self._signal_all(False)
        # Of a copy nothing else runs before the host has compared it and says `release`.
        return {}, b""


def removed_file() -> str:
    """Return a file or directory that a process uses and that was removed, if there is one.

    The kernel under this one writes down which file of the host is open by its name.
    """
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended
            for name in _used_by(f"/proc/{pid}"):
                # A file may really be called so.
                if name.endswith(_REMOVED) and not os.path.lexists(name):
                    return name[: -len(_REMOVED)]
    return ""


def _used_by(process: str) -> list[str]:
    """Return the names of what a process has open or mapped, and of its directory."""
    links = [f"{process}/cwd", *(f"{process}/fd/{each}" for each in os.listdir(f"{process}/fd"))]
    found = []
    for link in links:
        with contextlib.suppress(OSError):  # it was closed meanwhile
            found.append(os.readlink(link))
    with open(f"{process}/maps", encoding="utf-8", errors="surrogateescape") as lines:
        found += [line[line.index("/") :].rstrip("\n") for line in lines if _REMOVED in line]
    return [each for each in found if not each.startswith(_NEVER_NAMED)]

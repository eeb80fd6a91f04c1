"""Tool calls of another language's code, passed on to init by the context's process.

Used by `foreign/context.py` for one execution. Init accepts calls only from a context's own
process, and the code runs in a child of it (`interpreter.py`). So the child's messages go on from
here, each call on a connection of its own. Init keeps the bounds; they are kept here once more, so
that an interpreter that does not read its answers costs no memory beyond its allowed calls.
"""

from __future__ import annotations

import json
import os
import select
from collections import deque
from typing import TYPE_CHECKING

from cellwall.guest.context.foreign.interpreter import DriverBroken

if TYPE_CHECKING:
    from typing import Any, Deque, Dict, Tuple

    from cellwall.guest.channel.init_link import Link

_MOST_BYTES = 1024 * 1024
"""Maximum bytes of arguments; a larger frame would end the context (design/0002)."""
_MOST_REFUSALS = 256
"""Maximum number of refusals that wait to be read; further ones are dropped."""


class Relay:
    """The tool calls of one execution; `fileno` is ready when `step` has work."""

    def __init__(self, link: Link, manifest: dict[str, Any]) -> None:
        """`manifest` is the field `tools` of `execute`."""
        self._link = link
        self._at_once = int(manifest["at_once"])
        self.replies_r, self._replies_w = os.pipe()
        os.set_blocking(self._replies_w, False)
        self._ready = select.epoll()
        self._lines: Dict[int, Tuple[Link, int]] = {}
        self._replies: Deque[bytes] = deque()

    def fileno(self) -> int:
        """Return a descriptor that is readable when `step` has work."""
        return self._ready.fileno()

    def begin(self, message: dict[str, Any]) -> None:
        """Pass on a call, or refuse it. Raises `DriverBroken`."""
        number, tool, text = (message.get(name) for name in ("call", "tool", "body"))
        if type(number) is not int or not isinstance(tool, str) or not isinstance(text, str):
            raise DriverBroken("a call that is none")
        body = text.encode("utf-8", "backslashreplace")
        if len(self._lines) + len(self._replies) >= self._at_once:
            self._refuse(number, "busy", f"{self._at_once} calls are under way; wait for one")
        elif len(body) > _MOST_BYTES:
            self._refuse(number, "too_large", f"{len(body)} bytes of arguments")
        else:
            self._pass_on(number, tool[:65], body)

    def _pass_on(self, number: int, tool: str, body: bytes) -> None:
        line = self._link.another()
        try:
            line.send({"ev": "call", "tool": tool}, body)
        except OSError:  # no descriptor is left, or init hung up
            line.close()
            self._refuse(number, "ended", "the sandbox cannot be asked")
            return
        self._lines[line.fileno()] = line, number
        self._ready.register(line.fileno(), select.EPOLLIN)

    def step(self) -> None:
        """Do the work that needs no waiting."""
        for fd, _events in self._ready.poll(0):
            if fd == self._replies_w:
                self._write()
            else:
                self._answer(fd)

    def _answer(self, fd: int) -> None:
        line, number = self._lines.pop(fd)
        self._ready.unregister(fd)
        try:
            header, body = line.receive()
        except OSError:
            self._refuse(number, "ended", "the sandbox hung up; the execution may be over")
        else:
            self._reply(number, bool(header.get("ok")), body)
        finally:
            line.close()

    def _refuse(self, number: int, kind: str, message: str) -> None:
        if len(self._replies) < _MOST_REFUSALS:
            said = {"kind": kind, "type": "", "message": message}
            self._reply(number, False, json.dumps(said).encode("ascii"))

    def _reply(self, number: int, is_ok: bool, body: bytes) -> None:
        if not self._replies:
            self._ready.register(self._replies_w, select.EPOLLOUT)
        word = b"true" if is_ok else b"false"
        self._replies.append(b'{"call":%d,"ok":%s,"body":%s}\n' % (number, word, body))
        self._write()

    def _write(self) -> None:
        """Write as much as the pipe takes: a busy interpreter does not read meanwhile."""
        while self._replies:
            reply = self._replies[0]
            try:
                sent = os.write(self._replies_w, reply)
            except BlockingIOError:
                return
            if sent < len(reply):
                self._replies[0] = reply[sent:]
            else:
                self._replies.popleft()
        self._ready.unregister(self._replies_w)

    def close(self) -> None:
        """Close all connections because the execution is over."""
        for line, _number in self._lines.values():
            line.close()
        self._lines.clear()
        self._ready.close()
        os.close(self._replies_w)
        os.close(self.replies_r)

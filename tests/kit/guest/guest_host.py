"""A host for tests of init: a forked process runs the real `init.main` over a socketpair.

Not a mock: the channel, the forks, the pipes and the signals are the real ones; only the jail is
missing. Whoever changes `ask` must keep its deadline, or a lost answer hangs the suite.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cellwall.guest.channel.frames import Decoder, encode
from cellwall.guest.channel.init_link import Link
from cellwall.guest.init import main as init
from conftest import require_capability
from kit.waiting import DEADLINE_S, wait_until

Header = dict[str, Any]
Frame = tuple[Header, bytes]
FINAL = ("reply", "fail", "done")


class Host:
    """The host's end of one init."""

    def __init__(
        self,
        home: Path,
        contexts: tuple[str, ...] = (),
        run_context: Callable[[Link, Header], Any] | None = None,
        *,
        is_gone: bool = False,
        not_inits: tuple[int, ...] = (),
        **config: object,
    ) -> None:
        """Fork init and wait for `ready`, unless the host `is_gone` from the beginning.

        `not_inits`: descriptors that init must not have, as in a sandbox.
        """
        ours, theirs = socket.socketpair()
        if is_gone:
            ours.close()
        self.home = home
        self.pid = os.fork()
        if self.pid == 0:
            try:
                ours.close()
                for fd in not_inits:
                    os.close(fd)
                env = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
                settings = {"home": str(home), "env": env, "contexts": list(contexts), **config}
                init.main(theirs.detach(), settings, run_context)
            except BaseException:  # noqa: BLE001  the child's outermost frame
                traceback.print_exc()
            finally:
                os._exit(99)
        theirs.close()
        self.socket = ours
        self._decoder = Decoder(64 * 1024, 1024 * 1024)
        self._frames: list[Frame] = []
        self._last_id = 0
        if is_gone:
            return
        self.socket.settimeout(DEADLINE_S)
        try:
            self.ready = self.next()[0]
        except BaseException:
            self.close()
            raise

    def send(self, op: str, body: bytes = b"", number: int = 0, **fields: Any) -> int:
        """Send a request; its id."""
        if not number:
            self._last_id += 1
            number = self._last_id
        self.socket.sendall(encode({"op": op, "id": number, **fields}, body))
        return number

    def next(self) -> Frame:
        """The next event of any request."""
        while not self._frames:
            data = self.socket.recv(256 * 1024)
            if not data:
                raise EOFError("init hung up")
            self._frames.extend(self._decoder.feed(data))
        return self._frames.pop(0)

    def events(self, number: int) -> list[Frame]:
        """Every event of one request up to its last."""
        found = []
        while True:
            header, body = self.next()
            if header["id"] == number:
                found.append((header, body))
                if header["ev"] in FINAL:
                    return found

    def ask(self, op: str, body: bytes = b"", **fields: Any) -> Frame:
        """Send a request and wait for its last event."""
        return self.events(self.send(op, body, **fields))[-1]

    def run(self, op: str, body: bytes = b"", **fields: Any) -> dict[str, Any]:
        """Run something to its end: what it printed, joined, and its `done`."""
        return summary(self.events(self.send(op, body, **fields)))

    def wait_for(self, event: str, number: int) -> Frame:
        """Skip to the next event of this name and request."""
        while True:
            header, body = self.next()
            if header["ev"] == event and header["id"] == number:
                return header, body

    def descriptors(self) -> int:
        """How many init has open; see `descriptors_of`."""
        return len(descriptors_of(self.pid))

    def hang_up(self) -> int:
        """Close the channel and reap init; its wait status."""
        self.socket.close()
        return os.waitpid(self.pid, 0)[1]

    def close(self) -> None:
        """Hang up, whatever happened before; an init that hangs is killed."""
        self.socket.close()
        try:
            wait_until(lambda: os.waitpid(self.pid, os.WNOHANG)[0] != 0, "init ends")
        except ChildProcessError:
            return
        except AssertionError:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise


def descriptors_of(pid: int) -> list[str]:
    """What /proc/<pid>/fd lists: the numbers, as text, in order.

    Nobody but root may look into a process that is not dumpable, as init and its children are.
    """
    try:
        return sorted(os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:
        require_capability("root", os.geteuid() == 0, "look into a guest's process: run as uid 0")
        raise


def summary(events: list[Frame]) -> dict[str, Any]:
    """Join what streams printed."""
    return {
        "stdout": b"".join(body for header, body in events if header["ev"] == "stdout"),
        "stderr": b"".join(body for header, body in events if header["ev"] == "stderr"),
        "events": [header["ev"] for header, _body in events],
        "done": events[-1][0],
    }


def stub_context(link: Link, config: Header) -> None:
    """A context that execs its source and speaks the protocol of design/0002."""
    while True:
        link.connect()
        link.send({"ev": "idle"})
        task, source, fd = link.receive_work()
        while task["op"] == "idle":  # after an interrupt
            link.send({"ev": "idle"})
            task, source, fd = link.receive_work()
        if fd >= 0:
            os.dup2(fd, 0)
            os.close(fd)
        link.close()
        raised = False
        names = {"link": link, "config": config, "os": os, "task": task, "signal": signal}
        try:
            exec(source, names)
        except BaseException as error:  # noqa: BLE001  as the real context does
            raised = True
            link.send({"ev": "error"}, json.dumps({"name": type(error).__name__}).encode())
        sys.stdout.flush()
        link.send({"ev": "end", "raised": raised, "exit_code": int(raised)})
        if task["mode"] == "program":
            os._exit(int(raised))

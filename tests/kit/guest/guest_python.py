"""A real fork-server and the smallest possible init, to run contexts without a jail.

Used by test_guest_python_*.py. It is not a test, and its init trusts everything it reads.
The driver at the end of this file is what runs in the fork-server process.
"""

from __future__ import annotations

import array
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cellwall.guest.channel.frames import Decoder, encode
from cellwall.guest.init.context_connections import open_input

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCES = Path(__file__).parents[3] / "src"
_LIMIT_S = 50


class Result:
    """What one execution said and did."""

    def __init__(self) -> None:
        self.events: list[tuple[dict[str, Any], bytes]] = []
        self.stdout = ""
        self.stderr = ""
        self.end: dict[str, Any] | None = None
        self.status: int | None = None

    def bodies(self, event: str) -> list[Any]:
        """The JSON bodies of all events of one kind."""
        return [json.loads(body) for header, body in self.events if header["ev"] == event]

    @property
    def text(self) -> str | None:
        """The text/plain of the last result."""
        shown = [json.loads(b) for h, b in self.events if h.get("kind") == "result"]
        return shown[-1]["text/plain"] if shown else None


def pack_guest(folder: Path) -> Path:
    """The guest package alone, as it travels into a sandbox: nothing else of cellwall is there."""
    target = folder / "cellwall" / "guest"
    shutil.copytree(SOURCES / "cellwall" / "guest", target)
    (folder / "cellwall" / "__init__.py").touch()
    (target / "__init__.py").touch()
    return folder


class Server:
    """A warm fork-server in a process of its own."""

    def __init__(self, package_root: Path, modules: list[str]) -> None:
        ours, theirs = socket.socketpair()
        self._line = ours
        env = {"PATH": os.environ["PATH"], "HOME": str(package_root), "TMPDIR": str(package_root)}
        command = [sys.executable, __file__, str(theirs.fileno()), str(package_root)]
        self._process = subprocess.Popen(
            [*command, json.dumps(modules)], pass_fds=[theirs.fileno()], env=env
        )
        theirs.close()
        ours.settimeout(_LIMIT_S)
        try:
            self.warmth: dict[str, Any] = json.loads(self._receive())
        except BaseException:
            self._process.kill()
            self.close()
            raise

    def fork(self, home: Path, **config: object) -> Context:
        """One new context, idle."""
        return Context(self, home, config)

    def ask(self, request: dict[str, Any], descriptors: tuple[int, ...] = ()) -> int:
        """One question to the driver."""
        self._line.sendmsg(
            [json.dumps(request).encode()],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))],
        )
        return int(json.loads(self._receive()))

    def close(self) -> None:
        """End the fork-server."""
        self._line.close()
        self._process.wait(_LIMIT_S)

    def _receive(self) -> bytes:
        answer = self._line.recv(65536)
        if not answer:
            self._line.close()
            raise RuntimeError(f"fork-server died: exit {self._process.wait(_LIMIT_S)}")
        return answer


class Context:
    """One forked context and this test's side of its link."""

    def __init__(self, server: Server, home: Path, config: dict[str, Any]) -> None:
        self._server = server
        address = "\0" + uuid.uuid4().hex
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(address)
        self._listener.listen(16)
        out_r, out_w = os.pipe()
        err_r, err_w = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, "listener")
        self._selector.register(out_r, selectors.EVENT_READ, "stdout")
        self._selector.register(err_r, selectors.EVENT_READ, "stderr")
        self._pipes = {"stdout": out_r, "stderr": err_r}
        self._idle: socket.socket | None = None
        self._buffers: dict[socket.socket, bytes] = {}
        request = {"op": "fork", "address": address[1:], "home": str(home), "config": config}
        self.pid = server.ask(request, (out_w, err_w))
        os.close(out_w)
        os.close(err_w)
        self._pump(Result(), lambda: self._idle is not None)

    def execute(self, source: str, *, stdin: bytes | None = None, **header: object) -> Result:
        """Run code to its end: `idle` again, or the exit of the process."""
        self.begin(source, stdin=stdin, **header)
        return self.finish()

    def begin(self, source: str, *, stdin: bytes | None = None, **header: object) -> None:
        """Send an execution without waiting for more than that it asks for its input."""
        assert self._idle is not None
        task = {"op": "execute", "filename": "main.py", "display": True, **header}
        task["stdin"] = "none" if stdin is None else "stream"
        self._idle.sendall(encode(task, source.encode("utf-8", "surrogatepass")))
        if stdin is not None:
            with os.fdopen(open_input(self.pid, self._asked_input()), "wb") as pipe:
                pipe.write(stdin)
            self._idle.sendall(encode({"op": "input"}))
        self._idle = None

    def _asked_input(self) -> int:
        """The descriptor of the pipe that the context has made."""
        assert self._idle is not None
        decoder = Decoder(65536, 65536)
        while True:
            for header, _ in decoder.feed(self._idle.recv(65536)):
                assert header["ev"] == "input"
                return int(header["fd"])

    def finish(self) -> Result:
        """Wait for the end of what was begun."""
        result = Result()
        self._pump(result, lambda: self._idle is not None or not self._pipes)
        if not self._pipes:
            result.status = self._server.ask({"op": "wait", "pid": self.pid})
        return result

    def wait_for_output(self, text: str) -> None:
        """Wait until the code has printed something."""
        result = Result()
        self._pump(result, lambda: text in result.stdout)

    def wait_for_errors(self, text: str) -> None:
        """Wait until something is on stderr, between two cells."""
        result = Result()
        self._pump(result, lambda: text in result.stderr)

    def interrupt(self) -> None:
        """What init does for the `interrupt` request."""
        os.kill(self.pid, signal.SIGINT)

    def close(self) -> None:
        """Hang up; the context leaves by itself."""
        if self._idle is not None:
            self._idle.close()
            self._server.ask({"op": "wait", "pid": self.pid})
        for line in self._buffers:
            line.close()
        for pipe in self._pipes.values():
            os.close(pipe)
        self._selector.close()
        self._listener.close()

    def _pump(self, result: Result, is_done: Callable[[], bool]) -> None:
        while not is_done():
            ready = self._selector.select(_LIMIT_S)
            if not ready:
                raise TimeoutError(f"context {self.pid}: silent; {result.stderr[-2000:]}")
            # Links before pipes: at the end of a process what it said last is still there.
            for key, _mask in sorted(ready, key=lambda k: k[0].data in self._pipes):
                self._read(key, result)
        # What was said before the end is all there by now, though perhaps not read.
        while True:
            rest = [key for key, _mask in self._selector.select(0) if key.fileobj != self._idle]
            if not rest:
                return
            for key in rest:
                self._read(key, result)

    def _read(self, key: selectors.SelectorKey, result: Result) -> None:
        if key.data == "listener":
            line, _address = self._listener.accept()
            self._buffers[line] = b""
            self._selector.register(line, selectors.EVENT_READ, "link")
        elif key.data == "link":
            self._read_link(cast("socket.socket", key.fileobj), result)
        else:
            data = os.read(key.fd, 1 << 20)
            if data:
                setattr(result, key.data, getattr(result, key.data) + data.decode())
            else:
                self._selector.unregister(key.fd)
                os.close(self._pipes.pop(key.data))

    def _read_link(self, line: socket.socket, result: Result) -> None:
        data = line.recv(1 << 20)
        self._buffers[line] += data
        if not data:
            self._selector.unregister(line)
            del self._buffers[line]
            line.close()
            return
        while len(self._buffers[line]) >= 8:
            buffer = self._buffers[line]
            header_size, body_size = struct.unpack(">II", buffer[:8])
            end = 8 + header_size + body_size
            if len(buffer) < end:
                return
            self._buffers[line] = buffer[end:]
            self._note(
                line, json.loads(buffer[8 : 8 + header_size]), buffer[end - body_size : end], result
            )

    def _note(
        self, line: socket.socket, header: dict[str, Any], body: bytes, result: Result
    ) -> None:
        assert len(body) <= 1 << 20
        if header["ev"] == "idle":
            self._idle = line
        elif header["ev"] == "end":
            result.end = header
        else:
            result.events.append((header, body))


def _drive(line: socket.socket, modules: list[str]) -> None:
    import gc

    from cellwall.guest.process import reseed
    from cellwall.guest.warm import preload

    warmth = preload.warm(modules)
    reseed.collect()
    preload.warm_sessions()
    warmth["generators"] = reseed.collect()
    warmth["tasks"] = len(os.listdir("/proc/self/task"))
    gc.collect()
    gc.freeze()
    line.send(json.dumps(warmth).encode())
    while True:
        data, ancillary, _flags, _address = line.recvmsg(65536, socket.CMSG_SPACE(16))
        if not data:
            return
        request = json.loads(data)
        if request["op"] == "wait":
            answer = os.waitpid(request["pid"], 0)[1]
            line.send(json.dumps(answer).encode())
            continue
        descriptors = array.array("i")
        for _level, _kind, raw in ancillary:
            descriptors.frombytes(raw)
        pid = os.fork()
        if pid == 0:
            _become_context(request, list(descriptors))
        for descriptor in descriptors:
            os.close(descriptor)
        line.send(json.dumps(pid).encode())


def _become_context(request: dict[str, Any], descriptors: list[int]) -> None:
    from cellwall.guest.channel.init_link import Link
    from cellwall.guest.context import main as context
    from cellwall.guest.process import processes

    processes.reset_signals()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate([nothing, *descriptors]):
        os.dup2(source, target)
    os.closerange(3, 256)
    os.chdir(request["home"])
    os.environ["HOME"] = request["home"]
    os.environ.update(request["config"].get("env", {}))
    context.main(Link("\0" + request["address"]), request["config"])


if __name__ == "__main__":
    sys.path[0] = sys.argv[2]
    _drive(socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[3]))

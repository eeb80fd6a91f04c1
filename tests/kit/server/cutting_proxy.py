"""A TCP proxy on loopback that a test can cut: what a network does to a client.

Between a client and a real server; it understands nothing of what it carries. It counts
connections and bytes, so that a test can show that a cut really happened.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType


class CuttingProxy:
    """Listens while it is entered."""

    def __init__(self, port: int) -> None:
        """Lead to `port` of this machine."""
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self.port = int(self._listener.getsockname()[1])
        self.connections = 0
        self.cuts = 0
        self.should_cut: Callable[[bytes, bool], bool] = lambda _data, _is_answer: False
        """Asked for every piece; a piece for which it is true is not passed on."""
        self.refuses = False

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> CuttingProxy:
        """Begin to accept."""
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop and cut everything."""
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Break every connection off."""
        with self._lock:
            open_now, self._open = self._open, []
        for sock in open_now:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self.cuts += bool(open_now)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            if self.refuses:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            with self._lock:
                self._open += [client, server]
            for source, target, is_answer in ((client, server, False), (server, client, True)):
                arguments = (source, target, is_answer)
                threading.Thread(target=self._carry, args=arguments, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if self.should_cut(data, is_answer):
                    self.cut()
                    return
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


class Once:
    """Cuts at the first piece for which `wanted` is true."""

    def __init__(self, wanted: Callable[[bytes, bool], bool]) -> None:
        self._wanted = wanted
        self._lock = threading.Lock()
        self.has_cut = False

    def __call__(self, data: bytes, is_answer: bool) -> bool:
        with self._lock:
            if self.has_cut or not self._wanted(data, is_answer):
                return False
            self.has_cut = True
            return True

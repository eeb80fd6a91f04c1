"""A relay between a gateway and something it needs, which can be cut and healed."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

_PIECE = 65_536


class Relay:
    """Passes connections of a listener on, until it is cut."""

    def __init__(
        self, listen: Callable[[], socket.socket], dial: Callable[[], socket.socket]
    ) -> None:
        """`listen` makes the listener, `dial` a connection to the other side."""
        self._dial = dial
        self._open: set[socket.socket] = set()
        self._is_cut = False
        self._sock = listen()
        self._sock.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._sock.getsockname()[1])

    def cut(self) -> None:
        """End every connection, and take none."""
        self._is_cut = True
        for each in list(self._open):
            _shut(each)

    def heal(self) -> None:
        """Pass connections on again."""
        self._is_cut = False

    def close(self) -> None:
        """End it."""
        self.cut()
        _shut(self._sock)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._sock.accept()
                if self._is_cut:
                    client.close()
                    continue
                try:
                    other = self._dial()
                except OSError:
                    client.close()
                    continue
                self._open |= {client, other}
                for source, sink in ((client, other), (other, client)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE):
                sink.sendall(data)
        for each in (source, sink):
            _shut(each)
            self._open.discard(each)


def to_port(port: int) -> Relay:
    """Return a relay on loopback to a port there."""

    def listen() -> socket.socket:
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        return sock

    return Relay(listen, lambda: socket.create_connection(("127.0.0.1", port)))


def to_unix(path: Path, target: Path) -> Relay:
    """Return a relay at a path to a unix socket."""

    def listen() -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(path))
        return sock

    def dial() -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(target))
        return sock

    return Relay(listen, dial)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()

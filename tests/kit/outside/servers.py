"""Servers on loopback that a sandbox tries to reach, and witnesses of who did."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

OUTSIDE = "127.0.1.1"
"""Address that stands for the internet: the operator of the tests' engine lists it."""
HOST = "127.0.0.1"
"""The host's own loopback, which no policy of a caller reaches."""

Serve = Callable[[socket.socket], None]


class Sink:
    """A TCP server that remembers what each connection said; a context manager."""

    def __init__(self, serve: Serve | None = None, address: str = OUTSIDE) -> None:
        """`serve` answers one connection; the default reads to its end."""
        self.said: list[bytes] = []
        self.connections = 0
        self._serve = serve
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=256)
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def port(self) -> int:
        """Its port."""
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        """Begin to serve."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._one, args=(accepted,), daemon=True).start()

    def _one(self, accepted: socket.socket) -> None:
        with accepted, suppress(OSError):
            if self._serve is not None:
                self._serve(accepted)
                return
            data = b""
            while piece := accepted.recv(65536):
                data += piece
            self.said.append(data)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes: 40 ms between them
    server: WebServer  # type: ignore[mutable-override]

    def do_GET(self) -> None:
        self.server.requests.append((self.command, self.path, dict(self.headers)))
        self.server.resumed += bool(getattr(self.connection, "session_reused", False))
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        status, fields, answer = self.server.answer(self.command, self.path, body)
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


class WebServer(ThreadingHTTPServer):
    """An HTTP server, with TLS if it gets a context; a context manager that serves."""

    daemon_threads = True

    def __init__(
        self,
        tls: ssl.SSLContext | None = None,
        pages: dict[str, bytes] | None = None,
        address: str = OUTSIDE,
        port: int = 0,
    ) -> None:
        """`pages`: bodies by path; any other path answers with its own name."""
        super().__init__((address, port), _Handler)
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.resumed = 0
        """Requests on connections whose TLS went on from an earlier one's."""
        self.pages = pages or {}
        self.redirects: dict[str, str] = {}
        self.are_others_missing = False
        """Whether a path without a page is 404."""
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)

    @property
    def port(self) -> int:
        """Its port."""
        return int(self.server_address[1])

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body for a request."""
        if path in self.redirects:
            return 302, {"Location": self.redirects[path]}, b""
        if self.are_others_missing and path.partition("?")[0] not in self.pages:
            return 404, {}, b""
        path = path.partition("?")[0] if self.are_others_missing else path
        return 200, {}, self.pages.get(path, f"{method} {path} {len(body)}".encode())

    def __enter__(self) -> Self:
        """Begin to serve."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """End."""
        self.shutdown()
        self._thread.join()
        self.server_close()

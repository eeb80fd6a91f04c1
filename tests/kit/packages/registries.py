"""A registry of Python and npm packages on loopback, which answers what a test wants."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kit.packages.made import Made

JSON = "application/vnd.pypi.simple.v1+json"


@dataclass
class Reply:
    """One answer; `pieces` instead of `content` is sent as it comes, and may break off."""

    content: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    pieces: Callable[[], Iterator[bytes]] | None = None


@dataclass(frozen=True)
class Asked:
    """One request, as the registry got it."""

    path: str
    headers: dict[str, str]


@dataclass
class Registry:
    """Pages and files by path; `asked` is every request so far."""

    replies: dict[str, Reply | Callable[[Asked], Reply]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    port: int = 0
    _python: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _npm: dict[str, dict[str, Any]] = field(default_factory=dict)

    def url(self, path: str = "/simple/", credentials: str = "") -> str:
        return f"http://{credentials}127.0.0.1:{self.port}{path}"

    def count(self, path: str) -> int:
        """Return how often a path was asked for."""
        return sum(each.path == path for each in self.asked)

    def add(
        self,
        made: Made,
        *,
        with_hash: bool = True,
        metadata: object = True,
        age_days: float | None = None,
        **fields: object,
    ) -> str:
        """List a Python file, with more fields of PEP 691; return the file's path.

        `metadata` is what the page says of it, True or digests.
        """
        path = f"/files/{made.file_name}"
        entry = {
            "filename": made.file_name,
            "url": f"../..{path}",
            "hashes": {"sha256": made.sha256} if with_hash else {},
            "size": len(made.content),
            **fields,
        }
        if age_days is not None:
            entry["upload-time"] = days_ago(age_days)
        if made.metadata:
            entry["core-metadata"] = metadata
            self.replies[f"{path}.metadata"] = Reply(made.metadata)
        self.replies[path] = Reply(made.content)
        name = made.name.lower().replace("_", "-").replace(".", "-")
        files = self._python.setdefault(name, [])
        files.append(entry)
        page = {"meta": {"api-version": "1.1"}, "name": name, "files": files}
        self.replies[f"/simple/{name}/"] = Reply(
            json.dumps(page).encode(), headers={"Content-Type": JSON}
        )
        return path

    def add_npm(self, made: Made, *, age_days: float | None = None, **dist: object) -> str:
        """List a tarball of npm; return its path."""
        path = f"/tarballs/{made.file_name}"
        self.replies[path] = Reply(made.content)
        page = self._npm.setdefault(
            made.name, {"name": made.name, "dist-tags": {}, "versions": {}, "time": {}}
        )
        sha512 = base64.b64encode(bytes.fromhex(made.sha512)).decode()
        page["versions"][made.version] = {
            **made.manifest,
            "dist": {
                "tarball": self.url(path),
                "integrity": f"sha512-{sha512}",
                "shasum": made.sha1,
                **dist,
            },
        }
        page["dist-tags"]["latest"] = made.version
        if age_days is not None:
            page["time"][made.version] = days_ago(age_days)
        quoted = made.name.replace("/", "%2F")
        self.replies[f"/npm/{quoted}"] = lambda asked: _packument(page, asked)
        return path


def days_ago(days: float) -> str:
    """Return a date as registries write it."""
    return (datetime.now(UTC) - timedelta(days=days)).isoformat()


def _packument(page: dict[str, Any], asked: Asked) -> Reply:
    """The short form, as real registries have it, does not say when a version came."""
    is_short = "install-v1" in asked.headers.get("accept", "")
    shown = {key: value for key, value in page.items() if key != "time" or not is_short}
    return Reply(json.dumps(shown).encode(), headers={"Content-Type": "application/json"})


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client may go at any time."""


@contextmanager
def running() -> Iterator[Registry]:
    """Run a registry for a block."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.path, headers)
            registry.asked.append(asked)
            reply = registry.replies.get(self.path, Reply(b"not here", 404))
            self._send(reply if isinstance(reply, Reply) else reply(asked))

        def _send(self, reply: Reply) -> None:
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if reply.pieces is None:
                self.send_header("Content-Length", str(len(reply.content)))
                self.end_headers()
                self.wfile.write(reply.content)
                return
            # So that what breaks off, ends.
            self.close_connection = True
            if "Content-Length" not in reply.headers:
                self.send_header("Connection", "close")
            self.end_headers()
            for piece in reply.pieces():
                self.wfile.write(piece)
                self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    registry.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""A double of Kubernetes' API server: list and watch of EndpointSlices, by real HTTP on loopback.

It keeps what these two calls promise: versions that grow, a watch that goes on from a version, 410
Gone for one that is forgotten, as a status or within the stream, and refusals as `Status` objects.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

NAMESPACE, SERVICE, TOKEN = "sandboxes", "cellwall-node", "token-of-the-service-account"
_PATH = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
_LABEL = {"kubernetes.io/service-name": SERVICE}


def endpoint(uid: str, address: str = "127.0.0.1", **conditions: bool) -> dict[str, Any]:
    """Return a pod of a slice."""
    return {
        "addresses": [address],
        "conditions": {"ready": True, **conditions},
        "targetRef": {"kind": "Pod", "name": f"pod-{uid}", "uid": uid},
    }


def endpoint_slice(
    name: str, port: int, *endpoints: dict[str, Any], family: str = "IPv4"
) -> dict[str, Any]:
    """Return a slice; in a real cluster all nodes have one port, on loopback each its own."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": _LABEL},
        "addressType": family,
        "ports": [{"name": "node", "port": port, "protocol": "TCP"}],
        "endpoints": list(endpoints),
    }


class ApiServer:
    """See the module."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.slices: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.forgotten = 0
        """The last version from which no watch can go on."""
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self.asked: list[str] = []
        """`list`, `watch` and `refused`, as they came."""
        self.refusal = 0
        """The status that every request gets; 0: none."""
        self.open: set[socket.socket] = set()
        self._server: ThreadingHTTPServer | None = None
        self._port = 0

    def start(self) -> None:
        """Listen, at the same port each time."""
        self._server = _Server(self, self._port)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Be away: nothing listens, and every watch is cut."""
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        with self.changed:
            for each in list(self.open):  # one that ends meanwhile leaves it
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self.changed.notify_all()

    def put(self, each: dict[str, Any]) -> None:
        """Add a slice, or change it."""
        name = each["metadata"]["name"]
        self._note("MODIFIED" if name in self.slices else "ADDED", each)

    def delete(self, name: str) -> None:
        """Delete a slice."""
        self._note("DELETED", self.slices[name])

    def _note(self, kind: str, each: dict[str, Any]) -> None:
        with self.changed:
            self.version += 1
            metadata = {**each["metadata"], "resourceVersion": str(self.version)}
            made = {**each, "metadata": metadata}
            self.events.append((self.version, kind, made))
            if kind == "DELETED":
                del self.slices[metadata["name"]]
            else:
                self.slices[metadata["name"]] = made
            self.changed.notify_all()

    def forget(self) -> None:
        """Forget all versions so far: watches that go on from them end with 410."""
        with self.changed:
            self.version += 1
            self.forgotten = self.version
            self.changed.notify_all()

    def listed(self) -> dict[str, Any]:
        """Return the list of all slices."""
        with self.changed:
            metadata = {"resourceVersion": str(self.version)}
            kind = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList"}
            return {**kind, "metadata": metadata, "items": list(self.slices.values())}

    def heard(self, what: str) -> None:
        """Note a request."""
        with self.changed:
            self.asked.append(what)
            self.changed.notify_all()

    def wait_asked(self, what: str, times: int) -> None:
        """Wait until it was asked for that so many times."""
        with self.changed:
            found = self.changed.wait_for(lambda: self.asked.count(what) >= times, 20)
            assert found, self.asked

    def kubeconfig(self, folder: Path) -> Path:
        """Write a file that says where this server is."""
        path = folder / "kubeconfig"
        named = {"name": "c", "context": {"cluster": "c", "user": "c", "namespace": NAMESPACE}}
        server = f"http://127.0.0.1:{self._port}"
        config = {
            "current-context": "c",
            "contexts": [named],
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "c", "user": {"token": TOKEN}}],
        }
        path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        return path

    def after(self, version: int, seconds: float) -> list[dict[str, Any]]:
        """Wait for events after a version; return them, and none once the time is over."""
        with self.changed:
            self.changed.wait_for(lambda: self._server is None or self.version > version, seconds)
            if version < self.forgotten:
                return [{"type": "ERROR", "object": status(410, "Expired")}]
            found = [(kind, each) for at, kind, each in self.events if at > version]
            return [{"type": kind, "object": each} for kind, each in found]


def status(code: int, reason: str) -> dict[str, Any]:
    """Return the object of a refusal."""
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "message": f"the double says {reason}",
        "reason": reason,
        "code": code,
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def api(self) -> ApiServer:
        assert isinstance(self.server, _Server)
        return self.server.api

    def setup(self) -> None:
        super().setup()
        self.api.open.add(self.request)

    def finish(self) -> None:
        self.api.open.discard(self.request)
        super().finish()

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        refusal = self._refusal(parts.path, query)
        if refusal:
            self.api.heard("refused")
            self._answer(refusal, status(refusal, "Refused"))
        elif query.get("watch") == "true":
            self.api.heard("watch")
            self._watch(int(query["resourceVersion"]), float(query["timeoutSeconds"]))
        else:
            self.api.heard("list")
            self._answer(200, self.api.listed())

    def _refusal(self, path: str, query: dict[str, str]) -> int:
        if self.headers.get("authorization") != f"Bearer {TOKEN}":
            return 401
        if path != _PATH or query.get("labelSelector") != f"{next(iter(_LABEL))}={SERVICE}":
            return 404
        return self.api.refusal

    def _answer(self, code: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, version: int, seconds: float) -> None:
        if version < self.api.forgotten:
            self._answer(410, status(410, "Expired"))
            return
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        for each in self._events(version, seconds):
            line = json.dumps(each).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _events(self, version: int, seconds: float) -> Iterator[dict[str, Any]]:
        while events := self.api.after(version, seconds):
            for each in events:
                yield each
                if each["type"] == "ERROR":
                    return
                version = int(each["object"]["metadata"]["resourceVersion"])


class _Server(ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, api: ApiServer, port: int) -> None:
        self.api = api
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Leave clients that have gone."""


@contextlib.contextmanager
def api_server() -> Iterator[ApiServer]:
    """Run one for the length of a block."""
    made = ApiServer()
    made.start()
    try:
        yield made
    finally:
        made.stop()

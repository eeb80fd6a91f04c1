"""A registry on loopback that serves images from memory, counts what it is asked, and may stall."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kit.images.archives import config_of, described, digest


@dataclass
class ImageRegistry:
    """What it has, and what it was asked for."""

    port: int = 0
    content: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    may_serve: threading.Event = field(default_factory=threading.Event)
    """Cleared: blobs wait until it is set."""

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def name(self, image: str) -> str:
        return f"{self.host}/{image}"

    def add(self, image: str, layers: Sequence[bytes], **own: Any) -> str:
        """Add an image `repository:tag`; return its id."""
        repository, _, tag = image.partition(":")
        config = config_of(layers, **own)
        for blob in (config, *layers):
            self.content[f"/v2/{repository}/blobs/{digest(blob)}"] = blob
        manifest = {"config": described(config), "layers": [described(each) for each in layers]}
        self.content[f"/v2/{repository}/manifests/{tag}"] = json.dumps(manifest).encode()
        return digest(config)

    def count(self, part: str) -> int:
        """Return how often a path with `part` was asked for."""
        return sum(part in path for path in self.asked)

    def setting(self, *, credentials: str = "") -> str:
        """Return the operator's `image_registries` with this registry, as TOML."""
        url = f"http://{credentials}{self.host}"
        return f"image_registries = [{{registry = '{self.host}', url = '{url}'}}]"


@contextmanager
def running() -> Iterator[ImageRegistry]:
    """Serve a registry that is empty at first."""
    made = ImageRegistry()
    made.may_serve.set()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append(self.path)
            if "/blobs/" in self.path:
                made.may_serve.wait(60)
            body = made.content.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        made.port = served.server_address[1]
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        try:
            yield made
        finally:
            made.may_serve.set()
            served.shutdown()
            thread.join()

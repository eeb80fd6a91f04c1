"""A running nginx in front of a server, with the site that is shipped for it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kit.places import ROOT
from kit.servers import Server, read_all

_SITE = ROOT / "deploy" / "nginx.conf"
NAME = "sandboxes.example"


class Proxy:
    """A running nginx in front of a server."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port, self._log = port, folder / "access.log"

    def send(self, data: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as sock:
            sock.settimeout(2)
            with contextlib.suppress(ConnectionError):  # it has answered, and wants no more
                sock.sendall(data)
            return read_all(sock)

    def taken(self) -> list[str]:
        """Return the request lines that nginx took for requests and has ended."""
        return self._log.read_text(encoding="utf-8", errors="replace").splitlines()


def _configuration(folder: Path, port: int, server: Server, more: str) -> str:
    site = _SITE.read_text(encoding="utf-8")
    lines = [line for line in site.splitlines() if "ssl_certificate" not in line]
    site = "\n".join(lines).replace("listen 443 ssl http2", f"listen 127.0.0.1:{port}")
    site = site.replace("127.0.0.1:8080", f"127.0.0.1:{server.port}")
    site = site.replace("    location / {", f"    {more}\n    location / {{", 1)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    return f"""
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{ {paths} log_format lines "$request"; access_log {folder}/access.log lines; {site} }}
"""


@contextlib.contextmanager
def proxy_of(server: Server, more: str = "") -> Iterator[Proxy]:
    """Run nginx with deploy/nginx.conf in front of `server`; `more` are locations of its site."""
    folder = Path(tempfile.mkdtemp(prefix="cellwall-nginx-"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = folder / "nginx.conf"
    path.write_text(_configuration(folder, port, server, more), encoding="utf-8")
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            ["nginx", "-p", str(folder), "-c", str(path)], stdout=output, stderr=output
        )
    try:
        _wait_until_open(process, port, folder)
        yield Proxy(folder, port)
    finally:
        process.terminate()
        process.wait(20)
        shutil.rmtree(folder)


def _wait_until_open(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    deadline = time.monotonic() + 20
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        said = (folder / "output").read_text(encoding="utf-8")
        assert process.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.05)

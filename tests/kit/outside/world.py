"""A world for one sandbox: an engine whose outside is loopback, names, servers and witnesses."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cellwall import EngineSettings, Sandbox
from cellwall.embedded import Runner
from cellwall.engine.engine import Engine
from cellwall.runtimes.roots import ImageRoot
from kit.outside.name_server import NameServer
from kit.outside.servers import OUTSIDE, Sink, WebServer

LISTED = ("127.0.1.0/24", "::1/128")
NAMES = {
    "web.test": [OUTSIDE],
    "other.test": [OUTSIDE],
    "a.wild.test": [OUTSIDE],
    "wild.test": [OUTSIDE],
    "inner.test": ["127.0.0.1"],
}


@dataclass
class World:
    """All that a test of the network needs."""

    names: NameServer
    runner: Runner
    web: WebServer
    tls_web: WebServer
    tls: ssl.SSLContext
    """Context of `tls_web`, for further servers that the engine takes for web.test."""
    host: Sink
    """Witness on the host's loopback: nothing of a sandbox may ever reach it."""
    sink: Sink
    records: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    runtime: str = "jail"
    isolation: str | None = None
    authority: str = ""
    """Certificate of `tls_web`, which signed itself."""
    image: ImageRoot | None = None
    """What its sandboxes have for a root instead of a template's."""

    @property
    def _where(self) -> dict[str, Any]:
        return {"runtime": self.runtime, "isolation": self.isolation, "image": self.image}

    def sandbox(self, network: object, **options: Any) -> Sandbox:
        """Return a new sandbox with that policy."""
        where = self._where | options
        return Sandbox(runner=self.runner, network=network, **where)

    def run(self, code: str, network: object, **options: Any) -> str:
        """Run a program once in a fresh sandbox and return its output, which must have an end."""
        given = {**self._where, "network": network, "timeout": 30.0, **options}
        done = self.runner.call(lambda engine, _put: engine.run(code, **given))
        assert done.outcome.verdict == "ok", (done.stdout, done.stderr, done.outcome)
        return done.stdout


def certificate(folder: Path, *names: str) -> ssl.SSLContext:
    """Return a server's context with a self-signed certificate for `names`."""
    key, made = folder / "key.pem", folder / "certificate.pem"
    listed = ",".join(f"DNS:{name}" for name in names)
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
            *("ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={names[0]}"),
            *("-addext", f"subjectAltName={listed}", "-keyout", str(key), "-out", str(made)),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    return context


@contextmanager
def world(runtime: str = "jail", **engine: Any) -> Iterator[World]:
    """Make a world; `engine` are further arguments of `Engine`, `settings` of its settings."""
    settings = engine.pop("settings", {})
    isolation = engine.pop("isolation", None)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp())
        stack.callback(shutil.rmtree, folder)
        names = stack.enter_context(NameServer(dict(NAMES)))
        tls = certificate(folder, "web.test", "other.test")
        web = stack.enter_context(WebServer())
        tls_web = stack.enter_context(WebServer(tls))
        host = stack.enter_context(Sink(address="127.0.0.1"))
        sink = stack.enter_context(Sink())
        chosen = EngineSettings(
            name_servers=(names.address,),
            network_authorities=str(folder / "certificate.pem"),
            **{"network": "open", "network_addresses": LISTED, "pool_min": 1, "pool_max": 2}
            | settings,
        )
        runner = Runner(partial(Engine, settings=chosen, **engine))
        stack.callback(runner.close)
        authority = (folder / "certificate.pem").read_text(encoding="ascii")
        made = World(names, runner, web, tls_web, tls, host, sink)
        made.runtime, made.isolation, made.authority = runtime, isolation, authority

        def note(_tenant: str, sandbox: str, record: dict[str, Any]) -> None:
            made.records.append((sandbox, record))

        def watch(engine: Engine, _put: Any) -> Any:
            async def set_callback() -> None:
                engine.outside.on_record = note

            return set_callback()

        runner.call(watch)
        yield made

"""A small Internet: a network namespace in which real names and public addresses lead to us.

For unmodified clients, and for programs that trust no certificate but those of the machine's file.
`enter` moves the calling thread, and what it starts from then on, into a network and a mount
namespace of its own, as root. The invariant: it is called before the process has a second thread;
then nothing that runs in there reaches another machine, and nothing outside sees what is mounted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from cellwall.linux.syscalls import process
from kit.outside.name_server import NameServer
from kit.outside.servers import WebServer

AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
"""File of the authorities that programs trust; in there it has one more."""
_RESOLVER = ("127.0.0.53", 53)
_HTTPS = 443
_PIECE = 65_536
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True)
class Site:
    """A web server that answers every request with one status, by TLS."""

    address: str
    status: int
    names: tuple[str, ...] = ()


def enter(folder: Path, addresses: Sequence[str]) -> None:
    """Move into namespaces whose loopback has `addresses`; `folder` keeps what is mounted."""
    process.unshare(process.CLONE_NEWNET | process.CLONE_NEWNS)
    _run("mount", "--make-rprivate", "/")
    _run("ip", "link", "set", "lo", "up")
    for each in addresses:
        _run("ip", "address", "add", f"{each}/32", "dev", "lo")
    resolver = folder / "resolv.conf"
    resolver.write_text(f"nameserver {_RESOLVER[0]}\n", encoding="ascii")
    _run("mount", "--bind", str(resolver), os.path.realpath("/etc/resolv.conf"))
    own, known = folder / "authority.pem", folder / "authorities.crt"
    words = ("req", "-x509", *_NEW_KEY, "-days", "2", "-subj", "/CN=Authority of tests")
    _run("openssl", *words, "-keyout", str(folder / "authority.key"), "-out", str(own))
    known.write_bytes(AUTHORITIES.read_bytes() + own.read_bytes())
    _run("mount", "--bind", str(known), os.path.realpath(AUTHORITIES))


@contextlib.contextmanager
def serving(
    folder: Path, sites: Sequence[Site], domain: str, address: str, port: int
) -> Iterator[None]:
    """Serve the sites, the names, and `*.domain` at `address`, where TLS ends as at a proxy.

    What comes there goes on to `port` of loopback. `folder` is that of `enter`.
    """
    records = {f"*.{domain}": [address]}
    records |= {name: [site.address] for site in sites for name in site.names}
    with contextlib.ExitStack() as stack:
        stack.enter_context(NameServer(dict(records), _RESOLVER))
        for site in sites:
            stack.enter_context(_OneStatus(_context(folder, site.address, *site.names), site))
        stack.enter_context(_Front(_context(folder, address, f"*.{domain}"), address, port))
        yield


def _context(folder: Path, address: str, *names: str) -> ssl.SSLContext:
    """Return a server's context with a certificate of the authority for an address and names."""
    key, asked, made = (folder / f"{address}.{ending}" for ending in ("key", "csr", "pem"))
    listed = ",".join([f"IP:{address}", *(f"DNS:{name}" for name in names)])
    subject = ("-subj", f"/CN={address}", "-addext", f"subjectAltName={listed}")
    _run("openssl", "req", *_NEW_KEY, *subject, "-keyout", str(key), "-out", str(asked))
    by = ("-CA", str(folder / "authority.pem"), "-CAkey", str(folder / "authority.key"))
    what = ("-in", str(asked), "-out", str(made), "-copy_extensions", "copy", "-days", "2")
    _run("openssl", "x509", "-req", *by, *what)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    return context


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


class _OneStatus(WebServer):
    def __init__(self, tls: ssl.SSLContext, site: Site) -> None:
        super().__init__(tls, address=site.address, port=_HTTPS)
        self._status = site.status

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return the status, and nothing else."""
        return self._status, {}, b""


class _Front:
    """The end of TLS before a server on loopback; a context manager that serves by a thread."""

    def __init__(self, tls: ssl.SSLContext, address: str, port: int) -> None:
        self._tls, self._address, self._port = tls, address, port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        """Begin to serve."""
        self._thread.start()
        serving = asyncio.start_server(self._serve, self._address, _HTTPS, ssl=self._tls)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End, and with it every connection."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), contextlib.closing(writer):
            inner, outer = await asyncio.open_connection("127.0.0.1", self._port)
            with contextlib.closing(outer):
                ways = (_passed_on(reader, outer), _passed_on(inner, writer))
                tasks = [asyncio.ensure_future(each) for each in ways]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for each in tasks:
                    each.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


async def _passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes until its end."""
    while data := await reader.read(_PIECE):
        writer.write(data)
        await writer.drain()

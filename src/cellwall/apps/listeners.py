"""Listeners: the sockets that the server accepts connections on.

Made by `apps.serve`. The invariant: a unix socket is accessible to its owner only, and is removed
with the server.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from cellwall.server.core.settings import ServerSettings

_UNSENT_BYTES = 128 * 1024
"""Maximum bytes that the kernel holds for a client beyond those in flight; by default up to 4 MiB
for each client that does not read, and all of it is output that counts as delivered."""
_KEEP_ALIVE = {
    socket.TCP_KEEPIDLE: 10,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 25_000,
}
"""Socket options with which the kernel detects a vanished peer within 25 s. tcp(7)."""


def raise_descriptor_limit() -> None:
    """Permit this process as many open descriptors as its hard limit says."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def bound(settings: ServerSettings) -> socket.socket:
    """Return the bound socket; a unix socket is accessible to its owner only."""
    if settings.unix is not None:
        return _bound_unix(settings.unix)
    return bound_tcp(settings.host, settings.port, "give another --port or --host")


def bound_tcp(host: str, port: int, remedy: str) -> socket.socket:
    """Return a socket bound to a TCP port. Raises UsageError with `remedy`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():  # connections inherit them from their listener
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)  # inherited
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise UsageError(f"serve: bind {host}:{port}: {error.strerror}", remedy=remedy) from None
    return sock


def _bound_unix(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # `bind` reports it
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise UsageError(f"serve: {path} is not a socket", remedy="name another path")
        if _is_answered(path):
            raise UsageError(
                f"serve: another process listens at {path}", remedy="stop it, or name another path"
            )
        os.unlink(path)
    before = os.umask(0o177)
    try:
        sock.bind(path)
    except OSError as error:
        raise UsageError(
            # the library's own errors have no strerror
            f"serve: bind {path}: {error.strerror or error}",
            remedy="name a short path that you may write",
        ) from None
    finally:
        os.umask(before)
    return sock


def _is_answered(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def address_of(settings: ServerSettings, sock: socket.socket) -> str:
    """Return the address for a client: a URL, or the path of the socket."""
    if settings.unix is not None:
        return f"unix:{settings.unix}"
    return tcp_address_of(settings, sock)


def tcp_address_of(settings: ServerSettings, sock: socket.socket) -> str:
    """Return the URL of a TCP socket."""
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if settings.is_tls else 'http'}://{shown}:{port}"


@contextlib.contextmanager
def listening_on(settings: ServerSettings) -> Iterator[socket.socket]:
    """Yield the bound socket; close it at the end, and remove its file if it has one."""
    sock = bound(settings)
    try:
        yield sock
    finally:
        sock.close()
        if settings.unix is not None:
            with contextlib.suppress(OSError):
                os.unlink(settings.unix)


@contextlib.contextmanager
def listening_for_doors(settings: ServerSettings) -> Iterator[dict[str, socket.socket]]:
    """Yield the bound socket of each door that has a port of its own; close them at the end."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name, door in settings.doors.items():
            if door.port is not None:
                remedy = f"give another port in [doors.{name}]"
                sock = bound_tcp(settings.host, door.port, remedy)
                found[name] = stack.enter_context(sock)
        yield found

"""The sockets by which a sandbox reaches the outside: made in its namespace, held outside.

A socket belongs to the network namespace in which it was created, whichever process holds it. The
host opens these in the sandbox's namespace and hands them to the egress proxy, which has no
privilege and never enters the namespace itself.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from cellwall.linux.network import rules
from cellwall.linux.syscalls import process
from cellwall.linux.syscalls.libc import do_all

T = TypeVar("T")

DNS_PORT = 53
HTTP_PROXY_PORT = 3128
_IP_TRANSPARENT = 19
_IPV6_TRANSPARENT = 75
_BACKLOG = 128
_DISCARD_PORT = 9


class Listeners(NamedTuple):
    """Listening sockets of one sandbox; the owner closes them."""

    http_proxy: socket.socket
    """Connections of programs that use an HTTP proxy, at 127.0.0.1:3128."""
    dns: socket.socket
    """Datagrams to 127.0.0.1:53."""
    dns_tcp: socket.socket
    """Connections to 127.0.0.1:53."""
    transparent: socket.socket
    """TCP connections to any IPv4 address; getsockname(2) is the address that was dialled."""
    transparent_6: socket.socket | None
    """The same for IPv6; None where the kernel has none."""

    def sockets(self) -> list[socket.socket]:
        """Return those that there are, in this order."""
        return [each for each in self if each is not None]

    def close(self) -> None:
        """Close all of them."""
        for each in self.sockets():
            each.close()


_WANTED = (
    (socket.SOCK_STREAM, HTTP_PROXY_PORT),
    (socket.SOCK_DGRAM, DNS_PORT),
    (socket.SOCK_STREAM, DNS_PORT),
)
_TRANSPARENT = ("127.0.0.1", rules.TRANSPARENT_PORT)


def open_listeners() -> Listeners:
    """Put the rules and listeners into the calling thread's namespace. Raises OSError."""
    _leave_a_trace()
    rules.add()
    return bind_all("127.0.0.1")


def bind_all(address: str) -> Listeners:
    """Bind the listeners in the calling thread's namespace, at `address` where it matters.

    Raises OSError.
    """
    made: list[socket.socket] = []
    try:
        for kind, port in _WANTED:
            made.append(_bound(socket.AF_INET, kind, (address, port)))
        made.append(_bound(socket.AF_INET, socket.SOCK_STREAM, _TRANSPARENT, is_transparent=True))
        http_proxy, dns, dns_tcp, transparent = made
        return Listeners(http_proxy, dns, dns_tcp, transparent, _bound_6())
    except BaseException:
        for each in made:
            each.close()
        raise


def _bound_6() -> socket.socket | None:
    place = ("::1", rules.TRANSPARENT_PORT)
    try:
        return _bound(socket.AF_INET6, socket.SOCK_STREAM, place, is_transparent=True)
    except OSError as error:
        if rules.has_no_ipv6(error) or error.errno == errno.EADDRNOTAVAIL:
            return None
        raise


def _bound(
    family: int, kind: int, place: tuple[str, int], *, is_transparent: bool = False
) -> socket.socket:
    found = socket.socket(family, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        if is_transparent and family == socket.AF_INET:
            found.setsockopt(socket.IPPROTO_IP, _IP_TRANSPARENT, 1)
        elif is_transparent:
            found.setsockopt(socket.IPPROTO_IPV6, _IPV6_TRANSPARENT, 1)
        if kind == socket.SOCK_STREAM:
            # What a listener before it accepted may be there still, after the proxy has ended.
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # What it accepts ends on this machine; BBR, if it is the host's, would pace it. tcp(7)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        found.bind(place)
        if kind == socket.SOCK_STREAM:
            found.listen(_BACKLOG)
    except BaseException:
        found.close()
        raise
    return found


def _leave_a_trace() -> None:
    """Send one datagram to `lo`, so that the namespace's counters are never again those of new.

    SECURITY: a namespace with rules must not be lent to another sandbox, which has none. The
    fork-server lends one again only if not one packet was counted (`jail.fast.netns_reuse`).
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.sendto(b"", ("127.0.0.1", _DISCARD_PORT))


def call_in_namespace(
    namespace: int, job: Callable[[int], T], done: Callable[[T | BaseException], None]
) -> None:
    """Call `job` in a new thread that has entered the network namespace behind a descriptor.

    `job` gets a descriptor of that namespace, `done` the result or the exception, in that thread,
    which ends afterwards and never does anything else. Raises OSError if there is no descriptor
    left.

    SECURITY: the thread has a descriptor of its own, because a caller that gives up closes its own
    one, and the kernel gives the number out again, perhaps for another namespace.
    """
    held = os.dup(namespace)

    def run() -> None:
        try:
            do_all(process.prepare_join(held, process.CLONE_NEWNET))
            _check_left()
            result: T | BaseException = job(held)
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            result = error
        finally:
            os.close(held)
        done(result)

    threading.Thread(target=run, name="network-namespace", daemon=True).start()


def _check_left() -> None:
    """Raise PermissionError if this thread is in the network namespace of its process.

    SECURITY: the routes and rules of a way out would cut the host itself off.
    """
    ours, home = (os.stat(f"/proc/{name}/ns/net").st_ino for name in ("thread-self", "self"))
    if ours == home:
        number = errno.EPERM
        raise PermissionError(number, "enter the sandbox's network namespace: it is the engine's")


def namespace_of(pid: int) -> int:
    """Return a descriptor of the network namespace of a process. Raises OSError.

    The caller holds a pidfd and checks afterwards that the process is still that one.
    """
    return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)

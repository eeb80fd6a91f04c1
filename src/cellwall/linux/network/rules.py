"""The packet rules of a sandbox's network namespace that has a way out.

Every address is made local (`local default dev lo`), so that nothing can leave the namespace, which
has no other device: a connection to any address arrives at the transparent listener, which reads
the address that was dialled with getsockname(2). What is not TCP is refused at once, on the send.

    chain prerouting   tcp to anything but 127.0.0.0/8 and ::1  → tproxy to the listener, accept
    chain output       to 127.0.0.0/8, to ::1, and tcp          → accept; the rest → reject

The namespace belongs to the fork-server's user namespace, or the Docker daemon's: no process of the
sandbox has a capability over it. Sources: nft(8), ip-route(8), the kernel's tproxy.rst.
"""

from __future__ import annotations

import errno
import struct

from cellwall.linux.network import netlink

TRANSPARENT_PORT = 1
"""Port of the transparent listener; below 1024, so that no program inside can want it."""

_INET, _IPV4, _IPV6 = 1, 2, 10
_NEW_TABLE, _NEW_CHAIN, _NEW_RULE = 0, 3, 6
_PREROUTING, _INPUT, _OUTPUT = 0, 1, 3
_MANGLE, _FILTER = -150, 0
_TABLE = "cellwall"
_TCP = b"\x06"
_NFPROTO, _L4PROTO = 15, 16
_ACCEPT = 1
_ICMPX, _ADMIN_PROHIBITED = 2, b"\x03"
_LO = 1
"""Index of `lo`, the first device of every network namespace."""


def add() -> None:
    """Add the routes and rules in the calling thread's network namespace, unless they are there.

    Raises OSError with the step: ENOENT or EOPNOTSUPP if the kernel has no nf_tables or no tproxy.
    """
    try:
        netlink.transact(netlink.NETLINK_ROUTE, _ROUTE_4, 1, "route IPv4 to lo")
    except FileExistsError:
        return  # only the host can have added it; a step that failed later ended the sandbox
    try:
        netlink.transact(netlink.NETLINK_ROUTE, _ROUTE_6, 1, "route IPv6 to lo")
    except OSError as error:
        if not has_no_ipv6(error):
            raise
    netlink.transact(netlink.NETLINK_NETFILTER, _BATCH, _PARTS, "add nf_tables rules")


def has_no_ipv6(error: OSError) -> bool:
    """Whether the kernel has no IPv6, or it is switched off for this namespace."""
    return error.errno in (errno.EAFNOSUPPORT, errno.EOPNOTSUPP, errno.EACCES, errno.ENODEV)


def all_local(family: int, table: int) -> bytes:
    """Return the request for a route that makes every address local: `local default dev lo`."""
    static, scope_host, type_local = 4, 254, 2
    head = struct.pack("=8BI", family, 0, 0, 0, table, static, scope_host, type_local, 0)
    return netlink.new(netlink.NEW_ROUTE, head + netlink.attribute(4, struct.pack("=I", _LO)))


def _expression(name: str, *attributes: bytes) -> bytes:
    return netlink.nested(1, netlink.text(1, name), netlink.nested(2, *attributes))


def _meta(key: int) -> bytes:
    return _expression("meta", netlink.be32(1, 1), netlink.be32(2, key))


def _destination(offset: int, length: int) -> bytes:
    network_header = 1
    fields = (1, network_header, offset, length)
    return _expression("payload", *(netlink.be32(n, v) for n, v in enumerate(fields, 1)))


def _compare(value: bytes, *, is_equal: bool = True) -> bytes:
    data = netlink.nested(3, netlink.attribute(1, value))
    return _expression("cmp", netlink.be32(1, 1), netlink.be32(2, 0 if is_equal else 1), data)


def _load(register: int, value: bytes) -> bytes:
    data = netlink.nested(2, netlink.attribute(1, value))
    return _expression("immediate", netlink.be32(1, register), data)


def _accept() -> bytes:
    verdict = netlink.nested(2, netlink.nested(2, netlink.be32(1, _ACCEPT)))
    return _expression("immediate", netlink.be32(1, 0), verdict)


def _to_listener(family: int, address: bytes) -> tuple[bytes, ...]:
    fields = (family, 1, 2)
    tproxy = _expression("tproxy", *(netlink.be32(n, v) for n, v in enumerate(fields, 1)))
    port = struct.pack(">H", TRANSPARENT_PORT)
    return _load(1, address), _load(2, port), tproxy, _accept()


def _is_local(family: int, *, is_equal: bool = True) -> tuple[bytes, ...]:
    """Match packets of `family` to the namespace's own addresses, or to any other."""
    head = (_meta(_NFPROTO), _compare(bytes([family])))
    if family == _IPV4:  # the first byte of an address in 127.0.0.0/8
        return (*head, _destination(16, 1), _compare(b"\x7f", is_equal=is_equal))
    return (*head, _destination(24, 16), _compare(bytes(15) + b"\1", is_equal=is_equal))


_IS_TCP = (_meta(_L4PROTO), _compare(_TCP))
_REJECT = _expression("reject", netlink.be32(1, _ICMPX), netlink.attribute(2, _ADMIN_PROHIBITED))


def _chain(name: str, hook: int, priority: int) -> tuple[int, int, bytes]:
    place = netlink.nested(4, netlink.be32(1, hook), netlink.be32(2, priority))
    names = netlink.text(1, _TABLE) + netlink.text(3, name)
    return _NEW_CHAIN, _INET, names + place + netlink.text(7, "filter")


def _rule(chain: str, *expressions: bytes) -> tuple[int, int, bytes]:
    names = netlink.text(1, _TABLE) + netlink.text(2, chain)
    return _NEW_RULE, _INET, names + netlink.nested(4, *expressions)


def _parts() -> tuple[tuple[int, int, bytes], ...]:
    four, six = bytes([127, 0, 0, 1]), bytes(15) + b"\1"
    away_4, away_6 = _is_local(_IPV4, is_equal=False), _is_local(_IPV6, is_equal=False)
    return (
        (_NEW_TABLE, _INET, netlink.text(1, _TABLE)),
        _chain("prerouting", _PREROUTING, _MANGLE),
        _rule("prerouting", *away_4, *_IS_TCP, *_to_listener(_IPV4, four)),
        _rule("prerouting", *away_6, *_IS_TCP, *_to_listener(_IPV6, six)),
        _chain("output", _OUTPUT, _FILTER),
        _rule("output", *_is_local(_IPV4), _accept()),
        _rule("output", *_is_local(_IPV6), _accept()),
        _rule("output", *_IS_TCP, _accept()),
        _rule("output", _REJECT),
    )


_ROUTE_4, _ROUTE_6 = all_local(2, 255), all_local(10, 255)
_PARTS = len(_parts())
_BATCH = netlink.nf_tables_batch(_parts())


def add_behind_a_pair(address: bytes) -> None:
    """Add the packet rules of a namespace that serves another one through a pair of devices.

    `address` is its own IPv4 address, of which only TCP and the DNS are answered. Raises OSError.
    """
    to_own = (_meta(_NFPROTO), _compare(bytes([_IPV4])), _destination(16, 4), _compare(address))
    udp, dns = b"\x11", struct.pack(">H", 53)
    is_dns = (_meta(_L4PROTO), _compare(udp), _port(), _compare(dns))
    four = bytes([127, 0, 0, 1])
    parts = (
        (_NEW_TABLE, _INET, netlink.text(1, _TABLE)),
        _chain("prerouting", _PREROUTING, _MANGLE),
        _rule("prerouting", *to_own, _accept()),
        _rule(
            "prerouting",
            *_is_local(_IPV4, is_equal=False),
            *_IS_TCP,
            *_to_listener(_IPV4, four),
        ),
        _chain("input", _INPUT, _FILTER),
        _rule("input", *_IS_TCP, _accept()),
        _rule("input", *to_own, *is_dns, _accept()),
        _rule("input", _REJECT),
    )
    batch = netlink.nf_tables_batch(parts)
    netlink.transact(netlink.NETLINK_NETFILTER, batch, len(parts), "add nf_tables rules")


def _port() -> bytes:
    transport_header = 2
    fields = (1, transport_header, 2, 2)
    return _expression("payload", *(netlink.be32(n, v) for n, v in enumerate(fields, 1)))

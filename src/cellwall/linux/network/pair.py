"""A way out for a sandbox whose own kernel has a network stack: a pair of devices.

gVisor takes over the devices of the namespace that it starts in, so listeners there would serve
nothing. The host makes a second namespace instead, joined to the first by a pair of veth devices:
what the sandbox sends arrives there, is led to the listeners, and goes no further. The second
namespace lives as long as the listeners and its descriptor do, and the pair with it.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple

from cellwall.linux.network import listeners, netlink, rules
from cellwall.linux.syscalls import process
from cellwall.linux.syscalls.libc import do_all

OUTER, INNER = "198.19.255.1", "198.19.255.2"
"""Addresses of the two ends. The outer one is the sandbox's gateway and name server; both are of
the range that is on no network (RFC 2544), above the addresses made up for names."""
_PREFIX = 30
_TABLE = 100
_DEVICE_OUTER, _DEVICE_INNER = "cellwall0", "eth0"


class Pair(NamedTuple):
    """The second namespace and the listeners in it; the owner closes both."""

    namespace: int
    listeners: listeners.Listeners

    def close(self) -> None:
        """Close both."""
        self.listeners.close()
        os.close(self.namespace)


def connect(inner: int) -> Pair:
    """Join a new namespace to the one behind the descriptor `inner`. Raises OSError.

    Called in a thread of its own, which it leaves in the new namespace.
    """
    process.unshare(process.CLONE_NEWNET)
    process.loopback_up()
    outer = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _route(_pair(inner), "make a pair of devices")
        _configure(_DEVICE_OUTER, OUTER)
        _route(_rule(), "route by device")
        _route(rules.all_local(socket.AF_INET, _TABLE), "route to the listeners")
        rules.add_behind_a_pair(socket.inet_aton(OUTER))
        do_all(process.prepare_join(inner, process.CLONE_NEWNET))
        process.loopback_up()
        _configure(_DEVICE_INNER, INNER)
        _route(_default_route(), "route to the outer end")
        do_all(process.prepare_join(outer, process.CLONE_NEWNET))
        return Pair(outer, open_again())
    except BaseException:
        os.close(outer)
        raise


def open_again() -> listeners.Listeners:
    """Open the listeners in the calling thread's namespace, made by `connect`. Raises OSError."""
    return listeners.bind_all(OUTER)


def _route(request: bytes, step: str) -> None:
    netlink.transact(netlink.NETLINK_ROUTE, request, 1, step)


def _pair(inner: int) -> bytes:
    any_device = struct.pack("=BxHiII", 0, 0, 0, 0, 0)
    place = netlink.attribute(28, struct.pack("=I", inner))
    peer = any_device + netlink.text(3, _DEVICE_INNER) + place
    data = netlink.nested(2, netlink.attribute(1 | netlink.NESTED, peer))
    kind = netlink.nested(18, netlink.text(1, "veth"), data)
    return netlink.new(netlink.NEW_LINK, any_device + netlink.text(3, _DEVICE_OUTER) + kind)


def _configure(device: str, address: str) -> None:
    """Give a device of this namespace its address, and bring it up."""
    index = socket.if_nametoindex(device)
    packed = socket.inet_aton(address)
    head = struct.pack("=4BI", socket.AF_INET, _PREFIX, 0, 0, index)
    both = netlink.attribute(2, packed) + netlink.attribute(1, packed)
    _route(netlink.new(netlink.NEW_ADDRESS, head + both), f"address of {device}")
    up = struct.pack("=BxHiII", 0, 0, index, 1, 1)
    _route(netlink.new(netlink.NEW_LINK, up, exists=True), f"bring {device} up")


def _rule() -> bytes:
    to_table = 1
    head = struct.pack("=8BI", socket.AF_INET, 0, 0, 0, _TABLE, 0, 0, to_table, 0)
    priority = netlink.attribute(6, struct.pack("=I", 1))
    return netlink.new(netlink.NEW_RULE, head + netlink.text(3, _DEVICE_OUTER) + priority)


def _default_route() -> bytes:
    main, static, everywhere, unicast = 254, 4, 0, 1
    head = struct.pack("=8BI", socket.AF_INET, 0, 0, 0, main, static, everywhere, unicast, 0)
    gateway = netlink.attribute(5, socket.inet_aton(OUTER))
    return netlink.new(netlink.NEW_ROUTE, head + gateway)

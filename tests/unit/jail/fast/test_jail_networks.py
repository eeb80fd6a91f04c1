"""Network namespaces that are lent again, against the kernel: each trace takes one out of use.

Runs in a forked child with namespaces of its own. The control is the first of `TRACES`: whoever
does nothing, or leaves nothing, leaves a namespace that the next one gets.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import signal
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from cellwall.jail.fast import netns_reuse
from cellwall.linux.syscalls import process
from cellwall.linux.syscalls.libc import SyscallError
from conftest import Require
from kit.jail import forked

_OWN = process.CLONE_NEWUSER | process.CLONE_NEWNET
_FLOW_LABEL_MANAGER = 32
Work = Callable[[], None]


@pytest.fixture(autouse=True)
def _own_namespaces(require: Require) -> None:
    refusal = forked.run(lambda: process.unshare(_OWN)).trace
    require("namespaces", not refusal, refusal)


def _nothing() -> None:
    """Leave."""


def _bind_and_close() -> None:
    with socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_INET6) as other:
        other.bind(("::1", 0))


def _name_in_the_abstract() -> None:
    socket.socket(socket.AF_UNIX).bind("\0mine")


def _be_refused() -> None:
    with socket.socket() as caller, contextlib.suppress(ConnectionRefusedError):
        caller.connect(("127.0.0.1", 9))


def _send_on_loopback() -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"a word", ("::1", 9))


def _send_where_no_way_leads() -> None:
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender, contextlib.suppress(OSError):
        sender.sendto(b"a word", ("192.0.2.1", 9))


def _close_first() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        caller = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        caller.close()  # in TIME_WAIT from here on
        accepted.close()


def _label_a_flow() -> None:
    """It lingers for a minute after its socket; linux/in6.h, `struct in6_flowlabel_req`."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as owner:
        where = socket.inet_pton(socket.AF_INET6, "::1") + struct.pack("!I", 0x12345)
        asked = where + struct.pack("=BBHHHI", 0, 1, 1, 0, 60, 0)
        owner.setsockopt(socket.IPPROTO_IPV6, _FLOW_LABEL_MANAGER, asked)


TRACES: dict[str, tuple[Work, bool]] = {
    "nothing": (_nothing, True),
    "sockets that only were": (_bind_and_close, True),
    "an abstract name": (_name_in_the_abstract, True),
    "a refused call": (_be_refused, False),
    "a datagram": (_send_on_loopback, False),
    "a datagram to nowhere": (_send_where_no_way_leads, False),
    "TIME_WAIT": (_close_first, False),
    "a flow label": (_label_a_flow, False),
}


def _here() -> int:
    return os.stat("/proc/self/ns/net").st_ino


def _inhabitant(work: Work) -> int:
    """Fork one that does its work and ends; its pidfd. The kernel reaps it.

    From here on it dies with its parent: one that asks for that too late would outlive it, and hold
    the pipe on which the test waits.
    """
    waits, goes = os.pipe()
    hears, dies_with_us = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            process.do(process.prepare_parent_death_signal(signal.SIGKILL))
            os.write(dies_with_us, b"!")
            os.read(waits, 1)
            work()
        finally:
            os._exit(0)
    pidfd = os.pidfd_open(pid)
    os.close(dies_with_us)
    assert os.read(hears, 1)
    os.write(goes, b"!")
    for end in (waits, goes, hears):
        os.close(end)
    return pidfd


def _networks() -> netns_reuse.Networks:
    process.unshare(_OWN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    return netns_reuse.Networks()


def _lend(nets: netns_reuse.Networks, work: Work, *, is_ended: bool = True) -> int:
    """Where one was lent to somebody; we wait for his end."""
    nets.enter()
    place = _here()
    pidfd = _inhabitant(work)
    nets.lend(pidfd)
    nets.leave()
    if is_ended:
        assert select.select([pidfd], [], [], 30)[0]
    os.close(pidfd)
    return place


@pytest.mark.parametrize("trace", TRACES)
def test_network_is_lent_again_if_nobody_left_a_trace(trace: str) -> None:
    work, is_lent_again = TRACES[trace]

    def both() -> tuple[bool, bool]:
        nets = _networks()
        first = _lend(nets, work)
        made: list[int] = []
        real = process.unshare

        def counted(flags: int) -> None:
            made.append(flags)
            real(flags)

        process.unshare = counted
        second = _lend(nets, _nothing)
        # The number of one that was cleared away may come again; who was made is counted.
        return not made, first == second

    is_kept, is_same = forked.answer(both)
    assert is_kept is is_lent_again
    assert is_same or not is_kept


def test_network_of_a_living_sandbox_is_lent_to_nobody_else() -> None:
    def several() -> list[int]:
        nets = _networks()
        waits = [
            _lend(nets, signal.pause, is_ended=False) for _ in range(netns_reuse.MOST_KEPT + 3)
        ]
        assert not [pidfd for pidfd, _ in nets._poller.poll(0)]
        return waits

    places = forked.answer(several)
    assert len(set(places)) == netns_reuse.MOST_KEPT + 3


def test_socket_somebody_else_holds_is_a_trace() -> None:
    def held() -> bool:
        nets = _networks()
        ours, theirs = socket.socketpair()

        def hand_over() -> None:
            listener = socket.socket(socket.AF_UNIX)
            numbers = array.array("i", [listener.fileno()])
            theirs.sendmsg([b"!"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])

        first = _lend(nets, hand_over)  # the socket lies in the queue of ours
        second = _lend(nets, _nothing)
        return first != second and bool(ours)

    assert forked.answer(held)


def test_no_more_than_the_latest_are_kept_and_home_is_where_it_was() -> None:
    def many() -> dict[str, Any]:
        nets = _networks()
        home = _here()
        _lend(nets, _nothing)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            _lend(nets, _nothing)
        again = len(os.listdir("/proc/self/fd"))
        for _ in range(3 * netns_reuse.MOST_KEPT):
            _lend(nets, signal.pause, is_ended=False)
        return {
            "same": before == again,
            "kept": len(nets._lent),
            "descriptors": len(os.listdir("/proc/self/fd")) - before,
            "home": home == _here(),
        }

    found = forked.answer(many)
    assert found["same"]
    assert found["home"]
    assert found["kept"] == netns_reuse.MOST_KEPT
    assert found["descriptors"] == 8 * (netns_reuse.MOST_KEPT - 1)


def test_one_that_was_lent_to_nobody_is_given_back() -> None:
    def unlent() -> list[int]:
        nets = _networks()
        counts = []
        for _ in range(3):
            nets.enter()
            nets.leave()
            counts.append(len(os.listdir("/proc/self/fd")))
        return counts

    assert len(set(forked.answer(unlent))) == 1


def test_kernel_that_says_too_little_has_a_new_one_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(netns_reuse, "_COUNTED", "sockstat-of-another-kernel")

    def twice() -> tuple[int, int]:
        nets = _networks()
        before = len(os.listdir("/proc/self/fd"))
        places = [_lend(nets, _nothing) for _ in range(2)]
        assert home not in places
        return len(nets._lent), len(os.listdir("/proc/self/fd")) - before

    home = _here()
    assert forked.answer(twice) == [0, 0]


def test_connections_inside_are_not_paced_as_for_a_real_network() -> None:
    """Whatever congestion control the host has; BBR leaves a stream a third of the rate."""

    def chosen() -> tuple[str, str]:
        nets = _networks()
        nets.enter()
        with socket.create_server(("127.0.0.1", 0)) as server:
            caller = socket.create_connection(server.getsockname())
            accepted, _ = server.accept()
            with caller, accepted:
                return _congestion_control(caller), _congestion_control(accepted)

    assert forked.answer(chosen) == ["reno", "reno"]


def _congestion_control(held: socket.socket) -> str:
    return held.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


def test_no_more_namespaces_is_an_error_at_home() -> None:
    def refused() -> bool:
        nets = _networks()
        home = _here()

        def no_more(flags: int) -> None:
            raise SyscallError(28, f"unshare flags={flags:#x}")

        real, process.unshare = process.unshare, no_more
        try:
            nets.enter()
        except OSError as error:
            return error.errno == 28 and _here() == home
        finally:
            process.unshare = real
        return False

    assert forked.answer(refused)


def test_no_word_of_a_last_group_comes_in_the_next_ones_time() -> None:
    """A group that is left at a sandbox's end is spoken of again: a day later."""

    def look() -> list[str]:
        process.unshare(_OWN)
        made = netns_reuse.Networks()
        made.enter()
        return [open(f"/proc/sys/net/{name}").read() for name in netns_reuse._REPORTS]

    assert forked.answer(look) == ["86400000\n"] * 2


def test_counts_of_the_machine_are_roots_alone() -> None:
    """The control is a namespace that this module has not seen."""

    def modes() -> list[int]:
        return [os.stat(f"/proc/self/net/{name}").st_mode & 0o777 for name in ("sockstat", "stat")]

    def look() -> list[list[int]]:
        process.unshare(_OWN)
        before = modes()
        netns_reuse.Networks().enter()
        return [before, modes()]

    assert forked.answer(look) == [[0o444, 0o555], [0o400, 0o500]]

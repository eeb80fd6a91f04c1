"""A way out is put into a sandbox's namespace and never into the engine's own."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from cellwall.linux.network import listeners
from cellwall.linux.syscalls import process
from cellwall.linux.trial import trial

pytestmark = pytest.mark.root


def _called(namespace: int) -> object:
    """Open the listeners in a namespace by a thread; what came of it."""
    ended, found = threading.Event(), list[object]()

    def done(result: object) -> None:
        found.append(result)
        ended.set()

    listeners.call_in_namespace(namespace, lambda _: listeners.open_listeners(), done)
    assert ended.wait(20)
    return found[0]


def _in_a_namespace_of_its_own() -> None:
    """In a throw-away process: what is tried by mistake here reaches nothing else."""
    process.unshare(process.CLONE_NEWNET)
    process.loopback_up()
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    refused = _called(own)
    if not isinstance(refused, PermissionError):
        raise RuntimeError(f"the process's own namespace got a way out: {refused}")
    with socket.socket() as held:
        if held.connect_ex(("192.0.2.1", 80)) != 101:
            raise RuntimeError("it has a route")
    process.unshare(process.CLONE_NEWNET)  # the control: the one before is another one's now
    opened = _called(own)
    if not isinstance(opened, listeners.Listeners):
        raise RuntimeError(f"another namespace got none: {opened}")
    for each in (opened.http_proxy, opened.dns_tcp, opened.transparent):
        chosen = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
        if chosen != b"reno":
            raise RuntimeError(f"connections to {each.getsockname()} are paced by {chosen!r}")


def test_the_engines_own_namespace_gets_no_way_out() -> None:
    assert trial(_in_a_namespace_of_its_own) == ""


def test_the_thread_has_a_descriptor_of_its_own() -> None:
    """The caller's is closed before the thread does anything with it."""

    def work() -> None:
        process.unshare(process.CLONE_NEWNET)
        there = os.open("/proc/self/ns/net", os.O_RDONLY)
        inode = os.fstat(there).st_ino
        process.unshare(process.CLONE_NEWNET)
        closed, ended, found = threading.Event(), threading.Event(), list[object]()

        def job(held: int) -> int:
            if not closed.wait(20):
                raise RuntimeError("it waited for nothing")
            return os.fstat(held).st_ino

        def done(result: object) -> None:
            found.append(result)
            ended.set()

        listeners.call_in_namespace(there, job, done)
        os.close(there)
        closed.set()
        if not ended.wait(20) or found != [inode]:
            raise RuntimeError(f"{found} instead of {inode}")

    assert trial(work) == ""

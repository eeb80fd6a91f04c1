"""A child that somebody kills while it is being made: that is no lack of the host's."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellwall.jail.fast import netns_reuse
from cellwall.jail.processes import forkserver
from cellwall.jail.protocol import fds


class _Cloner:
    """Makes a child that waits to be killed."""

    pidfd = -1

    def clone(self) -> int:
        pid = os.fork()
        if pid == 0:
            signal.pause()
            os._exit(0)
        self.pidfd = os.pidfd_open(pid)
        return pid


class _NoNetworks(netns_reuse.Networks):
    """This process stays where it is; what is tested comes after."""

    def __init__(self) -> None:
        """Hold nothing."""

    def enter(self) -> None:
        """Stay."""

    def lend(self, pidfd: int) -> None:
        """Keep nothing."""

    def leave(self) -> None:
        """Stay."""


@pytest.mark.parametrize(("dies_after_s", "number"), [(0.05, errno.ESRCH), (None, errno.EACCES)])
def test_files_of_one_that_is_dying_are_no_lack_of_the_hosts(
    monkeypatch: pytest.MonkeyPatch, dies_after_s: float | None, number: int
) -> None:
    """They are root's before its pidfd says that it is dead. The control: it lives."""
    children: list[int] = []

    def refuse(_root: int, pid: int, _uid: int) -> None:
        children.append(pid)
        if dies_after_s is not None:
            threading.Timer(dies_after_s, os.kill, (pid, signal.SIGKILL)).start()
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(forkserver, "_write_maps", refuse)
    monkeypatch.setattr(forkserver, "_DYING_S", 5.0 if dies_after_s else 0.05)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel, other = socket.socketpair()
    worker = cast("Any", SimpleNamespace(cloner=_Cloner(), root_id=0))
    request = cast("Any", SimpleNamespace(has_image=False, mounts=0, has_standby=False))
    forkserver._spawn(worker, theirs, _NoNetworks(), 1, request, [channel.detach()])
    answer, _ = fds.receive_message(ours)
    assert answer["errno"] == number
    assert os.waitpid(children[0], 0)[1] == signal.SIGKILL  # either way it is gone
    for each in (ours, theirs, other):
        each.close()

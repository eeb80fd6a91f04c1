"""What the kernel counts for a user of the host: one sandbox must not take it from all others.

inotify instances stand for the rest: few, easily taken, and missed by everybody. The witnesses are
a second sandbox and this process. Controls: with one wall dropped the neighbour gets nothing, with
both the host does not either; they last as long as a call does.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from cellwall import Engine, EngineSettings
from cellwall.jail.plan.plan import OWN_COUNTS
from conftest import Require
from kit.attack.mutations import Drop, dropping

pytestmark = [pytest.mark.attack, pytest.mark.alone, pytest.mark.root]

_ON_HOST = Path("/proc/sys/fs/inotify/max_user_instances")
_LIMITS = {"open_files": 2048}
_TAKE_ALL = """
import ctypes
libc, taken = ctypes.CDLL(None, use_errno=True), 0
while libc.inotify_init1(0o2000000) >= 0:
    taken += 1
print(taken, ctypes.get_errno())
"""
_TAKE_ONE = "import ctypes; print(ctypes.CDLL(None).inotify_init1(0o2000000) >= 0)"

NO_WALL_OF_ITS_OWN = {"plan": "OWN_COUNTS = ()"}
NO_WALL_OF_THE_ENGINE = {"boot": "def _have_others_charged(config): pass"}


class Seen(NamedTuple):
    """How many one sandbox took, why it got no more, and who still got one."""

    taken: int
    errno: int
    neighbour: bool
    host: bool


@pytest.fixture
def drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, require: Require) -> Drop:
    allowed = int(_ON_HOST.read_text(encoding="ascii"))
    fits = 64 <= allowed <= 1500
    require("few inotify instances", fits, f"set {_ON_HOST} to 128; it is {allowed}")
    return dropping(tmp_path, monkeypatch)


def _host_gets_one() -> bool:
    fd = ctypes.CDLL(None).inotify_init1(os.O_CLOEXEC)
    if fd >= 0:
        os.close(fd)
    return bool(fd >= 0)


def _while_one_takes_all() -> Seen:
    async def scene() -> Seen:
        engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
        try:
            assert _host_gets_one()
            hog = await engine.create_sandbox(limits=_LIMITS)
            # Its neighbour is there already, so that the host is without for moments only.
            neighbour = await engine.create_sandbox()
            taken = await hog.run(_TAKE_ALL)
            host = _host_gets_one()
            other = await neighbour.run(_TAKE_ONE)
            await hog.close()
            await engine.wait_settled()
            assert _host_gets_one()
            count, code = map(int, taken.stdout.split())
            return Seen(count, code, other.stdout == "True\n", host)
        finally:
            await engine.aclose()

    return asyncio.run(scene())


def test_inotify_instances_of_others_are_left_alone(drop: Drop) -> None:
    drop()
    most = dict(OWN_COUNTS)["max_inotify_instances"]
    assert _while_one_takes_all() == Seen(most, errno.EMFILE, neighbour=True, host=True)


def test_neighbour_gets_none_where_a_sandbox_has_no_limit_of_its_own(drop: Drop) -> None:
    """The control of the first wall; the second one still keeps the host's."""
    drop(**NO_WALL_OF_ITS_OWN)
    allowed = int(_ON_HOST.read_text(encoding="ascii"))
    assert _while_one_takes_all() == Seen(allowed, errno.EMFILE, neighbour=False, host=True)


def test_host_gets_none_where_its_root_is_charged_as_well(drop: Drop) -> None:
    """The control of the second wall."""
    drop(**NO_WALL_OF_ITS_OWN, **NO_WALL_OF_THE_ENGINE)
    seen = _while_one_takes_all()
    assert (seen.errno, seen.neighbour, seen.host) == (errno.EMFILE, False, False)


_WATCH_MANY = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
fd, made = libc.inotify_init1(0), 0
while made < 9000:
    os.mkdir(f"d{made}")
    if libc.inotify_add_watch(fd, f"d{made}".encode(), 2) < 0:
        break
    made += 1
print(made, ctypes.get_errno())
"""


def _run(code: str) -> str:
    async def once() -> str:
        engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
        try:
            return (await engine.run(code)).stdout
        finally:
            await engine.aclose()

    return asyncio.run(once())


def test_inotify_watches_have_an_end(drop: Drop) -> None:
    drop()
    most = dict(OWN_COUNTS)["max_inotify_watches"]
    assert _run(_WATCH_MANY) == f"{most} {errno.ENOSPC}\n"
    drop(**NO_WALL_OF_ITS_OWN)
    assert _run(_WATCH_MANY) == "9000 0\n"


ALLOW_ALL = """
def filter_syscalls(program):
    return (seccomp.prepare(b"\\x06\\0\\0\\0\\0\\0\\xff\\x7f"),)
"""
PIVOTED = """
import ctypes as _ctypes
from cellwall.linux.syscalls.libc import LIBC as _LIBC, Prepared as _Prepared
def _call(number, *words):
    return _Prepared(_LIBC.syscall, (_ctypes.c_long(number), *words), "pivot")
def _pivoted(self, root):
    there = _Prepared(_LIBC.chdir, ((root + self.path).encode(),), "chdir")
    swap, detach = _call(155, b".", b"."), _call(166, b".", _ctypes.c_long(2))
    return there, swap, detach, _Prepared(_LIBC.chdir, (b"/",), "chdir /")
Enter.prepared = _pivoted
"""
"""pivot_root(2) and umount2(2) for chroot(2), behind which the kernel makes no user namespace."""
_UNSHARE = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.unshare(0x10000000), ctypes.get_errno())
"""


def test_no_user_namespace_is_made_without_the_filter_either(drop: Drop) -> None:
    drop(lockdown=ALLOW_ALL)
    assert _run(_UNSHARE) == f"-1 {errno.ENOSPC}\n"
    drop(lockdown=ALLOW_ALL, **NO_WALL_OF_ITS_OWN)
    assert _run(_UNSHARE) == f"-1 {errno.EPERM}\n"
    drop(lockdown=ALLOW_ALL, steps=PIVOTED)
    assert _run(_UNSHARE) == f"-1 {errno.ENOSPC}\n"
    drop(lockdown=ALLOW_ALL, steps=PIVOTED, **NO_WALL_OF_ITS_OWN)
    assert _run(_UNSHARE) == "0 0\n"

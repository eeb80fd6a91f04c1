"""Group J: disk and kernel objects. Each kind of object ends at a limit; the engine keeps its own.

The control is the same bounded program under a raised limit.
"""

from __future__ import annotations

import os
import pty
from pathlib import Path

import pytest

from cellwall import Verdict
from kit.arena import LIMITS, Arena

pytestmark = pytest.mark.attack

_WRITE = """
with open("{where}/fill", "wb") as f:
    for _ in range(48): f.write(bytes(1 << 20))
print("REACHED", flush=True)
"""
_MAKE = """
import os
for n in range(2000): os.close(os.open(f"{where}/{{n}}", os.O_CREAT | os.O_WRONLY))
print("REACHED", flush=True)
"""
_TOP = "import os\nos.makedirs('/mnt/invented')\n"
"""The user may make whatever directory; what lies there counts as the rest."""
_FILLERS = [
    pytest.param(_WRITE.format(where="."), {"disk_mb": 32}, id="J01"),
    pytest.param(_WRITE.format(where="/tmp"), {"disk_mb": 32}, id="J01-tmp"),
    pytest.param(_WRITE.format(where="/dev/shm"), {"disk_mb": 32}, id="J01-shm"),
    pytest.param(_TOP + _WRITE.format(where="/mnt/invented"), {"disk_mb": 32}, id="J01-top"),
    pytest.param(_MAKE.format(where="."), {"inodes": 1000}, id="J02"),
    pytest.param(_TOP + _MAKE.format(where="/mnt/invented"), {"inodes": 1000}, id="J02-top"),
    pytest.param(_MAKE.format(where="/dev/shm"), {"inodes": 1000}, id="J10"),
]


@pytest.mark.parametrize(("code", "limits"), _FILLERS)
def test_filling_the_work_area_is_ended_by_the_disk_limit(
    arena: Arena, code: str, limits: dict[str, int]
) -> None:
    with arena.leaving_nothing():
        ended = arena.beside(code, limits=limits)
    assert (ended.verdict, "REACHED" in ended.stdout) == (Verdict.DISK, False), ended
    assert "limits.disk_mb" in ended.outcome.notes[0]


@pytest.mark.parametrize(("code", "limits"), _FILLERS)
def test_filling_the_work_area_succeeds_under_a_raised_limit(
    arena: Arena, code: str, limits: dict[str, int]
) -> None:
    reached = arena.run(code, limits={name: 4 * value for name, value in limits.items()})
    assert (reached.verdict, "REACHED" in reached.stdout) == (Verdict.OK, True), reached


_UNLINKED = """
import os
fd = os.open("gone", os.O_CREAT | os.O_RDWR)
os.unlink("gone")
size = 0
try:
    while size < 200 << 20: size += os.write(fd, bytes(1 << 20))
except OSError as error:
    print(error.errno, size >> 20, flush=True)
"""


@pytest.mark.parametrize("case", ["J03"])
def test_unlinked_file_stops_growing_at_the_disk_limit(arena: Arena, case: str) -> None:
    def end(disk_mb: int) -> list[int]:
        limits = {"disk_mb": disk_mb, "memory_mb": 256, "file_mb": 128}
        return [int(word) for word in arena.run(_UNLINKED, limits=limits).stdout.split()[1:]]

    small, large = end(32), end(96)
    assert small[0] == large[0] == 28  # ENOSPC
    assert 16 <= small[1] <= 32 < 48 <= large[1] <= 96


def _flood(setup: str, call: str) -> str:
    return (
        f"import os, ctypes, resource, select, socket\n{setup}\nheld = []\n"
        f"try:\n    for _ in range(2000): held.append({call})\n    print('REACHED', flush=True)\n"
        "except OSError as error:\n    print(error.errno, len(held), flush=True)\n"
    )


_LIBC = (
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    "def made(fd):\n    if fd < 0: raise OSError(ctypes.get_errno(), 'refused')\n    return fd"
)
_FLOODS = [
    pytest.param(_flood("", "os.open('/dev/null', os.O_RDONLY)"), id="J05"),
    pytest.param(_flood("", "select.epoll()"), id="J07-epoll"),
    pytest.param(_flood(_LIBC, "made(libc.eventfd(0, 0))"), id="J07-eventfd"),
    pytest.param(_flood(_LIBC, "made(libc.timerfd_create(1, 0))"), id="J07-timerfd"),
    pytest.param(_flood("", "os.pipe()"), id="J07-pipe"),
    pytest.param(_flood("", "socket.socketpair()"), id="J07-socketpair"),
]


@pytest.mark.parametrize("code", _FLOODS)
def test_descriptor_flood_is_refused_at_the_limit(arena: Arena, code: str) -> None:
    with arena.leaving_nothing():
        ended = arena.beside(code, limits={"open_files": 128})
        mine = os.open("/dev/null", os.O_RDONLY)  # the engine's side still opens its own
        os.close(mine)
    errno, count = (int(word) for word in ended.stdout.split()[1:])
    assert (ended.verdict, errno) == (Verdict.OK, 24), ended  # EMFILE
    assert count < 128
    raised = arena.run(code, limits={"open_files": 8192, "memory_mb": 512})
    assert "REACHED" in raised.stdout, raised


# Each pair lies in a queue of its own, and so in nobody's hands; one more queue keeps them alive.
_RINGS = """
import socket
first, keeper = socket.socketpair()
sent = 0
try:
    for _ in range(150):
        batch = []
        for _ in range(20):
            a, b = socket.socketpair()
            socket.send_fds(a, [b"x"], [a.fileno(), b.fileno()])
            a.close()
            batch.append(b)
            sent += 2
        socket.send_fds(first, [b"x"], [b.fileno() for b in batch])
        [b.close() for b in batch]
        sent += 20
    print("REACHED", flush=True)
except OSError as error:
    print(error.errno, sent, flush=True)
"""


def _open_files_of_the_host() -> int:
    return int(Path("/proc/sys/fs/file-nr").read_text().split()[0])


@pytest.mark.parametrize("case", ["E18"])
def test_sockets_that_hold_each_other_end_at_the_descriptor_limit(arena: Arena, case: str) -> None:
    arena.settle()
    before = _open_files_of_the_host()
    with arena.leaving_nothing():
        ended = arena.beside(_RINGS, limits={"open_files": 128})
    errno, sent = (int(word) for word in ended.stdout.split()[1:])
    assert (ended.verdict, errno) == (Verdict.OK, 109), ended  # ETOOMANYREFS
    assert 100 < sent < 200
    raised = arena.run(_RINGS, limits={"open_files": 16_384, "memory_mb": 512})
    assert "REACHED" in raised.stdout, raised
    # The kernel collects rings some time after their keeper has ended. 6,000 sockets were open.
    settled = (arena.run("0").ok and _open_files_of_the_host() < before + 4000 for _ in range(100))
    assert any(settled)


_PTYS = _flood("import pty", "pty.openpty()")


@pytest.mark.parametrize("case", ["J12"])
def test_pty_flood_leaves_the_host_its_own(arena: Arena, case: str) -> None:
    with arena.leaving_nothing():
        ended = arena.beside(_PTYS, limits={"open_files": 8192})
        for fd in pty.openpty():
            os.close(fd)
    assert "REACHED" not in ended.stdout, ended


_TIMERS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
made, timer = 0, ctypes.c_void_p()
event = (ctypes.c_int * 16)(0, 0, 0, 1)
while made < 100000 and libc.timer_create(1, event, ctypes.byref(timer)) == 0: made += 1
print(made, ctypes.get_errno(), flush=True)
"""
_QUEUES = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
made = 0
while made < 100000 and libc.semget(0, 10, 0o1600) >= 0: made += 1
while made < 200000 and libc.msgget(0, 0o1600) >= 0: made += 1
print(made, ctypes.get_errno(), flush=True)
"""


@pytest.mark.parametrize("code", [pytest.param(_TIMERS, id="J08"), pytest.param(_QUEUES, id="J09")])
def test_kernel_object_flood_ends_within_its_namespace(arena: Arena, code: str) -> None:
    with arena.leaving_nothing():
        ended = arena.beside(code)
    made, errno = (int(word) for word in ended.stdout.split()[1:])
    assert (ended.verdict, errno != 0) == (Verdict.OK, True), ended
    assert made < 100_000
    assert arena.run(code).stdout.split()[1] == str(made)  # the next sandbox has all of its own


_MOUNTS = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
reached, end = 0, time.monotonic() + 0.5
while time.monotonic() < end:
    reached += libc.unshare(0x10000000) == 0
    reached += libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0
print(reached, flush=True)
"""
_LEASES = """
import fcntl, os
fd = os.open("/usr/bin/env", os.O_RDONLY)
for call in ((1024, 0), (1026, 1)):  # F_SETLEASE F_RDLCK, F_NOTIFY DN_ACCESS
    try: print(fcntl.fcntl(fd, *call))
    except OSError as error: print("refused", error.errno)
"""


@pytest.mark.parametrize("case", ["J11"])
def test_mount_attempts_in_a_loop_are_denied(arena: Arena, case: str) -> None:
    with arena.leaving_nothing():
        ended = arena.beside(_MOUNTS)
    assert ended.stdout.split()[1:] == ["0"], ended


@pytest.mark.parametrize("case", ["J14"])
def test_lease_on_a_shared_file_is_denied(arena: Arena, case: str) -> None:
    ended = arena.run(_LEASES)
    assert ended.stdout.splitlines()[1].startswith("refused"), ended


_SYNC = """
import os, time
fd, end = os.open("file", os.O_CREAT | os.O_WRONLY), time.monotonic() + 1
while time.monotonic() < end:
    os.write(fd, b"x"); os.fsync(fd); os.sync()
print("REACHED", flush=True)
"""


@pytest.mark.parametrize("case", ["J15"])
def test_sync_storm_leaves_its_neighbour_alone(arena: Arena, case: str) -> None:
    with arena.leaving_nothing():
        arena.beside(_SYNC, limits=LIMITS)


_BIG = """
import signal
signal.signal(signal.SIGXFSZ, signal.{how})
with open("big", "wb", buffering=0) as f:
    for _ in range(24): f.write(bytes(1 << 20))
print("REACHED", flush=True)
"""


@pytest.mark.parametrize("case", ["J16"])
def test_file_above_its_limit_is_ended_or_refused(arena: Arena, case: str) -> None:
    killed = arena.run(_BIG.format(how="SIG_DFL"), limits={"file_mb": 16})
    assert (killed.verdict, killed.outcome.signal) == (Verdict.DISK, 25), killed
    refused = arena.run(_BIG.format(how="SIG_IGN"), limits={"file_mb": 16})
    assert (refused.verdict, "REACHED" in refused.stdout) == (Verdict.EXCEPTION, False)
    assert "File too large" in refused.stderr
    assert arena.run(_BIG.format(how="SIG_DFL"), limits={"file_mb": 32}).ok

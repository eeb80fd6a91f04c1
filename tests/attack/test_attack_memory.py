"""Group I: memory. What the tree touches counts, wherever it hides it; the kernel is the witness.

The control of each case is the same program under a limit that it fits into.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from arena import Arena, compiled

from cellwall import Verdict

pytestmark = pytest.mark.attack

_CHILDREN = """
import os, time
pids = []
for _ in range(10):
    pid = os.fork()
    if pid == 0:
        held = os.urandom(1) * (16 << 20)
        time.sleep(2)
        os._exit(0)
    pids.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
print("REACHED" if not any(codes) else codes, flush=True)
"""
_MEMFD = """
import os
fd = os.memfd_create("hoard")
for _ in range(60): os.write(fd, bytes(1 << 20))
for _ in range(2):
    fd = os.memfd_create("hoard")
    for _ in range(60): os.write(fd, bytes(1 << 20))
print("REACHED", flush=True)
"""
_SHARED = """
import mmap
held = mmap.mmap(-1, 160 << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
for at in range(0, len(held), 4096): held[at] = 1
print("REACHED", flush=True)
"""
_ZIP_BOMB = """
import gzip, io, zlib
packer = zlib.compressobj(9, wbits=31)
small = b"".join(packer.compress(bytes(1 << 20)) for _ in range(160)) + packer.flush()
print(len(small) < 1 << 20, flush=True)
held = gzip.decompress(small)
print("REACHED", flush=True)
"""
_HOGS = [
    pytest.param("held = b'\\x01' * (160 << 20)\nprint('REACHED')", id="I01"),
    pytest.param(_CHILDREN, id="I02"),
    pytest.param(_MEMFD, id="I03"),
    pytest.param(_SHARED, id="I05"),
    pytest.param(_ZIP_BOMB, id="I14"),
]


@pytest.mark.parametrize("hog", _HOGS)
def test_memory_hog_is_ended_by_the_memory_limit(arena: Arena, hog: str) -> None:
    with arena.leaving_nothing():
        ended = arena.beside(hog, limits={"memory_mb": 64}, timeout=10)
    assert (ended.verdict, "REACHED" in ended.stdout) == (Verdict.MEMORY, False), ended
    assert ended.outcome.usage.memory_peak_bytes <= 64 << 20
    assert "limits.memory_mb" in ended.outcome.notes[0]


@pytest.mark.parametrize("hog", _HOGS)
def test_memory_hog_fits_under_a_raised_limit(arena: Arena, hog: str) -> None:
    reached = arena.run(hog, limits={"memory_mb": 512}, timeout=10)
    assert (reached.verdict, "REACHED" in reached.stdout) == (Verdict.OK, True), reached


_FILL = """
import os
for folder in ("/tmp", "/dev/shm"):
    try:
        with open(folder + "/fill", "wb") as f:
            while True: f.write(bytes(1 << 20))
    except OSError as error:
        print(folder, error.errno, flush=True)
held = b"\\x01" * (256 << 20)
print("REACHED")
"""
_FOUND = "import os\nprint([os.listdir(d) for d in ('/tmp', '/dev/shm')])"


@pytest.mark.parametrize("case", ["I04"])
def test_full_work_area_counts_and_the_next_run_starts_clean(arena: Arena, case: str) -> None:
    limits = {"memory_mb": 128, "disk_mb": 32}
    with arena.leaving_nothing():
        ended = arena.beside(_FILL, limits=limits, timeout=10)
    assert ended.verdict is Verdict.MEMORY, ended
    assert "28" in ended.stdout  # ENOSPC: the work area's own limit came first
    assert arena.run(_FOUND, limits=limits).stdout.endswith("[[], []]\n")


_SOCKETS = """
import os, socket
held, total = [], 0
try:
    while total < 160 << 20:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        held.append(pair)
        pair[0].setblocking(False)
        try:
            while True: total += pair[0].send(bytes(32768))
        except BlockingIOError: pass
    print("REACHED", flush=True)
except OSError as error:
    print("refused", error.errno, total, flush=True)
"""


@pytest.mark.parametrize("case", ["I07"])
def test_unread_socket_buffers_count_or_are_refused(arena: Arena, case: str) -> None:
    with arena.leaving_nothing():
        ended = arena.beside(_SOCKETS, limits={"memory_mb": 64}, timeout=10)
    assert "REACHED" not in ended.stdout, ended
    assert ended.verdict in {Verdict.MEMORY, Verdict.OK}


_LOCK = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print("mlockall", libc.mlockall(3), flush=True)
held = ctypes.create_string_buffer(32 << 20)
print("mlock", libc.mlock(held, 32 << 20), flush=True)
"""


@pytest.mark.parametrize("case", ["I09"])
def test_locking_memory_is_denied(arena: Arena, case: str) -> None:
    ended = arena.run(_LOCK)
    assert ended.stdout.splitlines()[1:] == ["mlockall -1", "mlock -1"], ended


@pytest.mark.node
@pytest.mark.parametrize("case", ["I10"])
def test_reserving_address_space_is_free(arena: Arena, case: str) -> None:
    reserve = "import mmap\nmmap.mmap(-1, 64 << 30, flags=0x4022, prot=0)\nprint('kept')"
    assert arena.run(reserve, limits={"memory_mb": 64}).ok
    assert arena.run("console.log(1)", "javascript", limits={"memory_mb": 256}).ok


_DEEP_C = "static int f(int n) { volatile char a[4096]; a[0] = n; return f(n + 1) + a[0]; }\n" + (
    "int main(void) { return f(0); }"
)


@pytest.mark.parametrize("case", ["I11"])
def test_deep_recursion_is_named_as_the_programs_own_crash(
    arena: Arena, tmp_path: Path, case: str
) -> None:
    ended = arena.run("def f(): return f()\nf()")
    assert (ended.verdict, ended.error and ended.error.name) == (
        Verdict.EXCEPTION,
        "RecursionError",
    )
    files = {"deep": compiled(_DEEP_C, tmp_path)}
    crash = "import os\nos.chmod('deep', 0o755)\nos.execv('./deep', ['deep'])"
    ended = arena.run(crash, files=files)
    assert (ended.verdict, ended.outcome.signal) == (Verdict.SIGNALLED, 11), ended


_READ_MUCH = """
import os
def sizes():
    for top, _, names in os.walk("/usr/lib"):
        for name in names:
            try:
                with open(os.path.join(top, name), "rb") as f:
                    while block := f.read(1 << 20): yield len(block)
            except OSError: pass
total = 0
for size in sizes():
    total += size
    if total > 160 << 20: break
print("REACHED", total > 128 << 20, flush=True)
"""


@pytest.mark.parametrize("case", ["I17"])
def test_page_cache_is_never_called_over_the_limit(arena: Arena, case: str) -> None:
    ended = arena.run(_READ_MUCH, limits={"memory_mb": 64}, timeout=30)
    assert ended.verdict is Verdict.OK, ended
    assert ended.stdout.endswith("REACHED True\n")

"""Group I: memory. What the tree touches counts, wherever it hides it; the kernel is the witness.

The control of each case is the same program under a limit that it fits into.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from cellwall import Engine, EngineSettings, Execution, Verdict
from cellwall.linux.cgroups import hierarchies, sandbox_groups
from conftest import Require
from kit.arena import Arena, compiled, unconfined

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
_MEMFD_MAPPED = """
import mmap, os
held = []
for _ in range(3):
    fd = os.memfd_create("hoard")
    os.ftruncate(fd, 60 << 20)
    held.append(mmap.mmap(fd, 60 << 20))
    os.close(fd)
    for at in range(0, 60 << 20, 4096): held[-1][at] = 1
print("REACHED", flush=True)
"""
_MEMFD_RESERVED = """
import os
for _ in range(3): os.posix_fallocate(os.memfd_create("hoard"), 0, 60 << 20)
print("REACHED", flush=True)
"""
# A pipe keeps a page that was spliced into it, whoever unmaps it; one account's pipes hold 64 MiB.
_PIPES = """
import ctypes, fcntl, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
class Vector(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
own = bytearray(24 << 20)  # so that what is in the pipes decides
kept = []
for _ in range(52):
    kept.append(os.pipe())
    size = fcntl.fcntl(kept[-1][1], 1031, 1 << 20)  # F_SETPIPE_SZ
    page = mmap.mmap(-1, size)
    for at in range(0, size, 4096): page[at] = 1
    start = ctypes.c_char.from_buffer(page)
    assert libc.vmsplice(kept[-1][1], ctypes.byref(Vector(ctypes.addressof(start), size)), 1, 0) > 0
    del start
    page.close()
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
    pytest.param(_MEMFD_MAPPED, id="E12-mapped"),
    pytest.param(_MEMFD_RESERVED, id="E12-reserved"),
    pytest.param(_PIPES, id="E23"),
    pytest.param(_SHARED, id="I05"),
    pytest.param(_ZIP_BOMB, id="I14"),
]


@pytest.mark.cgroups
@pytest.mark.parametrize("hog", _HOGS)
def test_memory_hog_is_ended_by_the_memory_limit(arena: Arena, hog: str) -> None:
    with arena.leaving_nothing():
        ended = arena.beside(hog, limits={"memory_mb": 64}, timeout=10)
    reached = "REACHED" in ended.stdout
    assert (ended.verdict, reached) == (Verdict.MEMORY, False), ended.outcome
    assert ended.outcome.usage.memory_peak_bytes <= 64 << 20
    assert "limits.memory_mb" in ended.outcome.notes[0]


@pytest.mark.cgroups
@pytest.mark.parametrize("hog", _HOGS)
def test_memory_hog_fits_under_a_raised_limit(arena: Arena, hog: str) -> None:
    reached = arena.run(hog, limits={"memory_mb": 512}, timeout=10)
    assert (reached.verdict, "REACHED" in reached.stdout) == (Verdict.OK, True), reached


_SECRET = """
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.syscall(447, 0)  # memfd_secret
if fd < 0:
    print("refused", ctypes.get_errno(), flush=True)
else:
    os.ftruncate(fd, 1 << 20)
    mmap.mmap(fd, 1 << 20)[:] = b"x" * (1 << 20)
    print("REACHED", flush=True)
"""


@pytest.mark.parametrize("case", ["E12-secret"])
def test_secret_memory_can_not_be_filled(arena: Arena, require: Require, case: str) -> None:
    outside = unconfined(_SECRET).stdout
    require("memfd_secret", "REACHED" in outside, "boot with secretmem.enable=1")
    assert arena.run(_SECRET).stdout.splitlines()[1:] == ["refused 38"]


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


@pytest.mark.cgroups
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


_UNREAD = """
import socket
def tcp():
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far = server.accept()[0]
    try:
        while near.send(bytes(16384), socket.MSG_DONTWAIT): pass
    except BlockingIOError: pass
    return near, far
def udp():
    far = socket.socket(type=socket.SOCK_DGRAM)
    far.bind(("127.0.0.1", 0))
    for _ in range(12): near.sendto(bytes(16384), far.getsockname())
    return near, far
def unread(far):
    size = 0
    try:
        while block := far.recv(1 << 16, socket.MSG_DONTWAIT): size += len(block)
    except BlockingIOError: pass
    return size
near = socket.socket(type=socket.SOCK_DGRAM)
pairs = [{kind}() for _ in range({count})]
print(sum(unread(far) for _, far in pairs) >> 20)
"""


async def _left_unread(code: str) -> Execution:
    engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
    try:
        limits = {"memory_mb": 64, "open_files": 2048}
        return await engine.run(code, limits=limits, timeout=20)
    finally:
        await engine.aclose()


def _unread_mib(code: str) -> int:
    ended = asyncio.run(_left_unread(code))
    assert ended.ok, ended
    return int(ended.stdout)


@pytest.mark.root
@pytest.mark.parametrize(("kind", "count"), [("tcp", 40), ("udp", 1200)])
def test_unread_bytes_of_connections_end_at_the_limit(
    monkeypatch: pytest.MonkeyPatch, kind: str, count: int
) -> None:
    """I07: cgroup v1 does not count them as memory, v2 does: there its limit ends the sandbox."""
    code = _UNREAD.format(kind=kind, count=count)
    memory = hierarchies.discover().having("memory")
    if memory is not None and memory.version == 2:
        assert asyncio.run(_left_unread(code)).verdict == "memory"
        return
    assert _unread_mib(code) < 32
    if memory is not None:
        monkeypatch.setattr(sandbox_groups, "BUFFERS", "/no such file")
        assert _unread_mib(code) > 96, "the control"


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


@pytest.mark.needs("node")
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
    for root in ("/opt/env", "/usr/lib"):
        for top, _, names in os.walk(root):
            for name in names:
                try:
                    with open(os.path.join(top, name), "rb") as f:
                        while block := f.read(1 << 20): yield len(block)
                except OSError: pass
total = 0
for size in sizes():
    total += size
    if total > 160 << 20: break
print("REACHED", total > 90 << 20, flush=True)
"""


_JAVA_HOARD = """
import java.util.ArrayList;
class Hoard {
    public static void main(String[] words) {
        ArrayList<byte[]> held = new ArrayList<>();
        while (held.size() < 384) {
            byte[] block = new byte[1 << 20];
            for (int at = 0; at < block.length; at += 4096) block[at] = 1;
            held.add(block);
        }
        System.out.println("REACHED");
    }
}
"""
_NODE_HOARD = """
const held = [];
while (held.length < 384) held.push(new Float64Array(1 << 17).fill(held.length));
console.log("REACHED");
"""


@pytest.mark.parametrize("case", ["I15-java"])
def test_java_heap_above_the_limit_is_ended_by_it(
    arena: Arena, tmp_path: Path, require: Require, case: str
) -> None:
    found = all(shutil.which(tool, path="/usr/bin:/bin") for tool in ("java", "javac"))
    require("java", found, "run: apt-get install default-jdk-headless")
    (tmp_path / "Hoard.java").write_text(_JAVA_HOARD)
    subprocess.run(["javac", "Hoard.java"], check=True, timeout=60, cwd=tmp_path)
    files = {"Hoard.class": (tmp_path / "Hoard.class").read_bytes()}
    java = "java -Xmx768m -XX:+UseSerialGC -Xshare:auto Hoard"

    def run(memory_mb: int) -> Execution:
        limits = {"memory_mb": memory_mb, "processes": 80, "file_mb": 256}
        return arena.run(java, "bash", files=files, limits=limits, timeout=30)

    ended, reached = run(256), run(1024)
    assert (ended.verdict, "REACHED" in ended.stdout) == (Verdict.MEMORY, False), ended
    assert (reached.verdict, "REACHED" in reached.stdout) == (Verdict.OK, True), reached


@pytest.mark.needs("node")
@pytest.mark.parametrize("case", ["I15-node"])
def test_node_heap_above_the_limit_is_ended_by_it(arena: Arena, case: str) -> None:
    def run(memory_mb: int) -> Execution:
        limits = {"memory_mb": memory_mb, "processes": 80}
        return arena.run(_NODE_HOARD, "javascript", limits=limits, timeout=30)

    ended, reached = run(256), run(1024)
    assert (ended.verdict, "REACHED" in ended.stdout) == (Verdict.MEMORY, False), ended
    assert (reached.verdict, "REACHED" in reached.stdout) == (Verdict.OK, True), reached


@pytest.mark.parametrize("case", ["I17"])
def test_page_cache_is_never_called_over_the_limit(arena: Arena, case: str) -> None:
    ended = arena.run(_READ_MUCH, limits={"memory_mb": 64}, timeout=30)
    assert ended.verdict is Verdict.OK, ended
    assert ended.stdout.endswith("REACHED True\n")

"""Groups E and F: the calls nobody needs are refused, and there is no way past the filter."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import controls
import pytest
from arena import Arena, compiled

from cellwall.jail import seccomp

pytestmark = [pytest.mark.attack, pytest.mark.root]
GOLDEN = Path(__file__).parent / "golden" / f"answering_calls.{os.uname().machine}.txt"


@pytest.fixture(scope="module")
def tried(arena: Arena) -> Iterator[controls.Both]:
    with tempfile.TemporaryDirectory(prefix="bait-") as work:
        Path(work).chmod(0o777)
        me = str(os.getpid())
        inside = {"work": "/tmp", "pid": "1", "host_pid": me}
        outside = {"work": work, "pid": me, "host_pid": me}
        yield controls.both(arena, "probe_calls", {"inside": inside, "outside": outside})


@pytest.mark.parametrize(
    ("case", "words"),
    [
        pytest.param("E01", "ENOSYS", id="E01-io-uring"),
        pytest.param("E03", "EPERM", id="E03-userfaultfd"),
        pytest.param("E04", "EPERM", id="E04-bpf"),
        pytest.param("E05", "EPERM", id="E05-perf"),
        pytest.param("E06", "EPERM", id="E06-keys"),
        pytest.param("E07", "EPERM", id="E07-ptrace"),
        pytest.param("E08", "EPERM", id="E08-memory-of-others"),
        pytest.param("E09", "ESRCH", id="E09-pids-of-the-host"),
        pytest.param("E10", "EPERM", id="E10-fanotify"),
        pytest.param("E11", "EPERM", id="E11-own-filter"),
        pytest.param("E12", "ENOSYS", id="E12-secret-memory"),
        pytest.param("E13", "EPERM", id="E13-kernel-log"),
        pytest.param("E15", "EAFNOSUPPORT", id="E15-socket-families"),
        pytest.param("E16", "EPERM EAFNOSUPPORT", id="E16-protocols"),
        pytest.param("E22", "EPERM", id="E22-terminal-and-inode-ioctls"),
        pytest.param("F02", "SIGSYS", id="F02-32-bit-entry"),
        pytest.param("F03", "SIGSYS", id="F03-x32-numbers"),
        pytest.param("F04", "ENOSYS", id="F04-clone3"),
        pytest.param("F08", "SIGSYS", id="F08-32-bit-program"),
    ],
)
def test_call_is_denied(tried: controls.Both, case: str, words: str) -> None:
    tried.denied(case, words, poisoned=True, optional=True)


SWEEP = r"""
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <sys/syscall.h>
int main(void) {
    long *answer = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (long nr = 0; nr < 1024; nr++) {
        *answer = -7777;
        pid_t pid = fork();
        if (pid < 0) return 3;
        if (pid == 0) {
            struct itimerval soon = {{0, 0}, {0, 60000}};
            setitimer(ITIMER_REAL, &soon, 0);
            setpgid(0, 0);
            errno = 0;
            long got = syscall(nr, 0, 0, 0, 0, 0, 0);
            *answer = got == -1 ? -errno : 0;
            _exit(0);
        }
        int status;
        waitpid(pid, &status, 0);
        printf("%ld %ld %d\n", nr, *answer, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
        while (waitpid(-1, 0, WNOHANG) > 0) {}
    }
    return 0;
}
"""


def _answers(text: str) -> dict[int, tuple[int, int]]:
    rows = re.findall(r"(?m)^(\d+) (-?\d+) (\d+)$", text)
    return {int(nr): (int(answer), int(signal)) for nr, answer, signal in rows}


def _answering(answers: dict[int, tuple[int, int]]) -> set[int]:
    """Numbers that did something: neither EPERM nor ENOSYS came back."""
    return {nr for nr, (answer, _) in answers.items() if answer not in {-1, -38}}


def test_set_of_answering_calls_is_the_golden_one(arena: Arena, tmp_path: Path) -> None:
    """E20: any call that starts to answer is a diff of a text file, and a review."""
    if not GOLDEN.exists():
        pytest.skip(f"no golden list for this machine: {GOLDEN.name}")
    sweep = compiled(SWEEP, tmp_path)
    inside = arena.run("chmod +x sweep; ./sweep", "bash", files={"sweep": sweep}, timeout=30)
    answers = _answers(inside.stdout)
    assert len(answers) == 1024, inside.stderr
    names = {number: name for name, number in seccomp.syscall_numbers(os.uname().machine).items()}
    found = {names.get(nr, f"unknown {nr}") for nr in _answering(answers)}
    golden = set(GOLDEN.read_text().split())
    outside = _answers(_unfiltered(sweep))
    assert len(outside) == 1024
    # What the golden list has and this kernel has not is told by the kernel without the filter.
    lacking = {names[nr] for nr in names if outside[nr][0] in {-1, -38}}
    assert found - golden == set()
    assert golden - found <= lacking
    # H2: without the filter the same sweep reaches far more.
    reached = {names.get(nr, str(nr)) for nr in _answering(outside)} - found
    assert {"unshare", "clone3", "ptrace", "keyctl", "io_uring_setup"} & reached


def _unfiltered(program: bytes) -> str:
    with tempfile.TemporaryDirectory(prefix="bait-") as work:
        Path(work).chmod(0o755)
        path = Path(work, "sweep")
        path.write_bytes(program)
        path.chmod(0o755)
        code = (
            f"import subprocess; print(subprocess.run([{str(path)!r}], stdout=-1).stdout.decode())"
        )
        return controls.run_in("user", code)


QUEUES = r"""
#include <stdio.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
int main(void) {
    int made = 0;
    for (int i = 0; i < 50; i++) {
        made += shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600) >= 0;
        made += msgget(IPC_PRIVATE, IPC_CREAT | 0600) >= 0;
        made += semget(IPC_PRIVATE, 1, IPC_CREAT | 0600) >= 0;
    }
    printf("%d\n", made);
    return 0;
}
"""


def _host_objects() -> list[str]:
    return [Path("/proc/sysvipc", name).read_text() for name in ("shm", "msg", "sem")]


def test_ipc_objects_are_gone_with_the_sandbox(arena: Arena, tmp_path: Path) -> None:
    """E19"""
    program = compiled(QUEUES, tmp_path)
    before = _host_objects()
    with arena.leaving_nothing():
        run = arena.run("chmod +x queues; ./queues", "bash", files={"queues": program})
    assert run.stdout.splitlines()[1:] == ["150"]
    assert _host_objects() == before


TWIN = """
import ctypes, mmap, os, select, signal, socket, subprocess, threading, time
done = []
threads = [threading.Thread(target=done.append, args=(n,)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
assert len(done) == 8
code = mmap.mmap(-1, 4096, prot=7)
code.write(b"\\xb8\\x2a\\0\\0\\0\\xc3" if os.uname().machine == "x86_64"
           else b"\\x40\\x05\\x80\\x52\\xc0\\x03\\x5f\\xd6")
assert ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))() == 42
poll = select.epoll(); a, b = socket.socketpair(); poll.register(a); b.send(b"x")
assert poll.poll(1)
assert len(os.getrandom(16)) == 16 and os.pipe2(os.O_CLOEXEC) and os.sched_getaffinity(0)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.syscall(%d, 0, 0, 0) >= 0, "membarrier"
assert libc.timerfd_create(1, 0) >= 0
ruleset = ctypes.create_string_buffer(8); ruleset[0] = 2
fd = libc.syscall(444, ruleset, 8, 0)
if fd >= 0:
    assert libc.syscall(446, fd, 0) == 0, "landlock of its own"
print("benign", subprocess.check_output(["true"]))
"""


def test_benign_twin_gets_all_it_asks_for(arena: Arena) -> None:
    """E21, E24, E25: threads, pages for a JIT, waiting, Landlock of its own."""
    number = seccomp.syscall_numbers(os.uname().machine)["membarrier"]
    run = arena.run(TWIN % number)
    assert run.stdout.splitlines()[1:] == ["benign b''"], run.stderr

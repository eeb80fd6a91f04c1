"""Group G: processes, signals and time. Peers, the agent and the host outlive what is done to them.

Verdicts are the J column of the attack corpus: a limit ends it and the result names the limit, or
it may do as it likes and nothing is left afterwards. The control of a bomb is the same bounded
bomb under a raised limit.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cellwall import AsyncSandbox, Verdict
from kit.arena import CONTROL_UID, Arena, compiled, unconfined

pytestmark = pytest.mark.attack

_FORKS = """
import os, time
for _ in range(60):
    if os.fork() == 0:
        time.sleep(60); os._exit(0)
print("REACHED", flush=True)
os._exit(0)
"""
_THREADS = """
import os, threading
gate = threading.Event()
for _ in range(60):
    threading.Thread(target=gate.wait, daemon=True).start()
print("REACHED", flush=True)
os._exit(0)
"""
_ZOMBIES = """
import os
for _ in range(60):
    if os.fork() == 0:
        os._exit(0)
print("REACHED", flush=True)
os._exit(0)
"""
# The leaves outlive the attack's wall clock: what a shell tries again finds no place either.
_SHELL = """
f() { if [ "$1" -gt 0 ]; then f $(($1 - 1)) & f $(($1 - 1)) & else sleep 2.5; fi; wait; }
f 5 && echo REACHED
"""
_BOMBS = [
    pytest.param(_FORKS, "python", id="G05"),
    pytest.param(_THREADS, "python", id="G07"),
    pytest.param(_ZOMBIES, "python", id="G12"),
]


@pytest.mark.cgroups
@pytest.mark.parametrize(("bomb", "language"), _BOMBS)
def test_process_bomb_is_ended_by_the_process_limit(arena: Arena, bomb: str, language: str) -> None:
    with arena.leaving_nothing():
        ended = arena.beside(bomb, language, limits={"memory_mb": 512})
    assert ended.verdict is Verdict.PROCESSES, ended
    assert "REACHED" not in ended.stdout
    assert ended.outcome.usage.processes_peak == arena.peak(31)  # the limit and init


@pytest.mark.cgroups
@pytest.mark.parametrize(("bomb", "language"), _BOMBS)
def test_process_bomb_explodes_under_a_raised_limit(arena: Arena, bomb: str, language: str) -> None:
    reached = arena.run(bomb, language, limits={"processes": 100})
    assert (reached.verdict, "REACHED" in reached.stdout) == (Verdict.OK, True), reached


def test_forks_refused_to_one_are_no_verdict_of_the_next(arena: Arena) -> None:
    """Some directories of cgroups serve again, and what they have counted cannot be set back."""
    few = {"processes": 6}
    bombs = [arena.run(_FORKS, limits=few) for _ in range(9)]  # more than are kept
    assert {each.verdict for each in bombs} == {Verdict.PROCESSES}
    ends = [arena.run("raise SystemExit(1)", limits=few) for _ in range(6)]
    assert [(each.verdict, each.outcome.notes) for each in ends] == [(Verdict.NONZERO_EXIT, ())] * 6


@pytest.mark.parametrize("case", ["G06"])
def test_shell_fork_bomb_is_ended_and_the_process_limit_named(arena: Arena, case: str) -> None:
    # A shell tries again when it may not fork: so the wall clock may be what ends it.
    with arena.leaving_nothing():
        ended = arena.beside(_SHELL, "bash", timeout=2)
    assert ended.verdict in {Verdict.PROCESSES, Verdict.WALL_TIME}
    assert "limit of 30 processes" in " ".join(ended.outcome.notes), ended
    reached = arena.run(_SHELL, "bash", limits={"processes": 200}, timeout=20)
    assert (reached.verdict, "REACHED" in reached.stdout) == (Verdict.OK, True), reached


_MASSACRE = """
import os, signal
for target in (1, -1):
    try:
        os.kill(target, signal.SIGKILL)
    except OSError as error:
        print(target, error.errno)
print("survived", flush=True)
"""


def _sentinel(uid: int) -> subprocess.Popen[bytes]:
    is_root = os.geteuid() == 0
    who: dict[str, Any] = {"user": uid, "group": uid, "extra_groups": []} if is_root else {}
    return subprocess.Popen(["/bin/sleep", "60"], cwd="/", start_new_session=True, **who)


def _uid_of(sandbox: AsyncSandbox) -> int:
    pid = sandbox.live.runtime_sandbox.pid  # type: ignore[attr-defined]
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(text.split("\nUid:")[1].split()[0])


@pytest.mark.parametrize("case", ["G01"])
def test_killing_everybody_is_confined_to_the_sandbox(arena: Arena, case: str) -> None:
    async def attack() -> None:
        async with arena.sandbox() as neighbour, arena.sandbox() as sandbox:
            await neighbour.run("kept = 41")
            sentinel = _sentinel(_uid_of(sandbox))  # same uid: only the namespace stands between
            try:
                ended = await sandbox.run(_MASSACRE)
                assert "survived" in ended.stdout, ended
                assert sentinel.poll() is None
                assert (await neighbour.run("kept + 1")).text == "42"
                assert (await sandbox.run("6 * 7")).text == "42"  # pid 1 shrugged too
            finally:
                sentinel.kill()
                sentinel.wait()

    arena.do(attack())


@pytest.mark.root
@pytest.mark.parametrize("case", ["G01"])
def test_killing_everybody_reaches_the_sentinel_unconfined(case: str) -> None:
    sentinel = _sentinel(CONTROL_UID)
    try:
        assert "survived" in unconfined(_MASSACRE.replace("(1, -1)", "(-1,)")).stdout
        assert sentinel.wait(5) == -signal.SIGKILL
    finally:
        sentinel.kill()


_AGENT_HUNT = """
import os, signal
for number in range(1, 65):
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
    for number in range(1, 65):
        if pid != os.getpid():
            try: os.kill(pid, number)
            except OSError: pass
for fd in range(3, 300):
    try: os.write(fd, b"\\xff" * 64); print("WROTE", fd)
    except OSError: pass
for path in ("/proc/1/mem", "/proc/1/fd/0", "/proc/1/root"):
    try: os.open(path, os.O_RDWR); print("OPENED", path)
    except OSError: pass
print("hunted", flush=True)
"""


@pytest.mark.parametrize("case", ["G02"])
def test_hunting_the_agent_ends_in_a_well_formed_result(arena: Arena, case: str) -> None:
    with arena.leaving_nothing():
        ended = arena.beside(_AGENT_HUNT)
    assert (ended.verdict, ended.stdout.split("\n", 1)[1]) == (Verdict.OK, "hunted\n"), ended


_AGENT_CALL = """
import os, socket, time
for line in open("/proc/net/unix").read().splitlines()[1:]:
    name = line.split()[-1]
    if name.startswith("@"):
        s = socket.socket(socket.AF_UNIX)
        s.connect("\\0" + name[1:])
        print("spoke", flush=True)
        s.sendall({message!r})
        time.sleep(60)
"""
_FORGED = [
    pytest.param(b"\xff" * 4096, id="G02-noise"),
    pytest.param(b"\x00\x00\x00\x10\x00\x00\x00\x00" + b"[" * 16, id="G02-not-json"),
    pytest.param(b"\x00\x00\x00\x0b\x00\x00\x00\x00" + b'{"ev":"??"}', id="G02-unknown"),
    pytest.param(b"\x7f\xff\xff\xff\x7f\xff\xff\xff", id="G02-endless"),
]


@pytest.mark.parametrize("message", _FORGED)
def test_forging_frames_to_the_agent_hurts_only_the_forger(arena: Arena, message: bytes) -> None:
    with arena.leaving_nothing():
        ended = arena.beside(_AGENT_CALL.format(message=message), timeout=2)
    assert "spoke" in ended.stdout
    assert (ended.verdict, ended.outcome.signal) == (Verdict.SIGNALLED, signal.SIGKILL), ended


# On gVisor a first process can be stopped from inside. It passes on what proves that this ran, so
# it may be stopped only when it has read that and waits again; elsewhere it is not to be seen.
_STOPS_ALL = """
import fcntl, os, signal, termios
def has_passed_on():
    if fcntl.ioctl(1, termios.FIONREAD, bytes(4)) != bytes(4):
        return False
    try:
        with open('/proc/1/stat') as file:
            return file.read().rpartition(')')[2].split()[0] == 'S'
    except FileNotFoundError:
        return True
while not has_passed_on():
    pass
os.kill(1, signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGSTOP)
"""
_UNSTOPPABLE = [
    pytest.param(_STOPS_ALL, "python", id="G03"),
    pytest.param(
        "import signal, time\n"
        "for n in range(1, 65):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "while True: time.sleep(1)",
        "python",
        id="G04",
    ),
    pytest.param("import os\nos.mkfifo('pipe')\nos.open('pipe', os.O_RDONLY)", "python", id="G15"),
    pytest.param(
        "setInterval(() => {}, 1000)", "javascript", id="G22", marks=pytest.mark.needs("node")
    ),
]


@pytest.mark.parametrize(("code", "language"), _UNSTOPPABLE)
def test_program_that_never_ends_is_ended_by_the_wall_clock(
    arena: Arena, code: str, language: str
) -> None:
    with arena.leaving_nothing():
        ended = arena.beside(code, language, timeout=1, limits={"memory_mb": 256})
    assert ended.verdict is Verdict.WALL_TIME, ended
    assert 1.0 <= ended.outcome.usage.wall_s < 1.5


_LEFT_BEHIND = [
    pytest.param(
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        for fd in (0, 1, 2): os.close(fd)\n"
        "        time.sleep(600)\n"
        "    os._exit(0)",
        "python",
        id="G09",
    ),
    pytest.param("sleep 600 &\nexit 0", "bash", id="G11"),
    pytest.param(
        "trap '' HUP TERM INT\nnohup bash -c 'exec -a python sleep 600' >/dev/null 2>&1 &\n"
        "exec -a cellwall true",
        "bash",
        id="G13",
    ),
    pytest.param(
        "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass", "python", id="G21"
    ),
    pytest.param("while true; do date; done >> log &\nexit 0", "bash", id="J04"),
    pytest.param("(while true; do echo more; done) &\nexit 0", "bash", id="K14"),
]


@pytest.mark.parametrize(("code", "language"), _LEFT_BEHIND)
def test_process_left_behind_is_gone_with_its_sandbox(
    arena: Arena, code: str, language: str
) -> None:
    with arena.leaving_nothing():
        ended = arena.run(code, language)
        assert ended.verdict in {Verdict.OK, Verdict.OUTPUT}, ended
        assert ended.outcome.usage.wall_s < 2  # the program's own end, not its orphans'


@pytest.mark.parametrize("case", ["G08"])
def test_forking_while_being_killed_leaves_nothing(arena: Arena, case: str) -> None:
    runaway = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    with arena.leaving_nothing():
        # Forks cost gVisor's kernel memory: 130 MB in that time.
        ended = arena.beside(runaway, timeout=0.5, limits={"memory_mb": 256})
    assert ended.verdict is Verdict.WALL_TIME
    assert ended.outcome.usage.processes_peak == arena.peak(31)


_NAME = b"x\n\x1b[2J\nUid:\t0"
_RENAME = f"import ctypes\nprint(ctypes.CDLL(None).prctl(15, {_NAME!r}, 0, 0, 0))"


@pytest.mark.parametrize("case", ["G16"])
def test_hostile_process_name_breaks_no_reader(arena: Arena, case: str) -> None:
    async def attack() -> None:
        async with arena.sandbox() as sandbox:
            assert (await sandbox.run(_RENAME)).stdout == "0\n"
            assert (await sandbox.run("open('/proc/self/comm', 'rb').read()")).text == repr(
                _NAME[:15] + b"\n"
            )
            await sandbox.contexts.create("second")
            assert (await sandbox.run("1 + 1", context="second")).text == "2"

    with arena.leaving_nothing():
        arena.do(attack())


_SHORT_CHILDREN = """
import os, time
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    if (pid := os.fork()) == 0:
        until = time.process_time() + 0.02
        while time.process_time() < until: pass
        os._exit(0)
    os.waitpid(pid, 0)
print("REACHED", flush=True)
"""


@pytest.mark.parametrize("case", ["G20"])
def test_cpu_burned_in_short_children_is_counted(arena: Arena, case: str) -> None:
    ended = arena.beside(_SHORT_CHILDREN.format(seconds=30), limits={"cpu_s": 0.5}, timeout=20)
    assert (ended.verdict, "REACHED" in ended.stdout) == (Verdict.CPU_TIME, False), ended
    assert 0.5 <= ended.outcome.usage.cpu_s < 1.0
    reached = arena.run(_SHORT_CHILDREN.format(seconds=0.6), limits={"cpu_s": 5})
    assert (reached.verdict, "REACHED" in reached.stdout) == (Verdict.OK, True)


_BUSY = """
#include <pthread.h>
#include <unistd.h>
static void *burn(void *unused) { for (;;) __asm__ volatile(""); return unused; }
int main(void) {
    pthread_t thread;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    for (int i = 0; i < 64; i++) if (pthread_create(&thread, &small, burn, 0)) return 7;
    pause();
}
"""


@pytest.mark.alone
@pytest.mark.cgroups
@pytest.mark.parametrize("case", ["G23"])
def test_busy_threads_get_no_more_than_their_share(arena: Arena, tmp_path: Path, case: str) -> None:
    files = {"busy": compiled(_BUSY, tmp_path)}
    code = "import os\nos.chmod('busy', 0o755)\nos.execv('./busy', ['busy'])"

    def share(cpus: float) -> float:
        limits = {"cpus": cpus, "processes": 80}
        usage = arena.run(code, files=files, limits=limits, timeout=2).outcome.usage
        return usage.cpu_s / usage.wall_s

    assert share(0.2) < 0.3
    # The control again if need be: on a busy machine it may not get what it may use.
    whole = next((found for found in (share(1.0) for _ in range(3)) if found > 0.3), 0)
    assert 0.3 < whole < 1.1


@pytest.mark.parametrize("code", [1, 3, 124, 137, 143, 255])
def test_exit_code_is_never_taken_for_a_limit(arena: Arena, code: int) -> None:
    ended = arena.run(f"import sys\nsys.exit({code})")
    assert (ended.verdict, ended.exit_code) == (Verdict.NONZERO_EXIT, code)
    assert (ended.outcome.signal, ended.outcome.notes) == (None, ())


@pytest.mark.parametrize("name", ["SIGKILL", "SIGXCPU", "SIGSEGV", "SIGTERM", "SIGABRT"])
def test_signal_to_oneself_is_never_taken_for_a_limit(arena: Arena, name: str) -> None:
    code = f"import os, signal\nsignal.signal(signal.{name}, signal.SIG_DFL)\n"
    if name == "SIGKILL":
        code = "import os, signal\n"
    ended = arena.run(f"{code}os.kill(os.getpid(), signal.{name})")
    assert (ended.verdict, ended.outcome.signal) == (Verdict.SIGNALLED, signal.Signals[name])

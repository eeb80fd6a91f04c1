"""An ordinary user's sandboxes: the same walls, memory and CPU honestly called soft.

Everything runs in a child of an id of its own, because rootless that id is also the sandbox's on
the host: what file modes would forbid to a stranger, only the jail forbids here. One child runs
all cases and prints one line of JSON for each; the witnesses are outside of it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from kit.unprivileged import OrdinaryUser

# The first test waits for a template that the user builds: half a minute where nothing else runs.
pytestmark = [pytest.mark.rootless, pytest.mark.attack, pytest.mark.timeout(180)]

_EMBED = """
import asyncio, contextlib, dataclasses, json, sys, time
import cellwall

def after_a_cell(code, **options):
    # It leaves something behind; what comes next is told, once that has had its time.
    async def work():
        async with cellwall.AsyncSandbox.create(limits=options["limits"]) as sandbox:
            first = await sandbox.run(code)
            assert first.verdict == "ok"
            kernel = sandbox.live.runtime_sandbox
            until = time.monotonic() + options["timeout"]
            while not kernel.soft_kills and time.monotonic() < until:
                await asyncio.sleep(0.01)
            while await sandbox.contexts.list() and time.monotonic() < until:
                await asyncio.sleep(0.01)
            done = await sandbox.run("print(45)")
            return dataclasses.replace(done, stdout=first.stdout + done.stdout)
    return asyncio.run(work())

def with_a_kill_on_its_way(code, **options):
    # Nothing has told the sandbox of its end yet when the next is begun.
    async def work():
        async with cellwall.AsyncSandbox.create(limits=options["limits"]) as sandbox:
            first = await sandbox.run(code)
            assert first.verdict == "ok"
            kernel = sandbox.live.runtime_sandbox
            until = time.monotonic() + options["timeout"]
            while not kernel.soft_kills and time.monotonic() < until:
                kernel.kill_above_limit()
            done = await sandbox.run("print(45)")
            return dataclasses.replace(done, stdout=first.stdout + done.stdout)
    return asyncio.run(work())

def with_a_full_disk(code, language):
    with cellwall.Sandbox(limits={"disk_mb": 8}) as sandbox:
        sandbox.contexts.create("other", language=language)
        sandbox.run("var a = 40", context="other")
        filled = sandbox.run("open('/tmp/full', 'wb').write(b'x' * (9 << 20))")
        assert filled.verdict == "disk", filled
        return sandbox.run(code, context="other")

KINDS = {
    "full-": with_a_full_disk, "left-": after_a_cell, "late-": with_a_kill_on_its_way,
}
for name, code, options in json.load(open(sys.argv[1])):
    try:
        done = KINDS.get(name[:5], cellwall.run)(code, **options)
        said = {
            "verdict": done.verdict.value,
            "stdout": done.stdout,
            "stderr": done.stderr,
            "notes": " ".join(done.outcome.notes),
            "hardness": done.outcome.isolation.hardness,
            "level": done.outcome.isolation.level.label,
        }
    except cellwall.CellwallError as error:
        stdout = getattr(error, "stdout", "")
        said = {"error": type(error).__name__, "stdout": stdout, "message": str(error)}
    print(json.dumps({"case": name, **said}), flush=True)
"""
_SAY = {
    "python": "import os; os.write(1, b'{}\\n')\n",
    "bash": "echo {}\n",
    "javascript": "console.log('{}')\n",
}
_FORKS = """
import signal
made = 0
try:
    for _ in range(60):
        if os.fork() == 0:
            signal.pause()
        made += 1
except OSError:
    pass
print("made", made)
"""
_HOG = "kept = []\nwhile True:\n    kept.append(b'x' * (1 << 20))\n"
_HOG_IN_A_THREAD = """
import threading
def grow():
    kept = [bytearray(b"x") * (4 << 20) for _ in range(80)]
    threading.Event().wait()
threading.Thread(target=grow).start()
"""
_HIDING_HOG = """
import signal
kept = []
while True:
    kept.append(b'x' * (20 << 20))
    if os.fork() == 0:
        signal.pause()
"""
_HOLD = """
import ctypes, os, threading, time
libc = ctypes.CDLL(None)
def hold():
    kept = b'x' * (40 << 20)
    time.sleep(60)
"""
"""None of them reaches a limit of its own."""
_HOGS_BEHIND_THREADS = (
    _HOLD
    + """
def fork():
    if os.fork() == 0:
        hold()
    time.sleep(60)
for _ in range(6):
    threading.Thread(target=fork).start()
"""
)
_HOGS_WITHOUT_A_FIRST_THREAD = (
    _HOLD
    + """
def hold_later():
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.001)
    hold()
for _ in range(6):
    if os.fork() == 0:
        threading.Thread(target=hold_later).start()
        libc.pthread_exit(None)
time.sleep(60)
"""
)
_HOGS_NOT_TO_BE_LOOKED_INTO = (
    _HOLD
    + """
for _ in range(6):
    if os.fork() == 0:
        os._exit(1) if libc.prctl(4, 0, 0, 0, 0) else hold()
time.sleep(60)
"""
)
_MEMORY_OF_NOBODY = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
def attempt(name, number):
    print(name, "made" if number >= 0 else os.strerror(ctypes.get_errno()))
    return number
attempt("memfd", libc.memfd_create(b"x", 0))
attempt("semaphores", libc.semget(0, 32000, 0o1600))
attempt("messages", libc.msgget(0, 0o1600))
segment = attempt("shared", libc.shmget(0, 40 << 20, 0o1600))
if segment >= 0:
    libc.shmctl(segment, 0, None)
"""
_BURN_BEHIND_A_THREAD = """
import os, threading, time
def fork():
    if os.fork() == 0:
        while True:
            pass
    time.sleep(60)
threading.Thread(target=fork).start()
"""
_BURN_THAT_NOBODY_WAITS_FOR = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    if os.fork() == 0:
        while time.process_time() < 0.15:
            pass
        os._exit(0)
    try:
        os.wait()
    except ChildProcessError:
        pass
"""
_FILL = """
import signal
file = open("/tmp/big", "wb")
for _ in range(60):
    file.write(b'x' * (1 << 20))
signal.pause()
"""
_INSTANCES = """
import ctypes
libc, taken = ctypes.CDLL(None, use_errno=True), 0
while taken < 60 and libc.inotify_init1(0o2000000) >= 0:
    taken += 1
print("took", taken)
"""
_MEMORY = {"memory_mb": 128, "processes": 30}
_HIDDEN = {
    "thread-hogs": _HOGS_BEHIND_THREADS,
    "leaderless-hogs": _HOGS_WITHOUT_A_FIRST_THREAD,
    "secretive-hogs": _HOGS_NOT_TO_BE_LOOKED_INTO,
    "thread-burn": _BURN_BEHIND_A_THREAD,
    "forgotten-burn": _BURN_THAT_NOBODY_WAITS_FOR,
}
_PLENTY = {"limits": {"memory_mb": 1024, "processes": 30, "cpu_s": 30}, "timeout": 2}


def _reach(path: str, port: int, pid: int) -> str:
    return f"""
import json, socket
said = {{}}
def attempt(name, action):
    try:
        said[name] = ["reached", repr(action())]
    except OSError as error:
        said[name] = ["denied", error.errno]
attempt("canary", lambda: open({path!r}).read())
attempt("loopback", lambda: socket.create_connection(("127.0.0.1", {port}), 2).close())
attempt("sentinel", lambda: os.kill({pid}, 0))
attempt("environ", lambda: open("/proc/{pid}/environ", "rb").read())
print(json.dumps(said))
"""


class Rootless:
    """What the child reported, and what the witnesses saw."""

    def __init__(self, user: OrdinaryUser) -> None:
        """Set up the witnesses, run every case, look at the witnesses again."""
        self.user = user
        self.token = secrets.token_hex(16)
        self.nonce = secrets.token_hex(8)
        self.canary = user.home / "canary"
        self.canary.write_text(self.token, encoding="ascii")
        os.chown(self.canary, user.uid, user.gid)
        self.sink = socket.create_server(("127.0.0.1", 0))
        self.sink.setblocking(False)
        sleeper = "import signal; print('up', flush=True); signal.pause()"
        self.sentinel: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-I", "-c", sleeper], stdout=subprocess.PIPE, **user.ids
        )
        if self.sentinel.stdout is None or self.sentinel.stdout.read(3) != b"up\n":
            raise AssertionError("the sentinel did not start")
        self.reach = _reach(str(self.canary), self.sink.getsockname()[1], self.sentinel.pid)
        self.seen = user.processes()
        self.cases: dict[str, dict[str, Any]] = {}
        self.left: set[str] = set()

    def run_all(self) -> None:
        """Run every case, once."""
        self.cases = self._run(sys.executable, self._list())
        self.left = self.user.leftovers() - {str(self.sentinel.pid)}

    def _list(self) -> list[tuple[str, str, dict[str, Any]]]:
        small = {"limits": _MEMORY, "timeout": 10}
        return [
            ("python", "print(sum(range(10)))", {}),
            ("bash", "echo $((40 + 5))", {"language": "bash"}),
            ("javascript", "console.log(40 + 5)", {"language": "javascript"}),
            ("exec", "print(45)", {"start": "exec"}),
            ("full-javascript", "console.log(a + 5)", {"language": "javascript"}),
            ("reach", self.reach, {}),
            ("forks", _FORKS, {"limits": {"processes": 30}, "timeout": 5}),
            ("forks-control", _FORKS, {"limits": {"processes": 80}, "timeout": 5}),
            ("hog", _HOG, small),
            ("hiding-hog", _HIDING_HOG, small),
            ("thread-hogs", _HOGS_BEHIND_THREADS, small),
            ("leaderless-hogs", _HOGS_WITHOUT_A_FIRST_THREAD, small),
            ("secretive-hogs", _HOGS_NOT_TO_BE_LOOKED_INTO, small),
            ("hog-control", "x = b'x' * (200 << 20)", {"limits": {"memory_mb": 400}}),
            ("left-hog", _HOG_IN_A_THREAD, {"limits": {"memory_mb": 128}, "timeout": 30}),
            ("left-control", _HOG_IN_A_THREAD, {"limits": {"memory_mb": 600}, "timeout": 1}),
            ("late-hog", _HOG_IN_A_THREAD, {"limits": {"memory_mb": 128}, "timeout": 30}),
            ("late-control", _HOG_IN_A_THREAD, {"limits": {"memory_mb": 600}, "timeout": 1}),
            ("full", _FILL, {"limits": {"memory_mb": 40, "disk_mb": 80}, "timeout": 10}),
            ("loop", "while True: pass", {"timeout": 1}),
            ("burn", "while True: pass", {"limits": {"cpu_s": 0.3}, "timeout": 10}),
            ("memory-of-nobody", _MEMORY_OF_NOBODY, {}),
            ("thread-burn", _BURN_BEHIND_A_THREAD, {"limits": {"cpu_s": 0.3}, "timeout": 10}),
            ("forgotten-burn", _BURN_THAT_NOBODY_WAITS_FOR, {"limits": {"cpu_s": 1}, "timeout": 9}),
            ("instances", _INSTANCES, {}),
            ("demanding", "print(45)", {"demand_hard": True}),
            *((f"{name}-control", code, _PLENTY) for name, code in _HIDDEN.items()),
        ]

    def _run(
        self, python: str, cases: list[tuple[str, str, dict[str, Any]]]
    ) -> dict[str, dict[str, Any]]:
        told = [
            (name, _SAY[options.get("language", "python")].format(self.nonce) + code, options)
            for name, code, options in cases
        ]
        script = self.user.home / "cases.json"
        script.write_text(json.dumps(told), encoding="utf-8")
        script.chmod(0o644)
        done = self.user.run(_EMBED, str(script), python=python, timeout_s=150)
        assert done.code == 0, done.stderr
        return {said.pop("case"): said for said in map(json.loads, done.stdout.splitlines())}

    def embedded_in(self, python: str) -> dict[str, dict[str, Any]]:
        """Run one plain case in another interpreter."""
        return self._run(python, [("plain", "print(45)", {})])

    def said(self, name: str) -> dict[str, Any]:
        """Return a case's report; a program that did not begin is no evidence (H3)."""
        report = self.cases[name]
        assert report["stdout"].startswith(self.nonce), report
        return {**report, "stdout": report["stdout"][len(self.nonce) + 1 :]}

    def connections(self) -> int:
        """Count what reached the sink."""
        count = 0
        while True:
            try:
                self.sink.accept()[0].close()
            except BlockingIOError:
                return count
            count += 1

    def close(self) -> None:
        """End what we started."""
        self.sentinel.kill()
        self.sentinel.communicate()
        self.sink.close()


@pytest.fixture(scope="module")
def rootless() -> Iterator[Rootless]:
    """Every case, once."""
    with OrdinaryUser() as user:
        made = Rootless(user)
        try:
            made.run_all()
            yield made
        finally:
            made.close()


@pytest.mark.parametrize(
    "language",
    ["python", "exec", "bash", pytest.param("javascript", marks=pytest.mark.needs("node"))],
)
def test_rootless_languages_run(rootless: Rootless, language: str) -> None:
    said = rootless.said(language)
    assert (said["verdict"], said["stdout"], said["level"]) == ("ok", "45\n", "namespace")


def test_rootless_works_in_the_distributions_python(rootless: Rootless) -> None:
    said = rootless.embedded_in("/usr/bin/python3")["plain"]
    assert said["stdout"] == f"{rootless.nonce}\n45\n"


def test_rootless_hardness_is_told_honestly(rootless: Rootless) -> None:
    hardness = rootless.said("python")["hardness"]
    soft = {name for name, how in hardness.items() if how == "soft"}
    assert soft == {"memory_mb", "cpu_s"}


def test_rootless_demand_for_hard_limits_is_refused(rootless: Rootless) -> None:
    said = rootless.cases["demanding"]
    assert said["error"] == "HostUnsupported"
    assert "cpu_s, memory_mb can only be held softly" in said["message"]
    assert "cellwall doctor" in said["message"]


@pytest.mark.needs("node")
def test_rootless_session_survives_a_full_disk(rootless: Rootless) -> None:
    """Its sources take nothing of the work area, though there is no memfd for them."""
    said = rootless.said("full-javascript")
    assert (said["verdict"], said["stdout"]) == ("ok", "45\n")


@pytest.mark.parametrize("what", ["canary", "loopback", "sentinel", "environ"])
def test_rootless_reach_for_the_host_is_denied(rootless: Rootless, what: str) -> None:
    """Control: the same program as the same user, without a jail, reaches everything."""
    free = json.loads(rootless.user.run("import os\n" + rootless.reach).stdout)
    assert free[what][0] == "reached"
    assert rootless.connections() == 1  # the control's own
    said = rootless.said("reach")
    assert json.loads(said["stdout"])[what][0] == "denied"
    assert rootless.token not in json.dumps(rootless.cases)
    assert rootless.sentinel.poll() is None


def test_rootless_fork_bomb_is_held_by_the_kernel(rootless: Rootless) -> None:
    held, control = (rootless.said(name)["stdout"] for name in ("forks", "forks-control"))
    assert control == "made 60\n"
    made = re.match(r"made (\d+)\n", held)
    assert made is not None
    assert 20 <= int(made[1]) <= 30


def test_rootless_inotify_instances_are_bounded(rootless: Rootless) -> None:
    """They are charged to the user too, who would have none left; control: without a jail."""
    assert rootless.user.run(_INSTANCES).stdout == "took 60\n"
    assert rootless.said("instances")["stdout"] == "took 32\n"


@pytest.mark.parametrize(
    "case", ["hog", "hiding-hog", "thread-hogs", "leaderless-hogs", "secretive-hogs", "full"]
)
def test_rootless_memory_hog_is_killed_by_the_watchdog(rootless: Rootless, case: str) -> None:
    assert rootless.said("hog-control")["verdict"] == "ok"
    assert rootless.said(case)["verdict"] == "memory"


def test_rootless_context_that_ends_between_cells_says_so(rootless: Rootless) -> None:
    assert rootless.said("left-control")["stdout"].endswith("45\n")
    assert "new one" not in rootless.said("left-control")["notes"]
    said = rootless.said("left-hog")
    assert said["stdout"].endswith("45\n"), said
    assert "this ran in a new one" in said["notes"]


def test_rootless_cell_begun_under_a_kill_says_why_it_ended(rootless: Rootless) -> None:
    assert rootless.said("late-control")["stdout"].endswith("45\n")
    said = rootless.said("late-hog")
    assert said["verdict"] == "memory" or "this ran in a new one" in said["notes"]


def test_rootless_memory_that_nobody_could_count_is_not_to_be_had(rootless: Rootless) -> None:
    """Control: the same program as the same user, without a jail."""
    kinds = ("memfd", "semaphores", "messages", "shared")
    free = rootless.user.run(_MEMORY_OF_NOBODY).stdout
    assert free == "".join(f"{kind} made\n" for kind in kinds)
    held = rootless.said("memory-of-nobody")["stdout"]
    assert held == "".join(f"{kind} Function not implemented\n" for kind in kinds)


@pytest.mark.parametrize(
    ("case", "verdict"),
    [
        ("loop", "wall_time"),
        ("burn", "cpu_time"),
        ("thread-burn", "cpu_time"),
        ("forgotten-burn", "cpu_time"),
    ],
)
def test_rootless_endless_loop_is_stopped(rootless: Rootless, case: str, verdict: str) -> None:
    assert rootless.said(case)["verdict"] == verdict


@pytest.mark.parametrize("case", sorted(_HIDDEN))
def test_rootless_controls_of_what_hides_run_on_where_they_may(
    rootless: Rootless, case: str
) -> None:
    assert rootless.said(f"{case}-control")["verdict"] == "wall_time"


def test_rootless_engine_leaves_no_process_behind(rootless: Rootless) -> None:
    assert rootless.sentinel.pid in rootless.seen
    assert not rootless.left

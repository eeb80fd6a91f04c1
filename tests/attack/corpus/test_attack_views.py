"""Group H: /proc, /sys, /dev and the environment say nothing about the host."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.engine.templates.store import state_dir
from kit import controls
from kit.arena import Arena
from kit.places import ROOT

pytestmark = pytest.mark.attack
GOLDEN = Path(__file__).parent / "golden"
HIDDEN = "ENOENT EACCES EPERM MASKED"


@pytest.fixture(scope="module")
def tried(arena: Arena) -> Iterator[controls.Both]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        me = str(os.getpid())
        inside = {
            "pid": "1",
            "host_pid": me,
            "hostname": os.uname().nodename,
            "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "port": f"0100007F:{server.getsockname()[1]:04X}",
        }
        yield controls.both(
            arena, "probe_views", {"inside": inside, "outside": {**inside, "pid": me}}
        )


@pytest.mark.root
@pytest.mark.parametrize(
    "case",
    [
        pytest.param("H01", id="H01-processes"),
        pytest.param("H02", id="H02-pid-1"),
        pytest.param("H10", id="H10-network-tables"),
    ],
)
def test_view_is_denied(tried: controls.Both, case: str) -> None:
    tried.denied(case, HIDDEN)


@pytest.mark.root
@pytest.mark.parametrize(
    ("case", "words", "least"),
    [
        pytest.param("H03", HIDDEN, 5, id="H03-kernel-tables"),
        pytest.param("H04", "ENOENT EACCES EPERM EROFS", 5, id="H04-kernel-settings"),
        pytest.param("H05", "ENOENT EACCES EPERM EROFS ENOTDIR", 1, id="H05-triggers"),
        pytest.param("H06", "ENOENT", 1, id="H06-own-control-group"),
        pytest.param("H07", "ENOENT", 5, id="H07-sys"),
        pytest.param("H11", "ENOENT", 3, id="H11-names-of-the-host"),
    ],
)
def test_what_this_kernel_has_is_hidden(
    tried: controls.Both, case: str, words: str, least: int
) -> None:
    """Kernels differ in what there is to hide: at least `least` of it must be seen outside."""
    inside = [t for (name, _), t in tried.inside.items() if name == case]
    assert [t for t in inside if t.word not in words.split()] == []
    outside = [t for (name, _), t in tried.outside.items() if name == case and t.reached]
    assert len(outside) >= least


def test_devices_are_the_golden_list(arena: Arena) -> None:
    """H12"""
    code = """
import os, stat
print()
for name in sorted(os.listdir("/dev")):
    path = "/dev/" + name
    status = os.lstat(path)
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    kind = stat.S_IFMT(status.st_mode)
    words = {stat.S_IFLNK: lambda: "-> " + os.readlink(path), stat.S_IFCHR: lambda: number}
    print(name, words.get(kind, lambda: oct(kind))())
"""
    found = arena.run(code).stdout.split("\n\n", 1)[1]
    assert found == (GOLDEN / "devices.txt").read_text()


def test_environment_is_the_golden_list(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """H13: by name, and nothing of ours in the values; so for programs it starts."""
    monkeypatch.setenv("CELLWALL_CANARY", "canary-value")
    code = """
import os, json, subprocess, sys
child = subprocess.check_output([sys.executable, "-c", "import os; print(sorted(os.environ))"])
with open("/proc/self/environ") as file:
    print(json.dumps([dict(os.environ), child.decode(), file.read()]))
"""
    environment, child, first = json.loads(arena.run(code).stdout.splitlines()[-1])
    name = "image_environment.txt" if "image" in arena.choice else "environment.txt"
    golden = (GOLDEN / name).read_text().split()
    assert sorted(environment) == golden
    assert child.strip() == repr(sorted(golden))
    said = json.dumps([environment, child, first])
    for word in ("canary", str(state_dir()), sys.prefix):
        assert word not in said


def test_control_group_names_say_nothing(arena: Arena) -> None:
    """H09: from inside every path is the root; from outside it carries an engine's label."""
    code = "import os\nprint()\nprint(open('/proc/self/cgroup').read())"
    lines = arena.run(code).stdout.split("\n\n", 1)[1].split()
    assert lines
    assert {line.rsplit(":", 1)[1] for line in lines} == {"/"}


def test_figures_are_the_quota(arena: Arena) -> None:
    """H15: one CPU and the memory limit, whatever the machine has."""
    code = """
import os, subprocess
text = open("/proc/meminfo").read() + open("/proc/cpuinfo").read()
print(os.cpu_count(), len(os.sched_getaffinity(0)), subprocess.check_output(["nproc"]).decode(),
      text.split()[1], text.count("processor\\t"), open("/proc/loadavg").read())
"""
    words = arena.run(code, limits={"memory_mb": 200, "cpus": 1.0}).stdout.split()[1:]
    assert words[:5] == ["1", "1", "1", str(200 * 1024), "1"]
    assert words[5:8] == ["0.00", "0.00", "0.00"]


_COUNTS = ["softnet_stat", "sockstat", "protocols", "rt_acct", "stat/rt_cache", "stat/arp_cache"]
_READ_COUNTS = """
import errno, json, os, threading
found = {{}}
child = os.fork()
if child == 0:
    import time
    time.sleep(60)
places = ["/proc/net", "/proc/self/net", "/proc/thread-self/net", f"/proc/{{child}}/net"]
for place in places:
    for name in {names}:
        path = f"{{place}}/{{name}}"
        try: os.chmod(path, 0o777)
        except OSError: pass
        try:
            open(path).read()
            word = "READ"
        except OSError as error:
            word = errno.errorcode[error.errno]
        found.setdefault(name, []).append(word)
os.kill(child, 9)
print("\\n" + json.dumps(found))
"""


@pytest.mark.root
def test_counts_of_all_namespaces_are_hidden(arena: Arena) -> None:
    """Packets of the whole machine, exact to one, are a way to tell another sandbox something.

    No mount covers what hangs below each process. The control: anybody outside reads them.
    """
    code = _READ_COUNTS.format(names=[*_COUNTS, "tcp", "dev", "snmp"])
    found = json.loads(arena.run(code).stdout.splitlines()[-1])
    outside = json.loads(controls.run_in("user", code).splitlines()[-1])
    assert outside["softnet_stat"] == outside["sockstat"] == ["READ"] * 4
    assert {name: set(found.pop(name)) - {"ENOENT"} for name in _COUNTS} == {
        name: {"EACCES"} if "READ" in outside[name] else set() for name in _COUNTS
    }
    assert found == {"tcp": ["READ"] * 4, "dev": ["READ"] * 4, "snmp": ["READ"] * 4}


def test_figures_that_programs_miss_are_there(arena: Arena) -> None:
    """psutil warns without these, and `ps` shows starts in 1970."""
    code = """
import json, re, time
memory = dict(re.findall(r"(?m)^(\\w+): +(\\d+) kB$", open("/proc/meminfo").read()))
started = int(re.search(r"(?m)^btime (\\d+)$", open("/proc/stat").read())[1])
up = float(open("/proc/uptime").read().split()[0])
print("\\n" + json.dumps([memory, time.time() - up - started]))
"""
    memory, off_s = json.loads(arena.run(code).stdout.splitlines()[-1])
    assert {"Active", "Inactive", "Shmem", "Buffers", "Cached", "Slab"} <= set(memory)
    assert abs(off_s) < 3


BREAKS = {
    "plain": "1/0",
    "syntax": "def (",
    "import": "import nothing_of_this_name",
    "recursion": "def f(): f()\nf()",
    "thread": "import threading\nt = threading.Thread(target=lambda: 1/0); t.start(); t.join()",
    "exit hook": "import atexit\natexit.register(lambda: 1/0)",
    "display": "class Odd:\n def __repr__(self): raise ValueError('odd')\nresult = Odd()",
    "value": "def main(): return object()",
    "frames": """
import sys, traceback
frame = sys._getframe()
while frame:
    print(frame.f_code.co_filename, sorted(frame.f_globals)[:5])
    frame = frame.f_back
print(sys.path, sys.modules["os"].__file__, sys.argv, sys.orig_argv)
raise RuntimeError(sys.path)""",
}


@pytest.mark.parametrize("name", BREAKS)
def test_tracebacks_hold_no_host_path(arena: Arena, name: str) -> None:
    """H16: neither the streams nor the error carry where we are installed."""
    try:
        execution = arena.run(BREAKS[name])
    except AssertionError as error:
        # A program that does not compile prints no nonce; its message is what is looked at.
        assert name == "syntax"
        said = str(error)
        assert "SyntaxError" in said
    else:
        e = execution
        said = repr((e.stdout, e.stderr, e.error, e.result, e.results, e.outcome.notes))
        assert "Error" in said or "Odd" in said or name == "value"
    for word in (str(ROOT), str(state_dir()), sys.prefix):
        assert word not in said

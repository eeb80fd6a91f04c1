"""Groups M and N: what one sandbox leaves for the next, and what forks of one image share.

The witness of M is a second sandbox that looks for the first one's token, with a control in which
the token is there to be found: the same sandbox again. The witness of N is the comparison of runs.
"""

from __future__ import annotations

import json
import os
import secrets
from typing import Any

import pytest

from cellwall import Verdict
from kit.arena import Arena, unconfined

pytestmark = pytest.mark.attack

_PLANT = """
import ctypes, os
token = {token!r}
planted = []
for folder in ("/tmp", "/dev/shm", os.path.expanduser("~"), "/var/tmp", "/run", "/usr/lib", "/etc"):
    try:
        with open(folder + "/left", "w") as f: f.write(token)
        planted.append(folder)
    except OSError: pass
libc = ctypes.CDLL(None)
libc.shmget(0x5eed, 4096, 0o1666); libc.msgget(0x5eed, 0o1666); libc.semget(0x5eed, 1, 0o1666)
executed, write_end = os.pipe()
if os.fork() == 0:
    os.setsid()
    os.execvp("sleep", ["sleep", "599"])
os.close(write_end)
os.read(executed, 1)  # its end, which comes with the exec
print(planted, flush=True)
"""
_SEARCH = """
import ctypes, os
token, found = {first!r} + {second!r}, []  # in two, or a program would find its own file
for top in ("/tmp", "/dev/shm", "/home", "/var", "/run", "/etc"):
    for folder, _, names in os.walk(top):
        for name in names:
            try: text = open(os.path.join(folder, name), errors="replace").read(4096)
            except OSError: continue
            if token in text: found.append(name)
for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
    try:
        # As a word: random names of others may have the digits in them.
        if "599" in open(f"/proc/{{pid}}/cmdline").read().split("\\0"): found.append("process")
    except OSError: pass
libc = ctypes.CDLL(None)
found += [call for call in ("shmget", "msgget") if getattr(libc, call)(0x5eed, 0, 0) >= 0]
found += ["semget"] if libc.semget(0x5eed, 0, 0) >= 0 else []
print(sorted(set(found)), flush=True)
"""


@pytest.mark.parametrize("case", ["M01-M02-M03-M08"])
def test_token_left_in_one_sandbox_is_found_in_no_other(arena: Arena, case: str) -> None:
    token = secrets.token_hex(16)

    async def attack() -> None:
        async with arena.sandbox() as first, arena.sandbox() as beside:
            planted = await first.run(_PLANT.format(token=token))
            assert planted.ok, planted
            assert "/dev/shm" in planted.stdout
            search = _SEARCH.format(first=token[:16], second=token[16:])
            again = (await first.run(search)).stdout  # the control: there it is
            assert "'left'" in again
            assert "'process'" in again
            assert (await beside.run(search)).stdout == "[]\n"
        assert (await arena.arun(search)).stdout.endswith("\n[]\n")

    with arena.leaving_nothing():
        arena.do(attack())


_FAMILIES = """
import socket
for family, kind in ((40, 1), (40, 2), (30, 2), (30, 5), (16, 3), (17, 3), (38, 5)):
    try: print("OPEN", family, socket.socket(family, kind))
    except OSError: pass
print("done", flush=True)
"""


@pytest.mark.parametrize("case", ["M06"])
def test_socket_families_that_join_sandboxes_are_denied(arena: Arena, case: str) -> None:
    assert arena.run(_FAMILIES).stdout.endswith("\ndone\n")
    assert "OPEN" not in arena.run(_FAMILIES).stdout
    assert "OPEN" in unconfined(_FAMILIES).stdout  # netlink, at least, is there for everybody


@pytest.mark.parametrize("case", ["M10"])
def test_processes_of_another_sandbox_are_out_of_reach(arena: Arena, case: str) -> None:
    async def attack() -> None:
        async with arena.sandbox() as victim, arena.sandbox() as attacker:
            await victim.run("kept = 5")
            pid = victim.live.runtime_sandbox.pid  # type: ignore[attr-defined]
            code = (
                "import os\nreached = []\n"
                f"for pid in range({pid - 20}, {pid + 20}):\n"
                "    for reach in (lambda: os.kill(pid, 0), lambda: os.listdir(f'/proc/{pid}'),\n"
                "                  lambda: os.pidfd_open(pid)):\n"
                "        try: reach(); reached.append(pid)\n"
                "        except OSError: pass\n"
                "reached"
            )
            assert (await attacker.run(code)).text == "[]"
            assert (await victim.run("kept")).text == "5"
            pids = "[p for p in os.listdir('/proc') if p.isdigit()]"
            assert (await attacker.run(f"import os\nlen({pids}) < 4")).text == "True"

    arena.do(attack())
    reach = f"import os\nif os.listdir('/proc/{os.getpid()}'): print('REACHED')"
    assert "REACHED" in unconfined(reach).stdout


_POISON = """
import builtins, codecs, importlib, os, sys, sysconfig
done = []
home = os.path.expanduser("~/.local/lib/python3.11/site-packages")
for folder in (sysconfig.get_path("purelib"), os.path.dirname(os.__file__), home, "."):
    for name in ("sitecustomize.py", "usercustomize.py", "x.pth", "json.py"):
        try:
            os.makedirs(folder, exist_ok=True)
            fd = os.open(os.path.join(folder, name), os.O_CREAT | os.O_WRONLY)
            os.write(fd, b"import os; os.write(1, b'POISONED')")
            done.append(name)
        except OSError: pass
os.write(1, repr(done).encode())
builtins.open = builtins.print = len
sys.meta_path.insert(0, None); sys.modules["json"] = None
codecs.register(lambda name: None)
importlib.import_module = None
os._exit(0)
"""


@pytest.mark.parametrize("case", ["M11-N11"])
def test_poison_of_one_run_is_gone_in_the_next(arena: Arena, case: str) -> None:
    poisoned = arena.run(_POISON)
    assert "json.py" in poisoned.stdout  # it could write somewhere of its own
    check = "import json, subprocess, sys\nprint(json.dumps([1]), open is not len)\n" + (
        "print(subprocess.run([sys.executable, '-c', 'import json'], capture_output=True).stdout)"
    )
    assert arena.run(check).stdout.split("\n", 1)[1] == "[1] True\nb''\n"


_RANDOM = """
import random, uuid, secrets, ssl, os, tempfile
print(random.random(), uuid.uuid4(), secrets.token_hex(8), ssl.RAND_bytes(8).hex(),
      os.urandom(8).hex(), next(tempfile._get_candidate_names()), sep=chr(10))
"""


@pytest.mark.parametrize("case", ["N02-N14"])
def test_no_random_number_repeats_in_twenty_runs(arena: Arena, case: str) -> None:
    rows = [arena.run(_RANDOM).stdout.split()[1:] for _ in range(20)]
    for column in zip(*rows, strict=True):
        assert len(set(column)) == 20, column


@pytest.mark.parametrize("case", ["N01-N03"])
def test_fresh_interpreters_share_neither_hash_seed_nor_layout(arena: Arena, case: str) -> None:
    code = "import sys\nprint(hash('x'), id(sys), id(object()))"
    rows = [arena.run(code, start="exec").stdout.split()[1:] for _ in range(6)]
    assert len({row[0] for row in rows}) == 6
    assert len({row[1] for row in rows}) > 1


_TOKEN = secrets.token_hex(16)
_MEMORY = """
import gc, os
# The halves are made here and never joined: only a leaked token has them side by side.
left, right = (bytes(b ^ 1 for b in bytes.fromhex(word)) for word in ({left!r}, {right!r}))
found = set()
def look(data, where):
    at = data.find(left)
    while at >= 0:
        if data[at + len(left) : at + 2 * len(left)] == right: found.add(where)
        at = data.find(left, at + 1)
for thing in gc.get_objects():
    if isinstance(thing, dict):
        for value in list(thing.values()):
            if isinstance(value, str): look(value.encode("utf-8", "replace"), "object")
look(repr(dict(os.environ)).encode(), "environment")
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for line in maps:
        start, end = (int(word, 16) for word in line.split()[0].split("-"))
        if " r" in line and "[v" not in line and end - start < 64 << 20:
            memory.seek(start)
            try: look(memory.read(end - start), "memory")
            except (OSError, ValueError): pass
print(sorted(found), flush=True)
"""


@pytest.mark.parametrize("case", ["N06"])
def test_token_of_the_embedder_is_nowhere_in_the_sandbox(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setenv("CELLWALL_TEST_TOKEN", _TOKEN)
    shifted = bytes(b ^ 1 for b in _TOKEN.encode()).hex()
    code = _MEMORY.format(left=shifted[:32], right=shifted[32:])
    limits = {"memory_mb": 512}
    assert arena.run(code, limits=limits).stdout.endswith("\n[]\n")
    given = arena.run(code, limits=limits, env={"GIVEN": _TOKEN})  # the control: it would be seen
    assert "'environment', 'memory'" in given.stdout, given


async def _give(arena: Arena, way: str, start: str) -> None:
    """Hand the token to enough sandboxes for every worker to have made some of them."""
    as_program: dict[str, dict[str, Any]] = {
        "env": {"env": {"GIVEN": _TOKEN}},
        "stdin": {"stdin": _TOKEN},
        "arguments": {"arguments": {"given": _TOKEN}},
        "files": {"files": {"given": _TOKEN.encode()}},
    }
    given = as_program.get(way, {})
    code = f"given = {_TOKEN!r}" if way == "code" else "0"
    for _ in range(6):
        assert (await arena.arun(code, **given)).ok
    env = {"GIVEN": _TOKEN} if way == "env" else {}
    for _ in range(3):
        async with arena.sandbox(env=env, start=start) as sandbox:
            assert (await sandbox.run(code)).ok


@pytest.mark.parametrize("start", ["fork", "exec"])
@pytest.mark.parametrize("way", ["env", "code", "stdin", "arguments", "files"])
def test_what_one_caller_gave_is_in_no_other_sandbox(arena: Arena, way: str, start: str) -> None:
    """N06 between tenants: all sandboxes are forks of the same workers, freed memory and all.

    The control is the one above: what is there is seen.
    """
    shifted = bytes(b ^ 1 for b in _TOKEN.encode()).hex()
    code = _MEMORY.format(left=shifted[:32], right=shifted[32:])
    limits = {"memory_mb": 512}

    async def attack() -> None:
        await _give(arena, way, start)
        for _ in range(3):
            assert (await arena.arun(code, limits=limits)).stdout.endswith("\n[]\n")
        async with arena.sandbox(limits=limits) as sandbox:
            assert (await sandbox.run(code)).stdout == "[]\n"

    arena.do(attack())


_START = """
import json, locale, os, resource, signal, threading
print(json.dumps({
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:3],
    "more_fds": [fd for fd in range(3, 4096) if os.path.exists(f"/proc/self/fd/{fd}")],
    "threads": len(os.listdir("/proc/self/task")), "python_threads": threading.active_count(),
    "cwd": os.getcwd(), "umask": oct(os.umask(0o022)), "nice": os.nice(0),
    "locale": os.environ.get("LANG"), "masked": len(signal.pthread_sigmask(0, [])),
    "handled": [n for n in range(1, 65) if n not in (32, 33)
                and signal.getsignal(n) not in (signal.SIG_DFL, signal.SIG_IGN)],
    "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
    "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
}))
"""


@pytest.mark.parametrize("case", ["N05-N08-N13"])
def test_program_starts_in_the_golden_state(arena: Arena, case: str) -> None:
    found = json.loads(arena.run(_START, limits={"open_files": 200}).stdout.split("\n", 1)[1])
    assert found == {
        "fds": [0, 1, 2],
        "more_fds": [],
        "threads": 1,
        "python_threads": 1,
        "cwd": found["cwd"],
        "umask": "0o22",
        "nice": os.nice(0),  # as low as the engine itself, never higher
        "locale": "C.UTF-8",
        "masked": 0,
        "handled": [2],  # Python's own KeyboardInterrupt
        "core": 1,
        "files": 200,
    }
    assert found["cwd"] == arena.run("import os\nprint(os.path.expanduser('~'))").stdout.split()[1]


_PARENT = """
import os
reached = []
def reach(path):
    if path.endswith(("fd", "root", "cwd")): os.listdir(path)
    else: open(path, "rb").read(1)
for pid in {os.getppid(), 1}:
    for name in ("environ", "fd", "root", "maps", "cwd", "mem"):
        try:
            reach(f"/proc/{pid}/{name}")
            reached.append(name)
        except OSError: pass
names = {line.split()[-1] for line in open("/proc/net/unix").read().splitlines()[1:]}
print(reached, len([n for n in names if n.startswith(("@", "/"))]), flush=True)
"""


@pytest.mark.parametrize("case", ["N09-N10"])
def test_parent_and_the_fork_servers_socket_are_out_of_reach(arena: Arena, case: str) -> None:
    # One name in /proc/net/unix: the agent's own listener, which checks who calls.
    assert arena.run(_PARENT).stdout.endswith("\n[] 1\n")
    control = unconfined(_PARENT.replace("{os.getppid(), 1}", "{os.getpid()}"))
    assert "['environ', 'fd', 'root', 'maps', 'cwd'" in control.stdout


@pytest.mark.parametrize("case", ["N19"])
def test_exit_hooks_and_buffers_of_the_image_are_silent(arena: Arena, case: str) -> None:
    for _ in range(3):
        ended = arena.run("pass")
        assert (ended.stdout.count("\n"), ended.stderr) == (1, "")
        assert ended.verdict is Verdict.OK

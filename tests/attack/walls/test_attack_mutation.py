"""H8 in miniature: each guard dropped in turn, and something has to notice.

How a guard is dropped is in `mutations`. A mutation nobody notices means a guard without a test.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from cellwall import CellwallError, Engine, EngineSettings, Execution
from cellwall.jail.inspect import posture
from cellwall.runtimes.jail.sandbox import JailSandbox
from kit.arena import Arena, Traces
from kit.attack.mutations import Drop, dropping

pytestmark = [pytest.mark.attack, pytest.mark.root]


@pytest.fixture(autouse=True)
def _settled(arena: Arena) -> None:
    """What the test before left to the background would be counted as a trace of this one's."""
    arena.settle()


@pytest.fixture
def drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drop:
    """`drop(module=code, …)`: from now on fork-servers start from the mutated bundle."""
    return dropping(tmp_path, monkeypatch)


def _run(code: str) -> Execution:
    async def once() -> Execution:
        engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
        try:
            return await engine.run(code)
        finally:
            await engine.aclose()

    return asyncio.run(once())


def _refusal() -> str:
    before = Traces.now()
    with pytest.raises(CellwallError) as caught:
        _run("print('the nonce that nobody may see')")
    assert Traces.now() == before
    return str(caught.value)


NO_NEW_PRIVS = """
from cellwall.linux.syscalls import process as _process
_process.prepare_no_new_privs = lambda: _process.prepare_session(0o22)[1]  # umask: it never fails
"""
NAMESPACE = "_NAMESPACES &= ~process.CLONE_NEW{}"
NO_NETWORK = "Networks.enter = lambda self: None"

REFUSED = {
    "mount-nosuid": ({"steps": "mounts.MS_NOSUID = 0"}, "nosuid"),
    "mount-nodev": ({"steps": "mounts.MS_NODEV = 0"}, "nodev"),
    "mount-read-only": ({"steps": "mounts.MS_RDONLY = 0"}, "'ro'"),
    "rlimits": ({"lockdown": "def set_rlimits(lock): return ()"}, "Max processes"),
    "descriptors": (
        {"lockdown": "def set_descriptor_limit(lock): return ()"},
        "Max open files",
    ),
    "seccomp": ({"lockdown": "def filter_syscalls(program): return ()"}, "Seccomp"),
    "capabilities": ({"lockdown": "def drop_privileges(lock, last): return ()"}, "CapBnd"),
    # A process without an id here cannot even make its own work area.
    "ids": ({"lockdown": "def become_user(lock): return ()"}, "setfsgid 0"),
    "network-namespace": ({"netns_reuse": NO_NETWORK}, "net namespace"),
    "ipc-namespace": ({"forkserver": NAMESPACE.format("IPC")}, "ipc namespace"),
    "uts-namespace": ({"forkserver": NAMESPACE.format("UTS")}, "uts namespace"),
    "cgroup-namespace": (
        {"forkserver": NAMESPACE.format("CGROUP"), "sandbox_init": "OWN_CGROUP_NAMESPACE = ()"},
        "cgroup namespace",
    ),
}


@pytest.mark.parametrize("guard", REFUSED)
def test_sandbox_without_guard_is_refused(drop: Drop, guard: str) -> None:
    changes, complaint = REFUSED[guard]
    drop(**changes)
    assert complaint in _refusal()


@pytest.mark.parametrize("place", ["boot", "forkserver", "lockdown"])
def test_mutation_without_effect_is_not_refused(drop: Drop, place: str) -> None:
    """The control: that the bundle is a mutated copy is not what the refusals are about."""
    drop(**{place: "assert True"})
    assert _run("print('runs')").stdout == "runs\n"


def test_sandbox_without_no_new_privs_is_refused(drop: Drop) -> None:
    """Landlock and the filter themselves need it; without them it would be the posture's turn."""
    drop(boot=NO_NEW_PRIVS, forkserver=NO_NEW_PRIVS, lockdown=NO_NEW_PRIVS)
    assert "Landlock: restrict self" in _refusal()
    landless = "\ndef restrict_files(lock, free_fd): return ()\n"
    drop(boot=NO_NEW_PRIVS, forkserver=NO_NEW_PRIVS, lockdown=NO_NEW_PRIVS + landless)
    assert "install seccomp filter" in _refusal()


PROBE_MASKS = """
def size(name):
    try:
        return len(open("/proc/" + name).read(65536))
    except OSError:
        return 0
print(sum(map(size, ("interrupts", "softirqs", "zoneinfo", "buddyinfo", "vmstat", "devices"))))
"""


def test_probe_of_kernel_tables_reaches_without_the_masks(drop: Drop) -> None:
    """H03 sees the guard go."""
    drop()
    assert int(_run(PROBE_MASKS).stdout) == 0
    drop(plan="def proc_masks(facts): return ()")
    assert int(_run(PROBE_MASKS).stdout) > 1000


PROBE_LEAK = """
try:
    print("REACHED", open("/srv/canary").read())
except OSError as error:
    print(type(error).__name__)
"""
LEAK = """
_root_plan = root_plan
def root_plan(facts, root):
    steps = list(_root_plan(facts, root))
    return tuple([*steps[:-1], s.Bind({!r}, "/srv", _RO), steps[-1]])
"""


LEAK_ON = """
_sandbox_plan = sandbox_plan
def sandbox_plan(facts, shape):
    from dataclasses import replace
    plan = _sandbox_plan(facts, shape)
    at = plan.steps.index(s.Enter(ROOT))
    more = (s.Directory(ROOT + "/srv"), s.Cover("/srv", ROOT + "/srv"))
    return plan._replace(steps=(*plan.steps[:at], *more, *plan.steps[at:]))
"""


def test_what_the_shared_root_shows_too_much_is_not_in_a_sandbox_s_own(
    drop: Drop, tmp_path: Path
) -> None:
    leaked = tmp_path / "leaked"
    leaked.mkdir()
    (leaked / "canary").write_text("token-of-the-canary")
    drop(plan=LEAK.format(str(leaked)))
    assert _run(PROBE_LEAK).stdout == "FileNotFoundError\n"
    drop(plan=LEAK.format(str(leaked)) + LEAK_ON)
    assert _run(PROBE_LEAK).stdout == "REACHED token-of-the-canary\n"


PROBE_OUTSIDE = """
try:
    print("REACHED", open("/proc/self/exe", "rb").read(4)[1:])
except OSError as error:
    print(type(error).__name__)
"""


def test_shared_root_is_opened_only_without_landlock(drop: Drop) -> None:
    """Of what lies there the kernel names one file inside: what the fork-server executes."""
    drop()
    assert _run(PROBE_OUTSIDE).stdout == "PermissionError\n"
    drop(lockdown="def restrict_files(lock, free_fd): return ()")
    assert _run(PROBE_OUTSIDE).stdout == "REACHED b'ELF'\n"


KEEPS_WHAT_THE_WORKER_HAS = """
class fds:
    HIGHEST = 1
    as_nameless_file = staticmethod(fds.as_nameless_file)
"""


def _sockets(pid: int) -> set[str]:
    links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
    return {link for link in links if link.startswith("socket:")}


def _parent(pid: int) -> int:
    return int(posture.read_status(posture.read_text(f"/proc/{pid}/status"))["PPid"])


def _shared_with_the_worker() -> set[str]:
    """Sockets that both init and the worker have; it speaks to its fork-server through one."""

    async def once() -> set[str]:
        engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
        try:
            async with await engine.create_sandbox() as sandbox:
                jail = sandbox.live.runtime_sandbox
                assert isinstance(jail, JailSandbox)
                worker = _parent(jail.pid)
                # The worker closes its copy of init's channel after the start is told, and before
                # it serves another one.
                async with await engine.create_sandbox() as second:
                    sibling = second.live.runtime_sandbox
                    assert isinstance(sibling, JailSandbox)
                    assert _parent(sibling.pid) == worker
                    ours, workers = _sockets(jail.pid), _sockets(worker)
                assert ours, "its channel, at least"
                assert workers, "its way to the fork-server, at least"
                return ours & workers
        finally:
            await engine.aclose()

    return asyncio.run(once())


def test_init_has_no_socket_of_the_worker(drop: Drop) -> None:
    """Through it, code that got hold of init would give the worker's answers."""
    drop()
    assert _shared_with_the_worker() == set()
    drop(sandbox_init=KEEPS_WHAT_THE_WORKER_HAS)
    assert len(_shared_with_the_worker()) == 1

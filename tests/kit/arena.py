"""The arena: one engine of a test's own, in which hostile code runs, and an outside witness.

Not a test and not an oracle inside the sandbox: `Traces` are counted on the host, from the
kernel's listings. The invariant: a run whose nonce did not come back is an error of the harness,
never a denial, because a probe that did not run proves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import re
import resource
import secrets
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from cellwall import AsyncSandbox, Engine, EngineSettings, Execution, Verdict
from cellwall.engine.templates.store import state_dir
from cellwall.runtimes.jail import fork_servers
from kit.figures import Reading, look
from kit.jail.control_groups import control_groups, is_left
from kit.jail.rehearsing import rehearsing

T = TypeVar("T")
LIMITS: dict[str, Any] = {"processes": 30, "memory_mb": 128}
"""Tight enough for bombs on a shared machine; each test raises what its control needs."""

_SAY = {
    "python": "import os as _o; _o.write(1, b'{}\\n')\n",
    "bash": "echo {}\n",
    "javascript": "require('fs').writeSync(1, '{}\\n');\n",
}
CONTROL_UID = 70_000 + os.getpid() % 4_000
"""This process's alone: a control that signals all it can, or uses up what its user may have, meets
nobody else's.
"""
DAY_S = 86_400.0
"""Idle life of what an engine has ready that lives as long as a whole session of tests. If it gave
that up in the middle of one, a count of what it left would see fewer than before.
"""
MADE_BY_A_TEST = "cellwall-test"
"""The source of file systems that tests mount; no engine leaves one of that name."""

_IS_BESIDE_OTHERS = "PYTEST_XDIST_WORKER" in os.environ
_KEPT_FOR_ALL = (
    {"compiled", "docker", "guest", "gvisor", "images", "templates"}
    if _IS_BESIDE_OTHERS
    else {"guest"}
)
"""Bundles, templates, images, what compilers made, what a host can do: the first that needs one
writes it, and that may be a test beside this one. A test that runs by itself counts all but the
bundles.
"""


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            parent = int(text[text.rindex(")") + 2 :].split()[1])
            found.setdefault(parent, []).append(int(entry.name))
    return found


def descendants(pid: int) -> set[int]:
    """Every process below `pid`, as the host's kernel lists them."""
    children, found, queue = _children(), set[int](), [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found.update(below)
        queue += below
    return found


def _mountinfo() -> str:
    return Path("/proc/self/mountinfo").read_text(encoding="utf-8")


def _own_mounts() -> list[str]:
    """Without those of other container engines here, and of tests that run beside this one."""
    others = re.compile(rf"docker|- \S+ {MADE_BY_A_TEST} ")
    return [line for line in _mountinfo().splitlines() if not others.search(line)]


def _state_files() -> list[Path]:
    """Without what every engine of the machine keeps there for all, by content."""
    if not _IS_BESIDE_OTHERS:
        found = [*state_dir().glob("*"), *state_dir().glob("*/*")]
        return [path for path in found if path.name not in _KEPT_FOR_ALL and path.suffix != ".pyz"]
    top = [path for path in state_dir().glob("*") if path.name not in _KEPT_FOR_ALL]
    return [*top, *(below for path in top for below in path.glob("*"))]


def _descriptors(counted: Callable[[str], bool]) -> int:
    """Without idle connections to a container engine, which its client keeps for later.

    Where empty cgroups do not count, nor does the one descriptor by which each is entered: whether
    a set is prepared for the next sandbox at this moment is a matter of time.
    """
    daemon = os.environ.get("DOCKER_HOST", "").removeprefix("unix://")
    groups = set[str]()
    if counted is not is_left:
        groups = {path for path in control_groups(os.getpid()) if not counted(path)}
    move_files, others = set[str](), 0
    for fd in os.listdir("/proc/self/fd"):
        target = _target(fd)
        if os.path.dirname(target) in groups and target not in move_files:
            move_files.add(target)
        else:
            others += not daemon or _peer(int(fd)) != daemon
    return others


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")[:200]
    return ""


def _target(fd: str) -> str:
    with contextlib.suppress(OSError):  # the listing's own
        return os.readlink(f"/proc/self/fd/{fd}")
    return ""


def _peer(fd: int) -> object:
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            with socket.socket(fileno=os.dup(fd)) as other:
                return other.getpeername()
    return None


@dataclass(frozen=True)
class Traces:
    """W4: what an engine can leave behind on the host."""

    processes: int
    control_groups: int
    mounts: int
    descriptors: int
    state_files: int
    containers: int = 0
    alive: frozenset[int] = field(default=frozenset(), compare=False, repr=False)
    """The processes."""
    groups: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    paths: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """The state files."""

    def is_no_more_than(self, before: Traces) -> bool:
        """Whether all that is here was here before.

        What an earlier test left to end by itself, such as the process beside a container that was
        removed, may end meanwhile. As many processes as before may be others: a fork-server that
        was killed has a successor. Cgroups are not compared by name: a worker that waits is in that
        of its next sandbox, another one after each start.
        """
        return (
            (self.alive <= before.alive or self.processes == before.processes)
            and self.control_groups <= before.control_groups
            and self.mounts <= before.mounts
            and self.descriptors <= before.descriptors
            and self.state_files <= before.state_files
            and self.paths <= before.paths
            and self.containers <= before.containers
        )

    @classmethod
    def now(
        cls, counted: Callable[[str], bool] = is_left, containers: Callable[[], int] = lambda: 0
    ) -> Traces:
        """`counted` says which cgroup directories are traces, `containers` asks a daemon."""
        alive = frozenset(descendants(os.getpid()))
        groups = frozenset(path for path in control_groups(os.getpid()) if counted(path))
        paths = frozenset(map(str, _state_files()))
        return cls(
            len(alive),
            len(groups),
            len(_own_mounts()),
            _descriptors(counted),
            len(paths),
            containers(),
            alive,
            groups,
            paths,
        )

    def beyond(self, before: Traces) -> list[str]:
        """Return the names of what is here and was not."""
        processes = (f"{pid} {_command(pid)}" for pid in self.alive - before.alive)
        return sorted([*processes, *(self.groups - before.groups), *(self.paths - before.paths)])


def peak_kib() -> int:
    """The most resident memory this process had since `fresh_peak_kib`."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise AssertionError("the kernel tells no peak")


def fresh_peak_kib() -> int:
    """What is resident now, from which the peak grows: what was before hides no growth.

    Free memory of the heap is given back, or new objects would go there. 5 resets the peak to the
    current value: https://docs.kernel.org/filesystems/proc.html
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak_kib()


class Arena:
    """One event loop with one engine that parks nothing, so that every trace has an owner."""

    def __init__(self, make: Callable[[], Engine] | None = None, **choice: Any) -> None:
        """`choice` names another runtime than the usual: `runtime=`, `isolation=`."""
        self.choice: dict[str, Any] = dict(choice)
        self.containers: Callable[[], int] = lambda: 0
        """How many a daemon has; where there is one, the test says how to ask it."""
        self._runner = asyncio.Runner()
        self.engine = self.do(self._made(make))
        try:
            with rehearsing():
                self.run("0")  # the fork-server and the threads exist from here on
        except BaseException:
            self.do(self.engine.aclose())
            self._runner.close()
            raise
        self.settle()

    @staticmethod
    async def _made(make: Callable[[], Engine] | None) -> Engine:
        if make is not None:
            return make()
        is_quick = os.environ.get("CELLWALL_TEST_FORK_SERVER") == "quick"
        if is_quick:  # the same attacks on sandboxes of the first fork-server, which stays
            fork_servers._QUICK_STARTS = 1 << 30
        settings = EngineSettings(pool_min=0, pool_max=0, pool_idle_s=DAY_S)
        return Engine(settings=settings, answers_first=is_quick)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        # Not the runner's own `run`: its signal handling makes a repr of the whole result.
        return self._runner.get_loop().run_until_complete(work)

    def run(self, code: str, language: str = "python", **options: Any) -> Execution:
        """Run a probe once; its output starts with a nonce, or this raises."""
        return self.do(self.arun(code, language, **options))

    async def arun(self, code: str, language: str = "python", **options: Any) -> Execution:
        nonce = secrets.token_hex(8)
        limits = {**LIMITS, **options.pop("limits", {})}
        whole: dict[str, Any] = {**self.choice, "timeout": 5, **options}
        execution = await self.engine.run(
            _SAY[language].format(nonce) + code, language=language, limits=limits, **whole
        )
        if not execution.stdout.startswith(nonce):
            raise AssertionError(f"the probe did not run: {execution.outcome} {execution.stderr}")
        return execution

    def beside(self, code: str, language: str = "python", **options: Any) -> Execution:
        """Run a probe with a benign neighbour beside it (W5), which must get its own answer."""

        async def both() -> Execution:
            sums = "print(sum(range(10**5)))"
            neighbour = self.engine.run(sums, timeout=20, **self.choice)
            attack, benign = await asyncio.gather(self.arun(code, language, **options), neighbour)
            assert (benign.verdict, benign.stdout) == (Verdict.OK, "4999950000\n"), benign
            return attack

        return self.do(both())

    @contextlib.asynccontextmanager
    async def sandbox(self, **options: Any) -> AsyncIterator[AsyncSandbox]:
        options["limits"] = {**LIMITS, **options.get("limits", {})}
        sandbox = await self.engine.create_sandbox(**{**self.choice, **options})
        try:
            yield sandbox
        finally:
            await sandbox.close()

    def peak(self, processes: int) -> int | None:
        """How many processes an answer has to tell of; those of gVisor's kernel no host counts."""
        return None if self.choice.get("isolation") == "kernel" else processes

    @property
    def home(self) -> str:
        """The directory inside in which programs start."""
        root = self.choice.get("image")
        return "/home/user" if root is None else str(root.working_dir)

    @property
    def uid(self) -> int:
        """The number of the user inside."""
        root = self.choice.get("image")
        return 1000 if root is None else int(root.uid)

    def settle(self) -> None:
        """Wait until every destruction under way is done, and end what waits for a next start."""
        self.do(self.engine.wait_settled())
        keepers = vars(self._runtime()).get("_keepers")  # gVisor's: made ahead, no sandbox's trace
        if keepers is not None:
            self.do(keepers.aclose())

    def _runtime(self) -> Any:
        wanted = self.choice.get("isolation", "namespace"), self.choice.get("runtime")
        return self.do(self.engine.runtime(*wanted))

    @contextlib.contextmanager
    def leaving_nothing(self, counted: Callable[[str], bool] = is_left) -> Iterator[None]:
        """Hold what happens inside to leave the host as it was."""
        gc.collect()  # what earlier tests left to it is closed before we count
        self.settle()
        before = Traces.now(counted, self.containers)
        yield
        self.settle()
        after = Traces.now(counted, self.containers)
        more = f"{before} became {after}: {after.beyond(before)}"
        assert after == before or after.is_no_more_than(before), more

    def reading(self, folder: Path) -> Reading:
        """What this process and all below it hold while nothing runs.

        Free memory of the heap is given back: images that a test had are not the engine's.
        """
        self.settle()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        return look(os.getpid(), folder, 0.0, len(gc.get_objects()))

    async def fork_server(self) -> tuple[int, int]:
        """The host's pids of the boot process and of the one fork-server."""
        runtime = await self.engine.runtime()
        (entry,) = runtime._servers.entries  # type: ignore[attr-defined]
        return entry.server._boot.pid, entry.server.pid

    def close(self) -> None:
        groups = getattr(self._runtime(), "_groups", None)  # a daemon's containers are in its own
        name = str(getattr(groups, "name", ""))
        self.do(self.engine.aclose())
        self._runner.close()
        left = [] if not name else [path for path in control_groups(os.getpid()) if name in path]
        assert not left, f"the closed engine left {left}"


def unconfined(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The positive control: the same probe as a plain process of a throw-away user.

    Nothing confines it but outer resource limits; whatever it must reach was made by the test.
    """
    nonce = secrets.token_hex(8)

    def restrict() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (200, 200))
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 27, 1 << 27))
        resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(CONTROL_UID)
            os.setuid(CONTROL_UID)

    # Debian's, because the throw-away user may not be able to reach ours.
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    done = subprocess.run(
        [python, "-I", "-c", _SAY["python"].format(nonce) + code],
        check=False,
        capture_output=True,
        text=True,
        timeout=20,
        cwd="/",
        preexec_fn=restrict,
        start_new_session=True,
        **options,
    )
    if not done.stdout.startswith(nonce):
        raise AssertionError(f"the control did not run: {done}")
    return done


def compiled(source: str, directory: Path) -> bytes:
    """A C probe, compiled on the host; it is sent in as a file."""
    from conftest import require_command  # arenas are made outside of pytest as well

    compiler = require_command("gcc")
    path, target = directory / "probe.c", directory / "probe"
    path.write_text(source, encoding="utf-8")
    flags = ["-O1", "-static", "-pthread", "-o", str(target)]
    subprocess.run([compiler, *flags, str(path)], check=True, timeout=60)
    return target.read_bytes()

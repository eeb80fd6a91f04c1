"""A fork-server that was started before its engine: the same walls, and an end in every case."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall import Engine, EngineSettings
from cellwall.apps.cli import main as command_line
from cellwall.embedded import default
from cellwall.engine import head_start
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.jail.fast import switch
from cellwall.jail.inspect import posture
from cellwall.jail.protocol import fds
from cellwall.model.errors import HostUnsupported, NotFound
from cellwall.runtimes.jail.starting import head_start as starting
from cellwall.runtimes.jail.starting import launch
from cellwall.runtimes.jail.starting.bundle import bundle_in
from cellwall.runtimes.jail.starting.head_start import HeadStart
from conftest import Require
from kit.arena import Traces
from kit.waiting import wait_until

_FACTS = """
from pathlib import Path
status = Path("/proc/self/status").read_text()
print(*[line for line in status.splitlines() if line.startswith(
    ("Cap", "NoNewPrivs", "Seccomp", "Groups", "SigIgn", "SigCgt", "Umask"))], sep="\\n")
mounts = Path("/proc/self/mountinfo").read_text().splitlines()
print(*sorted(" ".join(line.split()[4:6]) for line in mounts), sep="\\n")
print(sorted(__import__("os").environ.items()), __import__("os").getcwd())
print(sorted(__import__("os").listdir("/proc/self/fd")))
"""


@pytest.fixture(scope="module", autouse=True)
def _jail_is_possible(require: Require) -> None:
    async def missing() -> str:
        engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
        try:
            await engine.runtime("namespace", "jail")
            await engine.template("python")
        except HostUnsupported as error:
            return str(error)
        finally:
            await engine.aclose()
        return ""

    reason = asyncio.run(missing())
    require("jail", not reason, reason)


@pytest.fixture(autouse=True)
def _every_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in head_start._OPERATORS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def boots(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pids of the boots that are started in the test."""
    started: list[int] = []
    real = launch._boot

    def counted(*words: Any) -> subprocess.Popen[bytes]:
        made = real(*words)
        started.append(made.pid)
        return made

    monkeypatch.setattr(launch, "_boot", counted)
    return started


def _begun(*, is_single: bool = True) -> HeadStart:
    built = TemplateStore(state_dir()).find("python")
    assert built is not None
    ahead = HeadStart(state_dir(), is_single=is_single)
    ahead.go_on(built)
    return ahead


@contextlib.contextmanager
def _reaping() -> Iterator[None]:
    """Be the parent of processes whose parent ends: those stay, as zombies at least."""
    set_subreaper = 36  # prctl(2)
    prctl = ctypes.CDLL(None).prctl
    assert not prctl(set_subreaper, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(set_subreaper, 0, 0, 0, 0)


def _wait_for_workers(ahead: HeadStart) -> None:
    assert ahead._begun is not None
    control, event = ahead._begun.launched.control, ""
    while event != "programs":
        assert select.select([control], [], [], 60)[0]
        event = fds.receive_message(control)[0]["event"]


def _is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _boot(ahead: HeadStart) -> int:
    assert ahead._begun is not None
    return ahead._begun.launched.boot.pid


def _engine(ahead: HeadStart | None, **options: Any) -> Engine:
    settings = EngineSettings(pool_min=0, pool_max=0, **options)
    return Engine(settings=settings, answers_first=True, head_start=ahead)


async def _facts(ahead: HeadStart | None) -> tuple[object, str]:
    engine = _engine(ahead)
    try:
        execution = await engine.run(_FACTS)
        assert execution.ok, execution
        if ahead is not None:  # the control: it was used
            assert ahead._begun is None
        return execution.outcome.isolation, execution.stdout
    finally:
        await engine.aclose()


def test_its_sandboxes_have_the_walls_of_all_others() -> None:
    async def compared() -> None:
        isolation, facts = await _facts(_begun())
        assert (isolation, facts) == await _facts(None)
        assert "Seccomp:\t2" in facts

    asyncio.run(asyncio.wait_for(compared(), 120))


def _never_told() -> None:
    HeadStart(state_dir()).close()


def _never_used() -> None:
    _begun().close()


def _of_an_engine_that_runs_nothing() -> None:
    async def idle() -> None:
        await _engine(_begun()).aclose()

    asyncio.run(idle())


def _of_an_engine_of_another_runtime() -> None:
    async def other() -> None:
        engine = _engine(_begun(), runtimes=("process",), allow_process=True)
        try:
            assert (await engine.run("print(1)", isolation="process")).stdout == "1\n"
        finally:
            await engine.aclose()

    asyncio.run(other())


@pytest.mark.parametrize(
    "use",
    [_never_told, _never_used, _of_an_engine_that_runs_nothing, _of_an_engine_of_another_runtime],
)
def test_one_that_is_not_used_leaves_nothing(use: Callable[[], None]) -> None:
    before = Traces.now()
    use()
    wait_until(lambda: Traces.now().is_no_more_than(before), "its processes end")


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_its_end_is_whole_before_its_ids_are_given_back(*, is_waited_for: bool) -> None:
    before = {*posture.children(os.getpid())}
    ahead = _begun()
    boot, first = _boot(ahead), 0
    with _reaping():
        if is_waited_for:
            _wait_for_workers(ahead)
            (first,) = posture.children(boot)
            assert posture.children(first)  # the control: there are workers
        ahead.close()
        assert not _is_there(boot)
        assert not {*posture.children(os.getpid())} - before
        assert not (first and _is_there(first))


def test_boot_that_waits_ends_with_its_engine_though_a_fork_holds_the_socket() -> None:
    with subprocess.Popen(["sleep", "60"]) as engine:
        lifeline = os.pidfd_open(engine.pid)
        begun = launch.begin(bundle_in(state_dir()), 1, lifeline)
        os.close(lifeline)
        with pytest.raises(subprocess.TimeoutExpired):
            begun.boot.wait(1)  # the control: it waits
        engine.kill()
        assert begun.boot.wait(20) == 1
        begun.end()


def test_one_whose_boot_was_killed_costs_no_run() -> None:
    ahead = _begun()
    os.kill(_boot(ahead), signal.SIGKILL)

    async def run() -> str:
        engine = _engine(ahead)
        try:
            return (await engine.run("print(1)")).stdout
        finally:
            await engine.aclose()

    assert asyncio.run(asyncio.wait_for(run(), 60)) == "1\n"


def test_forked_child_gives_it_up_and_the_parent_keeps_it(boots: list[int]) -> None:
    ahead = _begun()
    assert ahead._begun is not None
    control = ahead._begun.launched.control.fileno()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ahead.abandon()
            ahead.close()
            with contextlib.suppress(OSError):
                os.fstat(control)
                os._exit(2)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    isolation, _ = asyncio.run(asyncio.wait_for(_facts(ahead), 60))
    assert isolation is not None
    assert len(boots) == 1


def _ran(ahead: HeadStart, code: str, **options: Any) -> str:
    async def run() -> str:
        engine = _engine(ahead)
        try:
            return (await engine.run(code, **options)).stdout
        finally:
            assert not ahead.is_left  # taken, or ended with the first call
            await engine.aclose()

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_one_that_is_not_taken_ends_with_the_first_call() -> None:
    ahead = _begun()
    with pytest.raises(NotFound):
        _ran(ahead, "", language="cobol")
    ahead = _begun()
    with pytest.raises(TypeError):
        _ran(ahead, "", no_such_option=1)


def test_one_that_is_old_is_not_taken(monkeypatch: pytest.MonkeyPatch, boots: list[int]) -> None:
    ahead = _begun()
    now = time.monotonic() + 61
    monkeypatch.setattr(starting, "monotonic", lambda: now)
    assert _ran(ahead, "print(1)") == "1\n"
    assert len(boots) == 2


def test_one_that_was_started_with_other_settings_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, boots: list[int]
) -> None:
    ahead = _begun()
    monkeypatch.setenv(switch.VARIABLE, "0")
    assert _ran(ahead, "print(1)") == "1\n"
    assert len(boots) == 2
    assert not any(map(_is_there, boots))


def test_one_with_another_filter_is_not_taken(boots: list[int]) -> None:
    ahead = _begun()
    assert ahead._begun is not None
    other = ahead._begun.settings._replace(seccomp=b"another")
    ahead._begun = ahead._begun._replace(settings=other)
    assert _ran(ahead, "print(1)") == "1\n"
    assert len(boots) == 2


def test_one_without_an_init_is_not_taken_for_a_command(boots: list[int]) -> None:
    assert _ran(_begun(), "echo 1", language="bash") == "1\n"
    assert len(boots) == 2
    assert _ran(_begun(is_single=False), "echo 1", language="bash") == "1\n"
    assert len(boots) == 3  # the control
    assert _ran(_begun(is_single=False), "print(1)") == "1\n"
    assert len(boots) == 4  # one with an init will do


def test_engine_of_another_state_directory_does_not_take_it(
    tmp_path: Path, boots: list[int]
) -> None:
    ahead = _begun()

    async def other() -> None:
        engine = Engine(tmp_path, EngineSettings(), answers_first=True, head_start=ahead)
        runtime: Any = await engine.runtime("namespace", "jail")
        assert runtime._head_start is None
        await engine.aclose()

    asyncio.run(other())
    assert not any(map(_is_there, boots))


def test_nothing_is_begun_without_a_state_directory(tmp_path: Path) -> None:
    assert starting.begin(tmp_path / "none", is_single=True) is None
    assert not list(tmp_path.iterdir())


def test_both_doors_take_what_they_began(
    boots: list[int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLWALL_POOL_SIZE", "0")  # to park one starts a full one beside the answer
    door = default._Default()
    try:
        options: dict[str, Any] = {"language": "python"}
        ran = door.get(options).call(lambda engine, _put: engine.run("print(1)", **options))
        assert ran.stdout == "1\n"
        assert len(boots) == 1
    finally:
        door.close()
    with pytest.raises(command_line._Ended) as ended:
        command_line._command(["run", "-c", "print(2)"])
    assert ended.value.status == 0
    assert capsys.readouterr().out == "2\n"
    assert len(boots) == 2


def _interrupt(*_arguments: Any) -> None:
    raise KeyboardInterrupt


def _interrupted_in_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    real = launch.tell

    def interrupted(*words: Any) -> None:
        real(*words)
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "tell", interrupted)


def _interrupted_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from cellwall.embedded.runner import Runner

    monkeypatch.setattr(Runner, "that_answers_first", _interrupt)


@pytest.mark.parametrize("inject", [_interrupted_in_go_on, _interrupted_behind_it])
def test_interrupt_of_the_first_run_leaves_nothing(
    inject: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    boots: list[int],
) -> None:
    before = Traces.now()
    inject(monkeypatch)
    door = default._Default()
    with pytest.raises(KeyboardInterrupt):
        door.get({})
    assert len(boots) == 1  # the control
    assert not any(map(_is_there, boots))
    assert door._begun is None
    assert Traces.now().is_no_more_than(before)


def test_one_of_another_template_is_not_taken() -> None:
    ahead = _begun()
    assert ahead.take("0" * 32) is None
    boot = _boot(ahead)
    ahead.close()
    assert not Path(f"/proc/{boot}").exists()


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ({"runtime": "gvisor"}, {}),
        ({"isolation": "kernel"}, {}),
        ({"trust": "untrusted"}, {}),
        ({"image": "debian"}, {}),
        ({}, {"CELLWALL_RUNTIMES": "gvisor"}),
        ({}, {"CELLWALL_DEFAULT_ISOLATION": "kernel"}),
        ({}, {"CELLWALL_LEAST_ISOLATION": "kernel"}),
        ({}, {"CELLWALL_TRUST": "untrusted"}),
    ],
)
def test_nothing_is_begun_where_another_runtime_may_be_chosen(
    options: dict[str, str], variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with head_start.begun({}) as ahead:
        assert ahead is not None  # the control
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with head_start.begun(options) as ahead:
        assert ahead is None

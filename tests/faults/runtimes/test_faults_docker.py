"""A container engine that dies, refuses, forgets or holds what is not ours (FI-08 to FI-38).

Everything is the real daemon's doing; what is left behind is asked of it and of the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from cellwall.engine.engine import Engine
from cellwall.engine.policy.settings import EngineSettings
from cellwall.linux import owner_label
from cellwall.model.errors import HostUnsupported, SandboxBroken, UsageError
from cellwall.model.limits import Limits
from cellwall.model.outcome import Verdict
from cellwall.runtimes.base import SandboxSpec
from cellwall.runtimes.docker.container import OWNER_LABEL
from cellwall.runtimes.docker.images import KEY_LABEL, REPOSITORY, Images
from cellwall.runtimes.docker.runtime import DockerRuntime
from cellwall.testing.bare import BareTemplates
from kit.docker_daemon import BROKEN, Daemon

pytestmark = [pytest.mark.root, pytest.mark.timeout(90)]
_SLEEPS = "print('up', flush=True)\nimport time\ntime.sleep(60)"


@pytest.fixture
def state(docker_ground: tuple[Path, BareTemplates]) -> Path:
    return docker_ground[0]


@pytest.fixture
def templates(docker_ground: tuple[Path, BareTemplates]) -> BareTemplates:
    return docker_ground[1]


@pytest.fixture(autouse=True)
def daemon(docker_daemon: Daemon) -> Daemon:
    return docker_daemon


Open = Callable[[], contextlib.AbstractAsyncContextManager[Engine]]


@pytest.fixture
def engine(state: Path, templates: BareTemplates) -> Open:
    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[Engine]:
        settings = EngineSettings(pool_min=0, pool_max=0)
        made = Engine(state, settings, templates=templates)
        try:
            yield made
        finally:
            await made.aclose()

    return opened


async def _until(holds: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"not so within {within_s:g} s"
        await asyncio.sleep(0.05)


def _is_gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


async def _first_pid(engine: Engine) -> int:
    runtime = await engine.runtime(name="docker")
    (sandbox,) = runtime._live  # type: ignore[attr-defined]
    return int(sandbox.pid)


def _shim_of(pid: int) -> int:
    shim = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert "shim" in Path(f"/proc/{shim}/cmdline").read_text()
    return shim


def test_daemon_killed_ends_its_runs_and_nobody_elses(engine: Open, daemon: Daemon) -> None:
    """FI-08: named, 503 for this runtime only; leftovers go when it is back."""

    async def work() -> None:
        async with engine() as made:
            up = asyncio.Event()
            running = asyncio.ensure_future(
                made.run(_SLEEPS, runtime="docker", on_event=lambda _: up.set())
            )
            await up.wait()
            pid = await _first_pid(made)
            daemon.kill()
            try:
                execution = await running
                assert execution.verdict is Verdict.SANDBOX_ERROR
                await _until(lambda: _is_gone(pid))
                with pytest.raises(HostUnsupported, match=r"does not answer.*DOCKER_HOST"):
                    await made.run("print(1)", runtime="docker")
                beside = await made.run("print(1)", runtime="jail")
                assert (beside.stdout, beside.outcome.isolation.runtime) == ("1\n", "jail")
            finally:
                daemon.start()
            assert (await made.run("print(2)", runtime="docker")).stdout == "2\n"
            await made.wait_settled()
            await _until(lambda: not daemon.containers())

    asyncio.run(work())


def test_shim_killed_ends_the_sandbox_by_name(engine: Open, daemon: Daemon) -> None:
    """FI-09: the process between engine and container."""

    async def work() -> None:
        async with engine() as made:
            up = asyncio.Event()
            running = asyncio.ensure_future(
                made.run(_SLEEPS, runtime="docker", on_event=lambda _: up.set())
            )
            await up.wait()
            pid = await _first_pid(made)
            os.kill(_shim_of(pid), signal.SIGKILL)
            assert (await running).verdict is Verdict.SANDBOX_ERROR
            await _until(lambda: _is_gone(pid))
            await made.wait_settled()
            await _until(lambda: not daemon.containers())

    asyncio.run(work())


@pytest.mark.parametrize("mib", [96, 8])
def test_memory_kill_is_known_after_the_container_is_gone(
    engine: Open, daemon: Daemon, templates: BareTemplates, mib: int
) -> None:
    """An ended container is removed at once; an engine that is busy comes too late to look."""

    async def work() -> None:
        async with engine() as made:
            image = await _image(made, templates)
            code = f"held = b'1' * ({mib} << 20)"
            words = ("--detach", "--rm", "--network=none", "--memory=48m", "--memory-swap=48m")
            found = daemon.call(
                "run", *words, "--entrypoint", "/usr/bin/python3", image, "-c", code
            ).stdout.strip()
            await _until(lambda: not daemon.call("ps", "--all", "--quiet", "--no-trunc").stdout)
            runtime = await made.runtime(name="docker")
            assert isinstance(runtime, DockerRuntime)
            assert await runtime.daemon.met_its_memory_limit(found) is (mib > 48)

    asyncio.run(work())


class _Broken(DockerRuntime):
    oci_runtime: str | None = BROKEN


def test_container_that_does_not_start_is_removed(
    state: Path, templates: BareTemplates, daemon: Daemon
) -> None:
    """FI-10: made by the daemon, refused by what runs containers."""

    async def work() -> None:
        runtime = _Broken(state)
        template = templates.find("python")
        assert template is not None
        spec = SandboxSpec("faulty", template, Limits())
        try:
            with pytest.raises(SandboxBroken, match="the Docker daemon says"):
                await runtime.start(spec)
            assert daemon.containers() == []
            assert runtime.statistics().live == 0
        finally:
            await runtime.aclose()

    asyncio.run(work())


_ENGINE = """
import asyncio, sys
from pathlib import Path
from cellwall.engine.engine import Engine
from cellwall.engine.policy.settings import EngineSettings
from cellwall.testing.bare import BareTemplates

async def main():
    templates = BareTemplates(Path(sys.argv[2]) / "env")
    settings = EngineSettings(pool_min=0, pool_max=0)
    engine = Engine(Path(sys.argv[1]), settings, templates=templates)
    await engine.create_sandbox(runtime="docker")
    print("up", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_sandboxes_of_a_killed_engine_end_without_it(
    state: Path, tmp_path: Path, daemon: Daemon
) -> None:
    """FI-29: their input ends with the engine, and the daemon removes what has ended."""
    other = subprocess.Popen(
        [sys.executable, "-c", _ENGINE, str(state), str(tmp_path)], stdout=subprocess.PIPE
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"up\n"
        assert len(daemon.containers()) == 1
        other.kill()
    asyncio.run(_until(lambda: not daemon.containers()))


def _dead_label() -> str:
    program = "from cellwall.linux import owner_label; print(owner_label.new_label())"
    words = [sys.executable, "-c", program]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


async def _image(made: Engine, templates: BareTemplates) -> str:
    """The image of this engine: other tests of the session leave theirs in the same daemon."""
    await made.run("0", runtime="docker")
    template = templates.find("python")
    runtime = await made.runtime(name="docker")
    assert isinstance(runtime, DockerRuntime)
    assert template is not None
    return await runtime.images.ensure(template)


def _sleeper(daemon: Daemon, image: str, name: str, label: str) -> str:
    words = ("--network=none", "--name", name, "--label", label, "--entrypoint", "/usr/bin/sleep")
    return daemon.call("run", "--detach", *words, image, "600").stdout.strip()


def test_sweep_removes_what_dead_engines_left_and_nothing_else(
    engine: Open, daemon: Daemon, templates: BareTemplates
) -> None:
    """FI-31: by exact label of a dead owner; names and similar labels count for nothing."""

    async def work() -> None:
        async with engine() as made:
            image = await _image(made, templates)
            dead = _sleeper(daemon, image, "leftover", f"{OWNER_LABEL}={_dead_label()}")
            foreign = [
                _sleeper(daemon, image, "cellwall-abcdef", "some=label"),
                _sleeper(daemon, image, "cellwall-2", f"{OWNER_LABEL}x={_dead_label()}"),
                _sleeper(daemon, image, "cellwall-3", f"{OWNER_LABEL}=nobody"),
                _sleeper(daemon, image, "cellwall-4", f"{OWNER_LABEL}={owner_label.new_label()}"),
            ]
            try:
                runtime = await made.runtime(name="docker")
                report = await runtime.sweep()
                assert report.removed == {"containers": 1}
                assert set(daemon.containers()) == set(foreign)
            finally:
                daemon.call("rm", "--force", dead, *foreign, check=False)

    asyncio.run(work())


def test_image_that_is_not_ours_is_never_used(
    engine: Open, daemon: Daemon, templates: BareTemplates
) -> None:
    """FI-34: our name on other layers is an error, with no other image instead."""

    async def work() -> None:
        async with engine() as made:
            await _image(made, templates)
        # All of them: other tests of this session may have made others.
        shown = daemon.call("images", "--format", "{{.Repository}}:{{.Tag}} {{.ID}}").stdout
        ours = dict(each.split() for each in shown.splitlines() if each.startswith(REPOSITORY))
        assert ours
        foreign = daemon.call("import", "-", stdin=b"\0" * 10240).stdout.strip()
        for tag in ours:
            daemon.call("tag", foreign, tag)
        try:
            async with engine() as other:
                with pytest.raises(HostUnsupported, match="its layers are"):
                    await other.run("print(1)", runtime="docker")
                assert daemon.containers() == []
        finally:
            for tag, image in ours.items():
                daemon.call("tag", image, tag)
            daemon.call("rmi", foreign)

    asyncio.run(work())


def _all_images(daemon: Daemon) -> set[str]:
    words = ("images", "--quiet", "--no-trunc", "--filter", f"label={KEY_LABEL}")
    return set(daemon.call(*words).stdout.split())


def test_removed_image_is_made_again(
    engine: Open, daemon: Daemon, templates: BareTemplates, tmp_path: Path
) -> None:
    """FI-34: somebody pruned it while we lived; what we remove ourselves is gone."""

    async def work() -> None:
        async with engine() as made:
            image = await _image(made, templates)
            await made.wait_settled()
            daemon.call("rmi", "--force", image)
            assert image not in _all_images(daemon)
            assert (await made.run("print(3)", runtime="docker")).stdout == "3\n"
            runtime = await made.runtime(name="docker")
            assert isinstance(runtime, DockerRuntime)
            # One that another state directory made has the same labels.
            assert await Images(tmp_path, runtime.daemon).remove("python") == 0
            again = await _image(made, templates)
            await made.wait_settled()
            assert again in _all_images(daemon)
            assert await runtime.images.remove("python") >= 1
            assert again not in _all_images(daemon)

    asyncio.run(work())


def test_missing_runtime_is_an_error_and_nothing_weaker(
    engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FI-38: asked for by name or by level; the answer names what ran."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/socket")

    async def work() -> None:
        async with engine() as made:
            with pytest.raises(HostUnsupported, match=r"/nonexistent/socket.*systemctl"):
                await made.run("print(1)", runtime="docker")
            with pytest.raises(UsageError, match="'kernel' was asked for"):
                await made.run("print(1)", runtime="docker", isolation="kernel")
            ran = await made.run("print(1)")
            assert ran.outcome.isolation.runtime == "jail"

    asyncio.run(work())


def test_memory_of_a_child_is_the_verdict_of_its_parent(engine: Open) -> None:
    """By the kernel's counter: the parent lives on and ends well."""
    child = "kept = []\\nwhile True: kept.append(bytearray(4 << 20))"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', '{child}'])\n"

    async def work() -> None:
        async with engine() as made:
            execution = await made.run(
                code + "print('fine')", runtime="docker", limits={"memory_mb": 96}
            )
            assert (execution.verdict, execution.exit_code) == (Verdict.MEMORY, 0)
            assert execution.stdout == "fine\n"

    asyncio.run(work())

"""Nothing of a template runs on the host: not while it is built, not when a runtime starts on it.

Two witnesses outside. A wheel whose every file bears witness when it runs; and the kernel, which
asks before each opening of a template's file who it is that opens it (`template_watch`). The
controls do it as it was once done, and are seen by both.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall import Engine, EngineSettings, Execution
from cellwall.engine.templates import build as template_build
from cellwall.engine.templates.base_interpreter import base_interpreter
from cellwall.engine.templates.store import TemplateStore
from cellwall.model.errors import CellwallError, HostUnsupported
from cellwall.model.template import BuiltTemplate, Template
from cellwall.runtimes.gvisor import guest_image
from conftest import Require
from kit import hostile_wheels
from kit.arena import MADE_BY_A_TEST
from kit.places import TESTS

pytestmark = pytest.mark.attack
_LEVELS = {
    "jail": "namespace",
    "docker": "namespace",
    "gvisor": "kernel",
    "process": "process",
}
_PROGRAM = "import sys, weed; print(sys.weed, weed.NAME)"


class Ground:
    """A private state directory, a folder of wheels as the only index, and a witness."""

    def __init__(self, work: Path) -> None:
        self.work, self.wheels, self.state = work, work / "wheels", work / "state"
        self.witness = work / "witness"
        self.witness.touch()
        self.evil = work / "evil"
        hostile_wheels.evil_library(self.evil, self.witness)

    @property
    def seen(self) -> str:
        return self.witness.read_text()

    @property
    def store(self) -> TemplateStore:
        return TemplateStore(self.state)

    def define(self, *packages: str, preload: tuple[str, ...] = ()) -> None:
        hostile_wheels.define(
            self.work / "config", "weeds", packages=list(packages), preload=list(preload)
        )

    def run(self, runtime: str) -> Execution:
        async def run() -> Execution:
            is_bare = runtime == "process"
            settings = EngineSettings(pool_min=0, pool_max=0, allow_process=is_bare)
            engine = Engine(self.state, settings)
            try:
                return await engine.run(
                    _PROGRAM,
                    template="weeds",
                    runtime=runtime,
                    isolation=_LEVELS[runtime],
                    timeout=40,
                )
            finally:
                await engine.aclose()

        return asyncio.run(run())


@pytest.fixture(params=["cache", "no cache"])
def ground(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    with tempfile.TemporaryDirectory(prefix="weeds-") as name:
        os.chmod(name, 0o755)
        made = Ground(Path(name))
        hostile_wheels.weed(made.wheels, made.witness)
        monkeypatch.setenv("UV_FIND_LINKS", str(made.wheels))
        monkeypatch.setenv("UV_NO_INDEX", "1")
        monkeypatch.setenv("UV_OFFLINE", "1")
        monkeypatch.setenv("UV_COMPILE_BYTECODE", "1")
        monkeypatch.setenv("CELLWALL_CONFIG_DIR", str(made.work / "config"))
        if request.param == "no cache":
            monkeypatch.setenv("UV_NO_CACHE", "1")
        else:
            monkeypatch.setenv("UV_CACHE_DIR", str(made.work / "cache"))
        yield made
        for folder, _, _ in os.walk(made.state):
            os.chmod(folder, 0o755)


def _old_way(ground: Ground) -> Path:
    """An environment filled by its own interpreter."""
    root, uv = ground.work / "old", template_build.find_uv()
    python = str(root / "bin/python")
    base = base_interpreter(Template("weeds")).executable
    words = ["--python", python, "--quiet"]
    for command in (
        ["venv", "--quiet", "--relocatable", "--no-project", "--python", base, str(root)],
        ["pip", "install", *words, "--compile-bytecode", "--link-mode", "copy", "weed"],
        ["pip", "freeze", *words],
    ):
        subprocess.run([uv, *command], check=True, cwd=ground.work, capture_output=True)
    return root


# ── building ───────────────────────────────────────────────────────────────────────────────────


def test_control_an_environments_own_interpreter_runs_what_a_wheel_brought(ground: Ground) -> None:
    _old_way(ground)
    assert "pth" in ground.seen


def test_wheel_runs_nowhere_but_inside(ground: Ground) -> None:
    ground.define("weed==1.0", preload=("weed",))
    built = ground.store.build("weeds")
    execution = ground.run("jail")
    assert execution.stdout == "ran weed\n", execution.stderr  # it does run, there
    assert ground.seen == ""
    assert "weed==1.0" in (Path(built.path) / "manifest.json").read_text()


@pytest.mark.parametrize(
    "place", ["pyvenv.cfg", "PYVENV.cfg", "bin/pyvenv.cfg", "bin/python3", "bin/python3.999"]
)
def test_wheel_that_would_choose_the_standard_library_is_refused(
    ground: Ground, place: str
) -> None:
    hostile_wheels.crown(ground.wheels, ground.evil, place)
    ground.define("weed==1.0", "crown==1.0")
    with pytest.raises(HostUnsupported) as error:
        ground.store.build("weeds")
    assert "crown" in str(error.value)
    assert ground.store.list() == []
    assert ground.seen == ""


def test_control_what_lies_beside_an_interpreter_chooses_its_standard_library(
    ground: Ground,
) -> None:
    _crowned(ground)
    assert "evil standard library" in ground.seen


def _crowned(ground: Ground) -> BuiltTemplate:
    """A template with another `pyvenv.cfg`, started as gVisor's image once was."""
    ground.define("weed==1.0", preload=("weed",))
    built = ground.store.build("weeds")
    configuration = Path(built.path) / "pyvenv.cfg"
    Path(built.path).chmod(0o755)
    configuration.unlink()
    configuration.write_text(f"home = {ground.evil}/bin\n")
    words = [built.python, "-I", "-S", "-E", "-B", "-c", "pass"]
    subprocess.run(words, check=False, capture_output=True, env={})
    return built


def test_gvisors_image_is_made_by_an_interpreter_outside_of_the_template(ground: Ground) -> None:
    built = _crowned(ground)
    ground.witness.write_text("")
    bundle = guest_image.bundle_in(ground.state)
    assert guest_image.build_image(ground.state, built, bundle, "/guest").start.exists()
    assert ground.seen == ""


# ── every process, as the kernel sees it ───────────────────────────────────────────────────────


class Watch:
    """`template_watch` on a file system of its own, below `place`."""

    def __init__(self, place: Path) -> None:
        place.mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "mode=755", MADE_BY_A_TEST, place], check=True
        )
        self._place = place
        program = TESTS / "kit" / "attack" / "template_watch.py"
        self._process = subprocess.Popen(
            [sys.executable, "-I", program, place, f"{place}/templates/"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline().strip()

    def told(self) -> list[dict[str, Any]]:
        """Whoever outside of our sandboxes opened something, but for uv, runsc and ourselves."""
        lines = self._process.communicate()[0].splitlines()
        found = [json.loads(line) for line in lines if line]
        return [each for each in found if each["executed"] or not self._may_read(each)]

    def _may_read(self, one: dict[str, Any]) -> bool:
        """As data: uv writes it, gVisor's kernel shows it to its sandbox, we pack and compile it.

        What our own process maps is looked at in the end.
        """
        name = os.path.basename(one["exe"])
        return one["pid"] == os.getpid() or name in ("uv", "runsc")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        subprocess.run(["umount", "-l", self._place], check=False)


@pytest.fixture
def watch(ground: Ground, require: Require) -> Iterator[Watch]:
    made = Watch(ground.state)
    try:
        require("fanotify", made.said == "watching", f"the kernel says: {made.said}")
        yield made
    finally:
        made.close()


@pytest.mark.root
def test_control_the_kernel_tells_of_an_interpreter_outside(ground: Ground, watch: Watch) -> None:
    ground.define("weed==1.0")
    built = ground.store.build("weeds")
    subprocess.run([built.python, "-c", "import weed"], check=True)
    subprocess.run([f"{built.path}/bin/weed-script"], check=True, stdout=subprocess.DEVNULL)
    told = watch.told()
    assert {Path(one["path"]).name for one in told} >= {"pyvenv.cfg", "weed.pth", "weed-script"}
    assert [one["path"] for one in told if one["executed"]] == [f"{built.path}/bin/weed-script"]
    assert "pth" in ground.seen


@pytest.mark.root
@pytest.mark.parametrize("runtime", ["jail", "gvisor", "docker"])
def test_no_process_outside_executes_maps_or_imports_what_lies_in_a_template(
    ground: Ground, watch: Watch, require: Require, request: pytest.FixtureRequest, runtime: str
) -> None:
    if runtime == "docker":
        request.getfixturevalue("docker_daemon")
    ground.define("weed==1.0", preload=("weed",))
    ground.store.build("weeds")
    try:
        execution = ground.run(runtime)
    except CellwallError as error:
        if runtime == "gvisor":
            require("gvisor", False, f"{error}; {error.remedy}")
        raise
    assert execution.stdout == "ran weed\n", execution.stderr
    assert watch.told() == []
    assert f"{ground.state}/templates/" not in Path("/proc/self/maps").read_text()
    assert ground.seen == ""


def test_process_runs_the_packages_on_the_host_and_that_is_seen(ground: Ground) -> None:
    """The level `process` isolates nothing, and says so: the witness's control in an engine."""
    ground.define("weed==1.0")
    ground.store.build("weeds")
    assert ground.seen == ""
    with contextlib.suppress(CellwallError):
        ground.run("process")
    assert "weed" in ground.seen

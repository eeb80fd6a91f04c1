"""Hostile Dockerfiles, contexts and configurations: what they say ends in an error or inside.

The files of an engine's user are on the host, so what a Dockerfile or a context names must lead
nowhere but into the new image. Each attack has a benign twin that is built.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from cellwall import Engine, EngineSettings
from cellwall.engine.images.builder import BuildFailed, BuildRequest, build
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.images.dockerfile import DockerfileInvalid
from cellwall.model.errors import NotFound
from kit import command_line
from kit.images import archives
from kit.images.archives import config_of, docker_archive, layer, link, small_root

pytestmark = [pytest.mark.attack, pytest.mark.root]


class Ground:
    """A context beside a canary, and an image to build on that has links of its own."""

    def __init__(self, place: Path) -> None:
        self.place, self.context = place, place / "context"
        self.context.mkdir()
        (self.context / "plain").write_text("plain\n")
        self.canary = place / "canary"
        self.canary.write_text("of the host\n")
        extra = [
            archives.member(f"bin/{name}", Path(f"/bin/{name}").read_bytes(), mode=0o755)
            for name in ("dd", "mkdir", "sleep")
        ]
        root = layer([*small_root(), *extra, link("up", "../../../.."), link("way", "/etc")])
        self.base = docker_archive(place / "base.tar", [root], config_of([root], Env=["PATH=/bin"]))

    def with_engine(self, job: Callable[[Engine], Awaitable[None]]) -> None:
        async def scenario() -> None:
            settings = EngineSettings(pool_min=0, pool_max=0)
            templates = TemplateStore(state_dir())
            engine = Engine(self.place / "state", settings, templates=templates)
            try:
                await job(engine)
            finally:
                await engine.aclose()

        asyncio.run(scenario())

    def says(self, steps: str, command: str) -> str:
        """Build on the image and return what a command in the result prints."""
        found: list[str] = []

        async def job(engine: Engine) -> None:
            text = f"FROM {self.base}\n{steps}\n".encode()
            await build(engine, BuildRequest(text, self.context, name="made"))
            sandbox = await engine.create_sandbox(image="made", user="root")
            found.append((await sandbox.commands.run(command)).stdout)
            await sandbox.close()

        self.with_engine(job)
        return found[0]

    def refused(self, steps: str, match: str) -> None:
        async def job(engine: Engine) -> None:
            text = f"FROM {self.base}\n{steps}\n".encode()
            async with asyncio.timeout(40):
                with pytest.raises((BuildFailed, DockerfileInvalid), match=match):
                    await build(engine, BuildRequest(text, self.context, name="bad"))
            with pytest.raises(NotFound):
                engine.images.find("bad")
            assert not engine._sandboxes

        self.with_engine(job)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    assert made.canary.read_text() == "of the host\n"
    assert sorted(os.listdir(tmp_path)) in (
        ["base.tar", "canary", "context"],
        ["base.tar", "canary", "context", "state"],
    )


@pytest.mark.parametrize(
    "target", ["/up/landed", "/way/landed", "../../../landed", "/up/up/landed"]
)
def test_copies_land_in_the_image_wherever_its_links_lead(ground: Ground, target: str) -> None:
    said = ground.says(f"COPY plain {target}", "cat /landed /etc/landed")
    assert said == "plain\n"
    assert not Path("/landed").exists()
    assert not Path("/etc/landed").exists()


@pytest.mark.parametrize(
    ("name", "match"),
    [
        pytest.param("fifo", "is no file, directory or link", id="fifo"),
        pytest.param("socket", "is no file, directory or link", id="socket"),
        pytest.param("device", "is no file, directory or link", id="device"),
        pytest.param("sparse", "more than .* bytes", id="sparse"),
    ],
)
def test_odd_things_in_a_context_end_a_build(ground: Ground, name: str, match: str) -> None:
    path = ground.context / name
    if name == "fifo":
        os.mkfifo(path)
    elif name == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    elif name == "device":
        os.mknod(path, 0o20666, os.makedev(1, 5))
    else:
        with path.open("wb") as file:
            file.truncate(1 << 43)
    ground.refused(f"COPY {name} /x", match)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("RUN dd if=/dev/zero of=/full bs=1048576", id="disk"),
        pytest.param("RUN f() { f | f & }; f; f; exit 3", id="processes"),
    ],
)
def test_bombs_in_a_step_end_at_its_limits(ground: Ground, step: str) -> None:
    ground.refused(step, "line 2: RUN")


def test_steps_that_are_meant_well_are_built(ground: Ground) -> None:
    """The control of both."""
    folder = ground.context / "folder"
    folder.mkdir()
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to("loop")
    (folder / "out").symlink_to(ground.canary)
    (folder / "same").write_text("same\n")
    steps = "COPY folder /x/\nRUN dd if=/dev/zero of=/some bs=1048576 count=4 && mkdir -p /d/d/d"
    said = ground.says(steps, "ls -d /d/d/d; ls /x; cat /x/same /x/out")
    assert said == "/d/d/d\nloop\nout\nsame\nsame\n"


@pytest.mark.parametrize(
    "own",
    [
        pytest.param({"Entrypoint": ["/nothing-here"]}, id="missing"),
        pytest.param({"Cmd": ["nothing-here"]}, id="missing-command"),
        pytest.param({"Entrypoint": ["/etc/passwd"]}, id="no-program"),
        pytest.param({"Entrypoint": ["/etc"]}, id="directory"),
        pytest.param({"Entrypoint": ["/loop"]}, id="loop"),
        pytest.param({}, id="none"),
    ],
)
def test_entry_point_that_is_none_is_told(tmp_path: Path, own: dict[str, list[str]]) -> None:
    root = layer([*small_root(), link("loop", "loop")])
    path = docker_archive(tmp_path / "i.tar", [root], config_of([root], Env=["PATH=/bin"], **own))
    try:
        done = command_line.start("run", "--image", str(path))
        assert done.returncode in {125, 126, 127}, done
        assert next(iter(own.values()), ["command"])[0] in done.stderr
        assert "Traceback" not in done.stderr
        # The control: the image is a good one otherwise.
        good = command_line.start("run", "--image", str(path), "--", "cat", "/etc/group")
        assert (good.returncode, good.stdout[:5]) == (0, "root:"), good.stderr
    finally:
        command_line.start("images", "rm", str(path))

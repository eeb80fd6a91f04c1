"""Images of real tools: made here, carried by a registry and a Docker daemon, used as roots.

Node, Go and Python tool chains, a busybox, a repository with a failing test. With
CELLWALL_TEST_DEBIAN_MIRROR and CELLWALL_TEST_UBUNTU_MIRROR, which name mirrors, Debian 12 and 13
and Ubuntu as well. The witnesses are the other tools: what skopeo and the daemon say of an image.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings
from cellwall.engine.templates.store import TemplateStore, state_dir
from conftest import require_command
from kit.docker_daemon import Daemon
from kit.images import docker_registry, real

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]
MIRRORS = {
    "debian12": "CELLWALL_TEST_DEBIAN_MIRROR",
    "debian13": "CELLWALL_TEST_DEBIAN_MIRROR",
    "ubuntu": "CELLWALL_TEST_UBUNTU_MIRROR",
}
WALLS = ("jail", "gvisor", "docker")
CHECKS = {
    "busybox": ("cat /etc/alpine-release; ash -c 'echo $((6*7))'; ls /bin/busybox", "/bin/busybox"),
    "node": ("node -e 'console.log(6*7, process.env.NODE_ENV)'", "42 production"),
    "go": (
        "printf 'package main\\nfunc main(){println(6*7)}' > a.go && go run a.go 2>&1",
        "42",
    ),
    "python-slim": (
        "python -c 'import sys, sqlite3, json; print(sys.executable)'",
        "/usr/local/bin/python",
    ),
    "debian12": (". /etc/os-release; echo $ID $VERSION_ID", "debian 12"),
    "debian13": (". /etc/os-release; echo $ID $VERSION_ID", "debian 13"),
    "ubuntu": (". /etc/os-release; echo $ID $(stat -c %U /home/ubuntu)", "ubuntu ubuntu"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real")


@pytest.fixture(scope="module")
def archive(folder: Path) -> Callable[[str], Path]:
    """Return the archive of an image by its name; it is made once."""

    def made(name: str) -> Path:
        path = folder / f"{name}.tar"
        if path.exists():
            return path
        if name in real.HERE:
            for command in real.NEEDS.get(name, ()):
                require_command(command)
            return real.HERE[name](path)
        mirror = os.environ.get(MIRRORS[name], "")
        if not mirror:
            pytest.skip(f"{MIRRORS[name]} names no mirror to make {name} from")
        require_command("mmdebstrap")
        return real.debootstrapped(path, name, mirror)

    return made


@pytest.fixture(scope="module", params=WALLS)
def wall(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "gvisor":
        require_command("runsc")
    return name


@pytest.fixture(scope="module")
def templates(request: pytest.FixtureRequest, wall: str) -> Any:
    if wall == "docker":
        return request.getfixturevalue("docker_ground")[1]
    return TemplateStore(state_dir())


@contextmanager
def sandboxes(place: Path, templates: Any, **settings: Any) -> Iterator[Callable[..., Any]]:
    """Run commands as root in new sandboxes on images of one engine."""
    chosen = EngineSettings(pool_min=0, pool_max=0, **settings)
    with asyncio.Runner() as runner:
        engine = runner.run(_made(place, chosen, templates))

        def run(image: str, *scripts: str, **options: Any) -> list[Any]:
            return runner.run(_said(engine, image, scripts, options))

        try:
            yield run
        finally:
            runner.run(engine.aclose())


async def _made(place: Path, settings: EngineSettings, templates: Any) -> Engine:
    return Engine(place, settings, templates=templates)


async def _said(
    engine: Engine, image: str, scripts: tuple[str, ...], options: dict[str, Any]
) -> list[Any]:
    limits = {"memory_mb": 1024, "disk_mb": 1024, "cpu_s": 120, "wall_s": 120, "processes": 200}
    sandbox: AsyncSandbox = await engine.create_sandbox(
        image=image, user="root", limits=limits, **options
    )
    try:
        return [await sandbox.commands.run(["sh", "-c", each], timeout=110) for each in scripts]
    finally:
        await sandbox.close()


@pytest.fixture(scope="module")
def run(folder: Path, wall: str, templates: Any) -> Iterator[Callable[..., Any]]:
    with sandboxes(folder / "state", templates) as made:
        yield lambda *words: made(*words, runtime=wall)


@pytest.mark.parametrize("name", CHECKS)
def test_image_is_a_root(
    name: str, run: Callable[..., Any], archive: Callable[[str], Path]
) -> None:
    script, last = CHECKS[name]
    (said,) = run(str(archive(name)), script)
    assert said.stdout.splitlines()[-1:] == [last], said


def test_task_is_solved(run: Callable[..., Any], archive: Callable[[str], Path]) -> None:
    """The agent looks, patches as root and tests; the verdict before and after is the tests'."""
    before, patched, after, status = run(
        str(archive("swe")),
        "python -m pytest -q -p no:cacheprovider",
        "git apply fix.patch && id -u",
        "pytest -q -p no:cacheprovider",
        "git status --short --untracked-files=no",
    )
    assert (before.exit_code, before.stdout.splitlines()[-1][:8]) == (1, "2 failed"), before
    assert (patched.exit_code, patched.stdout) == (0, "0\n"), patched
    assert (after.exit_code, after.stdout.splitlines()[-1][:8]) == (0, "2 passed"), after
    assert status.stdout == " M figures.py\n"


# -- the ways that an image comes ------------------------------------------------------------------


@pytest.fixture(scope="module")
def registry(folder: Path) -> Iterator[str]:
    """The address of Debian's registry server on loopback."""
    program = require_command("docker-registry")
    with docker_registry.serving(program, folder / "registry") as port:
        yield f"127.0.0.1:{port}"


def skopeo(*words: str) -> None:
    program = [require_command("skopeo"), "--insecure-policy", "copy"]
    subprocess.run([*program, *words], check=True, capture_output=True, timeout=300)


OFFLINE = ("busybox", "node", "go", "python-slim", "swe")


@pytest.mark.parametrize("name", OFFLINE)
def test_image_of_a_registry(
    name: str, registry: str, archive: Callable[[str], Path], tmp_path: Path
) -> None:
    path = archive(name)
    skopeo(
        "--dest-tls-verify=false", f"docker-archive:{path}", f"docker://{registry}/real/{name}:1"
    )
    own = ({"registry": registry, "url": f"http://{registry}"},)
    with sandboxes(tmp_path, TemplateStore(state_dir()), image_registries=own) as run:
        (said,) = run(f"{registry}/real/{name}:1", "id -u; pwd")
    assert said.stdout.startswith("0\n/"), said


@pytest.mark.parametrize("name", ["busybox", "swe"])
def test_layout_of_another_tool(name: str, archive: Callable[[str], Path], tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    skopeo(f"docker-archive:{archive(name)}", f"oci:{layout}:1")
    with sandboxes(tmp_path / "state", TemplateStore(state_dir())) as run:
        (said,) = run(str(layout), "id -u")
    assert said.stdout == "0\n", said


@pytest.mark.parametrize("name", ["busybox", "swe"])
def test_image_of_a_daemon(
    name: str, docker_daemon: Daemon, archive: Callable[[str], Path], tmp_path: Path
) -> None:
    loaded = docker_daemon.call("load", "--input", str(archive(name))).stdout.split()[-1]
    docker_daemon.call("tag", loaded, f"real/{name}:1")
    saved = tmp_path / "saved.tar"
    docker_daemon.call("save", "--output", str(saved), f"real/{name}:1")
    with sandboxes(tmp_path / "state", TemplateStore(state_dir())) as run:
        (of_archive,) = run(str(saved), "id -u")
        (of_daemon,) = run(f"docker://real/{name}:1", "id -u")
    assert (of_archive.stdout, of_daemon.stdout) == ("0\n", "0\n")

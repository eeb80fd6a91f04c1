"""An image's root made of this machine's files, as `jail.unpack` leaves one, and an arena on it.

No registry and no layer: for tests of the jail on such a root. The files are hard links where the
file system is the same, and copies elsewhere, so that a tree with Python is made in a second.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cellwall import Engine, EngineSettings
from cellwall.jail.plan import image_plan
from cellwall.linux.uid_ranges import IMAGE_BASE
from cellwall.runtimes.docker import base_files
from cellwall.runtimes.roots import ImageRoot
from kit.arena import Arena

TOOLS = ("/usr/bin/python3", "/usr/bin/setsid", "/bin/sh", "/bin/su")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
APP = 1001
PASSWD = f"root:x:0:0:root:/root:/bin/sh\napp:x:{APP}:{APP}::/home/app:/bin/sh\n"
_DIRECTORIES = (*image_plan.MADE, "/home", "/home/app", "/root")
_LINKS = ("bin", "lib", "lib64", "sbin")


def shared_tree(factory: pytest.TempPathFactory) -> Path:
    """Return one tree for all of a session, whichever of pytest's processes makes it.

    The first that comes holds the lock and makes it; nobody changes it.
    """
    base = factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (folder / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "image").is_dir():
            made = Path(tempfile.mkdtemp(dir=folder))
            host_tree(made)
            made.rename(folder / "image")
    return folder / "image" / "tree"


def host_tree(folder: Path, tools: Sequence[str] = TOOLS) -> Path:
    """Make the tree below `folder`, with what the packages of `tools` need; return its path."""
    tree = folder / "tree"
    for path in _DIRECTORIES:
        (tree / path[1:]).mkdir(parents=True, exist_ok=True)
    packages = base_files.select("/usr/bin/python3", tuple(tools))
    for path in base_files.files_of(packages):
        _copy(path, tree)
    for name in _LINKS:
        if os.path.islink(f"/{name}"):
            (tree / name).symlink_to(os.readlink(f"/{name}"))
    (tree / "etc/passwd").write_text(PASSWD, encoding="ascii")
    (tree / "etc/group").write_text(f"root:x:0:\napp:x:{APP}:\n", encoding="ascii")
    (tree / "etc/resolv.conf").write_text("", encoding="ascii")
    own(tree)
    for path in ("tmp", "var/tmp"):
        (tree / path).chmod(0o1777)
    os.chown(tree / "home/app", IMAGE_BASE + APP, IMAGE_BASE + APP)
    return tree


def _copy(path: str, tree: Path) -> None:
    target = tree / path[1:]
    if os.path.isdir(path) and not os.path.islink(path):
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(target):
        shutil.copy2(path, target, follow_symlinks=False)


def own(tree: Path) -> None:
    """Give everything in a tree to the root of images; set-uid bits stay."""
    for path in (tree, *_below(tree)):
        mode = path.lstat().st_mode
        os.lchown(path, IMAGE_BASE, IMAGE_BASE)
        if not stat.S_ISLNK(mode):
            path.chmod(stat.S_IMODE(mode))


def _below(tree: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(tree):
        yield from (Path(folder, name) for name in (*names, *files))


def image(tree: Path, uid: int = 0) -> ImageRoot:
    """Return the image with that root, for user 0 or `APP`."""
    user, home = ("root", "/root") if uid == 0 else ("app", "/home/app")
    return ImageRoot(f"sha256:{'0' * 64}", str(tree), user, uid, uid, home, home, {"PATH": PATH})


@dataclass(frozen=True)
class Said:
    """A program's end, as far as probes look."""

    exit_code: int | None
    stdout: str
    stderr: str
    outcome: object


class ImageArena(Arena):
    """An arena whose programs run in sandboxes on an image, by the image's own Python."""

    def __init__(
        self,
        root: ImageRoot,
        make: Callable[[], Engine] | None = None,
        *,
        runtime: str = "jail",
    ) -> None:
        """Run everything as the user of `root`."""
        super().__init__(make, runtime=runtime)
        self.root = root

    async def on_image(
        self, code: str, limits: Mapping[str, int] | None = None, timeout_s: float = 20
    ) -> Said:
        """Run one Python program in a new sandbox on the image."""
        async with self.sandbox(image=self.root, limits=dict(limits or {})) as sandbox:
            await sandbox.files.write("/tmp/probe.py", code)
            done = await sandbox.commands.run(["python3", "/tmp/probe.py"], timeout=timeout_s)
            return Said(done.exit_code, done.stdout, done.stderr, done.outcome)

    async def arun(self, code: str, language: str = "python", **options: Any) -> Any:
        """Run a probe on the image, once there is one."""
        if not hasattr(self, "root"):
            return await super().arun(code, language, **options)
        nonce = secrets.token_hex(8)
        said = await self.on_image(
            f"print({nonce!r}, flush=True)\n{code}", options.get("limits"), options["timeout"]
        )
        assert said.stdout.startswith(nonce), f"the probe did not run: {said}"
        return said


def arena_behind(request: pytest.FixtureRequest, wall: str, tree: Path, uid: int = 0) -> ImageArena:
    """Return an arena on the image with that root, on the runtime called `wall`."""
    if wall == "docker":
        state, templates = request.getfixturevalue("docker_ground")
        settings = EngineSettings(pool_min=0, pool_max=0)
        return ImageArena(
            image(tree, uid), lambda: Engine(state, settings, templates=templates), runtime=wall
        )
    if wall == "gvisor":
        request.getfixturevalue("gvisor_arena")  # which says why there is none
    return ImageArena(image(tree, uid), runtime=wall)

"""Template images: made from the host's packages and a built template, kept by the daemon.

Uses no registry and runs nothing. An image's name is the digest of its inputs; the digests of its
layers are recorded in the state directory. The invariant: a container is made from an image id
whose layers are the recorded ones; a name that leads to another image is an error, never used.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cellwall.jail.inspect import host_facts
from cellwall.jail.plan import plan, steps
from cellwall.languages.registry import LANGUAGES
from cellwall.languages.tools import find_tool, is_installed
from cellwall.model.errors import HostUnsupported
from cellwall.runtimes.docker import base_files, ids, inside, layers
from cellwall.runtimes.shared.guest_bundle import build_bundle

if TYPE_CHECKING:
    from cellwall.model.template import BuiltTemplate
    from cellwall.runtimes.docker.daemon import Daemon

Progress = Callable[[str], None]
REPOSITORY = "cellwall/template"
TEMPLATE_LABEL = "org.cellwall.template"
KEY_LABEL = "org.cellwall.image"
_BUILDER_VERSION = 5
"""Version of the build; raise it when this file makes something else of the same template."""
_BUNDLE = (
    "cellwall.guest",
    "cellwall.linux.syscalls",
    "cellwall.linux.seccomp",
    "cellwall.runtimes.docker.inside",
    "cellwall.runtimes.docker.inside_image",
)
_ENTRY = "cellwall.runtimes.docker.inside:main"
_DIRECTORIES = ("/proc", "/sys", "/dev", "/home", "/run", "/root", "/var", "/opt/cellwall")


@dataclass(frozen=True, slots=True)
class _Plan:
    """Inputs of one image."""

    template: BuiltTemplate
    packages: list[base_files.Package]
    bundle: Path
    compiles: bool
    """Whether one of its languages has a compiler, which needs headers and static libraries."""
    key: str

    @property
    def tag(self) -> str:
        return f"{REPOSITORY}:{self.key}"


def _plan(state_dir: Path, template: BuiltTemplate) -> _Plan:
    known = [LANGUAGES[name] for name in template.template.languages if name in LANGUAGES]
    here = [each for each in known if is_installed(each)]
    tools = [find_tool(name) or "" for each in here for name in each.tools]
    names = [name for each in here for name in each.packages]
    packages = base_files.select(template.base_python, tools, names)
    compiles = any(each.compile for each in here)
    bundle = build_bundle(state_dir, _BUNDLE, _ENTRY)
    parts = (
        str(_BUILDER_VERSION),
        template.digest,
        base_files.identity(packages),
        bundle.stem,
        str(compiles),
    )
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    return _Plan(template, packages, bundle, compiles, key)


class Images:
    """The images of one state directory in one daemon."""

    def __init__(self, state_dir: Path, daemon: Daemon) -> None:
        self._state_dir = state_dir
        self._home = state_dir / "docker"
        self._daemon = daemon
        self._known: dict[str, str] = {}
        self._lock = asyncio.Lock()

    def forget(self, template: BuiltTemplate) -> None:
        """Forget an image that the daemon no longer has."""
        self._known.pop(template.path, None)

    async def ensure(self, template: BuiltTemplate, progress: Progress | None = None) -> str:
        """Return the id of the template's image, made and loaded if the daemon lacks it."""
        known = self._known.get(template.path)
        if known is not None:
            return known
        async with self._lock:
            if template.path not in self._known:
                self._known[template.path] = await self._ensure(template, progress or _quiet)
        return self._known[template.path]

    async def _ensure(self, template: BuiltTemplate, progress: Progress) -> str:
        what = await asyncio.to_thread(_plan, self._state_dir, template)
        wanted = self._recorded(what)
        found = await self._daemon.find_image(what.tag)
        if found is None or wanted is None:
            progress(f"building image {what.tag}")
            wanted = await self._build(what, progress)
            found = await self._daemon.find_image(what.tag)
        has = (found or {}).get("RootFS", {}).get("Layers")
        if found is None or has != wanted:
            raise HostUnsupported(
                "template image",
                f"use image {what.tag}: its layers are {has}, ours were {wanted}",
                remedy=f"the tag now names another image; run: docker rmi {what.tag}",
            )
        return str(found["Id"])

    def _record(self, key: str) -> Path:
        return self._home / f"{os.path.basename(key)}.json"

    def _recorded(self, what: _Plan) -> list[str] | None:
        try:
            return list(json.loads(self._record(what.key).read_bytes())["layers"])
        except (FileNotFoundError, ValueError, KeyError):
            return None

    async def _build(self, what: _Plan, progress: Progress) -> list[str]:
        folder = await asyncio.to_thread(self._work_folder)
        try:
            archive, wanted = await asyncio.to_thread(_write, what, folder, progress)
            progress(f"loading {archive.stat().st_size / 1e6:.0f} MB into the Docker daemon")
            await self._daemon.load_image(archive)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        text = json.dumps({"template": what.template.template.name, "layers": wanted})
        temporary = self._record(what.key).with_suffix(f".tmp-{os.getpid()}")
        temporary.write_text(text, encoding="utf-8")
        temporary.rename(self._record(what.key))
        return wanted

    def _work_folder(self) -> Path:
        try:
            self._home.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix="build-", dir=self._home))
        except OSError as error:
            raise HostUnsupported(
                "state directory",
                f"create {self._home}: {error.strerror}",
                remedy="set CELLWALL_STATE_DIR to a directory you can write to",
                errno=error.errno,
            ) from error

    async def remove(self, template_name: str) -> int:
        """Remove this state directory's images of a template from the daemon; return their number.

        Images of another state directory have the same labels, but no record here.
        """
        found = await self._daemon.images(f"{TEMPLATE_LABEL}={template_name}")
        keys = [str(each["Labels"].get(KEY_LABEL, "")) for each in found]
        ours = [key for key in keys if self._record(key).is_file()]
        for key in ours:
            await self._daemon.remove_image(f"{REPOSITORY}:{key}")
            self._record(key).unlink(missing_ok=True)
        self._known.clear()
        return len(ours)


def _quiet(_line: str) -> None:
    return


def _write(what: _Plan, folder: Path, progress: Progress) -> tuple[Path, list[str]]:
    progress(f"packing {len(what.packages)} packages of this host")
    base = _base_layer(what, folder / "base.tar")
    progress(f"packing template {what.template.template.name}")
    writer = layers.LayerWriter(folder / "template.tar")
    writer.tree(what.template.path, plan.TEMPLATE_ROOT)
    for path in what.template.base_mounts:
        writer.tree(path, path)
    template = writer.close()
    writer = layers.LayerWriter(folder / "guest.tar")
    writer.file(plan.GUEST_PATH, what.bundle.read_bytes())
    made = [base, template, writer.close()]
    labels = {TEMPLATE_LABEL: what.template.template.name, KEY_LABEL: what.key}
    config = layers.configuration(made, labels, os.uname().machine)
    archive = folder / "image.tar"
    layers.archive(archive, made, config, what.tag)
    wanted: list[str] = config["rootfs"]["diff_ids"]
    return archive, wanted


def _base_layer(what: _Plan, path: Path) -> layers.Layer:
    writer = layers.LayerWriter(path)
    for directory in _DIRECTORIES:
        writer.directory(directory)
    for name in ("/tmp", "/var/tmp"):
        writer.link(name, "/home/tmp")
    for name in inside.TOP_NAMES:
        writer.link(f"/{name}", f"{inside.TOP}/{name}")
    host = host_facts.collect()
    for step in plan.root_plan(host, plan.Root("", (), "")):
        _lay(writer, step)
    for source in base_files.files_of(what.packages, compiles=what.compiles):
        writer.copy(source, source)
    return writer.close()


def _lay(writer: layers.LayerWriter, step: steps.Step) -> None:
    """Write the parts of the jail's root that are no host trees: /etc and top-level links."""
    if isinstance(step, steps.Symlink) and not step.path.startswith("/dev/"):
        writer.link(step.path, step.target)
    elif isinstance(step, steps.File) and step.path.startswith("/etc/"):
        # The first entry of a name is found by that name: the container ids follow it.
        more = ids.accounts() if step.path == "/etc/passwd" else ""
        writer.file(step.path, (step.content + more).encode())
    elif isinstance(step, steps.Copy) and step.path.startswith(("/etc/", "/opt/var/")):
        if os.path.isdir(step.source):
            writer.tree(step.source, step.path)
        else:
            writer.copy(step.source, step.path)

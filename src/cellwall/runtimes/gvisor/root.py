"""Root: the files that a template's gVisor sandboxes see, written once on disk.

They come from the jail's root plan, so that there is one list of what a sandbox may see. Small
files are written here, large trees of the host stay where they are, and both are named as read-only
mounts below a root that each sandbox has for itself (`work_area`). The OCI configuration is
elsewhere (`oci_bundle`). The invariant: a directory is complete before it has its name, the digest
of its content, and is not written to afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from cellwall.jail.plan import plan, steps
from cellwall.linux import host_copies
from cellwall.linux.removal import remove_tree
from cellwall.model.errors import HostUnsupported
from cellwall.runtimes.gvisor.guest_image import REST_PATH, START_PATH, Image

HOME = plan.HOME
_LINKS = {"/var/tmp": "../tmp"}  # noqa: S108 - paths inside
_SKIPPED = (
    *(plan.VIEWS, "/dev/", "/proc/", "/sys/", "/none", HOME),
    *(f"{plan.OWN}/{name}" for name in ("empty", "etc", "var")),
)
"""Paths left out of the jail's plan: gVisor has its own kernel's /proc, /dev and /sys."""

_WRITTEN = ("/etc", "/opt")
"""Directories mounted as they are on the disk."""
_BELOW = tuple(f"{path}/" for path in _WRITTEN)

Part = steps.Directory | steps.File | steps.Symlink | steps.Bind | steps.Copy


@dataclass(frozen=True, slots=True)
class Root:
    """What was written, and the parts of a sandbox's own root other than its user's files."""

    path: str
    mounts: tuple[tuple[str, str], ...]
    """Pairs (source, path) of read-only trees, parents first."""
    directories: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    """Pairs (path, target) of symbolic links."""


def make_root(
    folder: Path, facts: plan.HostFacts, template: plan.Root, image: Image | None = None
) -> Root:
    """Return the root of a template below `folder`, built if it does not exist. Blocks.

    `image` is the code its interpreter starts from, see `guest_image`. HostUnsupported if the state
    directory cannot be written.
    """
    wanted = list(_wanted(plan.root_plan(facts, template)))
    if image is not None:
        wanted.append(steps.Copy(str(image.start), START_PATH))
        wanted.append(steps.Copy(str(image.rest), REST_PATH))
    return _root(str(_written(folder, wanted)), wanted)


def _written(folder: Path, wanted: Sequence[Part]) -> Path:
    target = folder / _digest(wanted)
    if not target.exists():
        try:
            _build(folder, target, wanted)
        except OSError as error:
            raise HostUnsupported(
                "state directory",
                f"build gVisor root {target}: {error}",
                remedy="make it writable, or name another one with CELLWALL_STATE_DIR",
                errno=error.errno,
            ) from error
    return target


def make_image_root(folder: Path, bundle: Path, image: Image, interpreter: Path) -> Root:
    """Return what sandboxes on images are shown besides them, built if it does not exist. Blocks.

    HostUnsupported if the state directory cannot be written.
    """
    wanted: list[Part] = [
        steps.Copy(str(bundle), plan.GUEST_PATH),
        steps.Copy(str(image.start), START_PATH),
        steps.Copy(str(image.rest), REST_PATH),
        steps.Directory(plan.OWN_PYTHON),
    ]
    written = str(_written(folder, wanted))
    return Root(written, ((f"{written}{plan.OWN}", plan.OWN), (str(interpreter), plan.OWN_PYTHON)))


def _root(written: str, wanted: Sequence[Part]) -> Root:
    """Mount the directories of `_WRITTEN` from the disk and list the other parts."""
    binds = [(step.source, step.path) for step in wanted if isinstance(step, steps.Bind)]
    copies_of = [(f"{written}{path}", path) for path in _WRITTEN if os.path.isdir(written + path)]
    rest = [step for step in wanted if not f"{step.path}/".startswith(_BELOW)]
    links = [(step.path, step.target) for step in rest if isinstance(step, steps.Symlink)]
    folders = dict.fromkeys(_WRITTEN)
    for step in rest:
        above = step.path if not isinstance(step, steps.Symlink) else os.path.dirname(step.path)
        folders.update(dict.fromkeys(plan.above(above)))
    return Root(
        written, (*copies_of, *binds), tuple(path for path in folders if path != "/"), tuple(links)
    )


def _wanted(planned: Sequence[steps.Step]) -> Iterator[Part]:
    """Yield the directories, files, links and binds of the jail's plan that apply here."""
    for step in planned:
        if not isinstance(step, get_args(Part)):
            continue
        if not step.path.startswith(_SKIPPED) and step.path not in _LINKS:
            yield step
    for path, target in _LINKS.items():
        yield steps.Symlink(path, target)


def _digest(wanted: Sequence[Part]) -> str:
    described = [[steps.as_json(step), *_content(step)] for step in wanted]
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]


def _content(step: Part) -> list[tuple[str, int, int]]:
    """Return name, size and time of the files in a copied tree."""
    if not isinstance(step, steps.Copy):
        return []
    found = [step.source] if os.path.isfile(step.source) else []
    for parent, _, names in os.walk(step.source):
        found += [os.path.join(parent, name) for name in names]
    return [(p, s.st_size, s.st_mtime_ns) for p in sorted(found) for s in (os.lstat(p),)]


def _build(folder: Path, target: Path, wanted: Sequence[Part]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    made = tempfile.mkdtemp(dir=folder, prefix=".root-")
    try:
        os.chmod(made, 0o755)  # noqa: S103 - as below
        for step in wanted:
            _make(made, step)
        try:
            os.rename(made, target)
        except OSError:
            if not target.exists():
                raise
            remove_tree(made)  # another engine has built the same in the meantime
    except BaseException:
        remove_tree(made)
        raise


def _make(root: str, step: Part) -> None:
    path = root + step.path
    _directory(os.path.dirname(path))
    if isinstance(step, steps.Directory):
        _directory(path)
    elif isinstance(step, steps.Symlink):
        os.symlink(step.target, path)
    elif isinstance(step, steps.File):
        _file(path, step.content.encode())
    elif isinstance(step, steps.Copy):
        host_copies.copy(step.source, path)
    elif os.path.isdir(step.source):
        _directory(path)
    else:
        _file(path, b"")


def _directory(path: str) -> None:
    if os.path.isdir(path):
        return
    _directory(os.path.dirname(path))
    os.mkdir(path)
    os.chmod(path, 0o755)  # noqa: S103 - every sandbox's user has to enter it


def _file(path: str, content: bytes) -> None:
    Path(path).write_bytes(content)
    os.chmod(path, 0o444)

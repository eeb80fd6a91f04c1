"""Template store: where templates lie, which are built, and building one builder at a time.

It neither fills an environment (`build`) nor defines one (`definitions`). The invariant: a
directory named by a digest is complete. It gets that name by one rename, under the digest's lock,
after everything in it was written; everything else in the store's directory is leftovers.

    <state>/templates/<digest>/              an environment and its manifest.json
    <state>/templates/<digest>.tmp-<pid>     being built or removed, or left by a killed builder
    <state>/templates/<digest>.lock          never deleted: deleting a lock file makes two locks
    <state>/templates/<digest>.starts-<runtime>    sandboxes of it have started on that runtime
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cellwall.engine.templates import build as template_build
from cellwall.engine.templates.base_interpreter import BaseInterpreter, base_interpreter
from cellwall.engine.templates.build import Progress
from cellwall.engine.templates.definitions import definitions, from_mapping
from cellwall.model.errors import CellwallError, HostUnsupported, NotFound
from cellwall.model.template import BuiltTemplate, Template

_BUILDER_VERSION = 4
"""Version of the build; raise it when `build` produces something else from the same definition."""

_MANIFEST = "manifest.json"


def state_dir() -> Path:
    """Return the directory of cellwall's persistent state; nothing is created."""
    chosen = os.environ.get("CELLWALL_STATE_DIR")
    if chosen:
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/cellwall")
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local/share") / "cellwall"


class TemplateStore:
    """The templates of one state directory. Holds no state of its own; any number may exist."""

    def __init__(self, state_dir: Path) -> None:
        """Touch nothing; the first build creates the directory."""
        self._directory = state_dir.absolute() / "templates"

    def definitions(self) -> dict[str, Template]:
        """Return the known templates by name, built or not."""
        return definitions()

    def find(self, name: str) -> BuiltTemplate | None:
        """Return the built template, or None when it is not built; `NotFound` if unknown."""
        template = self._definition(name)
        return self._load(template, _digest(template, base_interpreter(template)))

    def build(self, name: str, progress: Progress | None = None) -> BuiltTemplate:
        """Build the template unless it exists; return it. A second builder waits for the first."""
        report = progress or (lambda _line: None)
        template = self._definition(name)
        base = base_interpreter(template)
        digest = _digest(template, base)
        built = self._load(template, digest)
        if built is not None:
            return built
        self._make_directory()
        with self._lock(digest, report):
            built = self._load(template, digest)
            if built is None:
                report(f"building template {name} ({digest[:12]}) on {base.executable}")
                self._build(template, base, digest, report)
                built = self._load(template, digest)
        if built is None:
            raise HostUnsupported(
                "template build",
                f"build template {name}: {self._directory / digest} is gone again",
                remedy="do not remove templates while they are built; build again",
            )
        return built

    def list(self) -> list[BuiltTemplate]:
        """Return every built template by name, including those of outdated definitions."""
        found = []
        for path in sorted(self._directory.glob("*/" + _MANIFEST)):
            if "." not in path.parent.name and (manifest := _read(path)) is not None:
                fields = dict(manifest["template"])
                template = from_mapping(fields.pop("name"), fields)
                found.append(_built(template, path.parent, manifest))
        return sorted(found, key=lambda built: (built.template.name, built.digest))

    def remove(self, name: str) -> None:
        """Delete every build of that name; `NotFound` when there is none."""
        built = [b for b in self.list() if b.template.name == name]
        if not built:
            raise NotFound(f"remove template {name}: it is not built", remedy="list the templates")
        for each in built:
            with self._lock(each.digest, lambda _line: None):
                path = self._directory / each.digest
                doomed = self._temporary(each.digest)
                if path.exists():
                    path.rename(doomed)
                _delete(doomed)
                for trial in self._directory.glob(f"{each.digest}.starts-*"):
                    trial.unlink(missing_ok=True)

    def has_started(self, built: BuiltTemplate, runtime: str) -> bool:
        """Report whether a trial sandbox of the template has started on `runtime` before."""
        return self._trial(built, runtime).exists()

    def note_start(self, built: BuiltTemplate, runtime: str) -> None:
        """Record a successful trial; without write permission the trial is repeated next time."""
        with suppress(OSError):
            self._trial(built, runtime).touch()

    def _trial(self, built: BuiltTemplate, runtime: str) -> Path:
        return self._directory / f"{built.digest}.starts-{runtime}"

    def _definition(self, name: str) -> Template:
        known = self.definitions()
        if name not in known:
            raise NotFound(
                f"template {name!r} is not defined", remedy=f"defined: {', '.join(sorted(known))}"
            )
        return known[name]

    def _load(self, template: Template, digest: str) -> BuiltTemplate | None:
        path = self._directory / digest
        manifest = _read(path / _MANIFEST)
        return None if manifest is None else _built(template, path, manifest)

    def _temporary(self, digest: str) -> Path:
        return self._directory / f"{digest}.tmp-{os.getpid()}"

    def _make_directory(self) -> None:
        try:
            for directory in (self._directory.parent, self._directory):
                if not directory.exists():
                    directory.mkdir(parents=True, exist_ok=True)
                    # Sandboxes read it under a foreign uid, whatever this process's umask is.
                    directory.chmod(0o755)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> HostUnsupported:
        return HostUnsupported(
            "state directory",
            f"create {self._directory}: {error.strerror}",
            remedy="set CELLWALL_STATE_DIR to a directory you can write to",
            errno=error.errno,
        )

    @contextmanager
    def _lock(self, digest: str, report: Progress) -> Iterator[None]:
        """Hold the digest's lock; the kernel releases it if this process is killed."""
        try:
            lock_fd = os.open(
                self._directory / f"{digest}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report(f"waiting for another builder of {digest[:12]}")
                fcntl.flock(lock_fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock_fd)

    def _build(
        self, template: Template, base: BaseInterpreter, digest: str, report: Progress
    ) -> None:
        for rubbish in self._directory.glob(f"{digest}.tmp-*"):
            _delete(rubbish)  # no other builder uses it: this process holds the lock
        root = self._temporary(digest)
        try:
            packages = template_build.fill(root, template, base, report)
            size_bytes = template_build.seal(root)
            _write_manifest(root, _manifest(template, base, digest, packages, size_bytes))
            root.rename(self._directory / digest)
        except OSError as error:
            raise HostUnsupported(
                "template build",
                f"build template {template.name} in {root}: {error.strerror}",
                remedy="free some space, or set CELLWALL_STATE_DIR to another file system",
                errno=error.errno,
            ) from error
        finally:
            _delete(root)
        report(f"built template {template.name}: {size_bytes / 1e6:.0f} MB")


def _digest(template: Template, base: BaseInterpreter) -> str:
    content = {
        "builder": _BUILDER_VERSION,
        "template": template.identity(),
        "base": base.identity(),
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _manifest(
    template: Template,
    base: BaseInterpreter,
    digest: str,
    packages: list[str],
    size_bytes: int,
) -> dict[str, Any]:
    return {
        "builder": _BUILDER_VERSION,
        "digest": digest,
        "template": {
            "name": template.name,
            "description": template.description,
            "python": template.python,
        }
        | template.identity(),
        "python": {
            "executable": base.executable,
            "version": ".".join(map(str, base.version)),
            "mounts": list(base.mounts),
        },
        "packages": packages,
        "size_bytes": size_bytes,
    }


def _write_manifest(root: Path, manifest: dict[str, Any]) -> None:
    root.chmod(0o755)
    path = root / _MANIFEST
    with path.open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(0o444)
    root.chmod(0o555)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise CellwallError(
            f"read {path}: {error}", remedy=f"remove {path.parent} and build the template again"
        ) from error
    return manifest if isinstance(manifest, dict) else None


def _built(template: Template, path: Path, manifest: dict[str, Any]) -> BuiltTemplate:
    return BuiltTemplate(
        template=template,
        digest=path.name,
        path=str(path),
        python=str(path / "bin/python"),
        base_python=manifest["python"]["executable"],
        base_mounts=tuple(manifest["python"]["mounts"]),
        size_bytes=manifest["size_bytes"],
    )


def _delete(root: Path) -> None:
    """Remove a tree that may be sealed; an absent one is fine."""
    if not root.exists():
        return
    for directory, _, _ in os.walk(root):
        os.chmod(directory, 0o700)
    shutil.rmtree(root)

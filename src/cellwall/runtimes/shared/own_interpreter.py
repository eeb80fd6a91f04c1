"""Own interpreter: a Python for sandboxes on images, which need not have one.

It is a copy of a template's base interpreter: its program, its standard library without tests and
graphics, the shared libraries that these need, and the loader that finds them beside it, so that no
file of the image takes part. What an image brings itself is not looked at here. The invariant: a
copy is complete before it has its name, and is used only while every file that it was made from is
unchanged.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from cellwall.jail.plan import plan
from cellwall.linux.removal import remove_tree
from cellwall.model.errors import HostUnsupported
from cellwall.runtimes.shared.environment import OWN_PYTHON
from cellwall.runtimes.shared.guest_bundle import file_state

_SCRIPT = '#!/bin/sh\nexec {} "$@"\n'
_LEFT_OUT = frozenset(
    (
        *("test", "tests", "idlelib", "tkinter", "turtledemo", "turtle.py", "ensurepip"),
        *("lib2to3", "pydoc_data", "dist-packages", "site-packages"),
    )
)
_LEFT_OUT_MODULES = ("_tkinter.", "nis.", "_dbm.", "_gdbm.", "_test", "_xx", "xx", "_ctypes_test.")
_ASK = (
    "import json, os, sys; "
    "mapped = [line.split()[-1] for line in open('/proc/self/maps')]; "
    "loaders = [path for path in mapped if os.path.basename(path).startswith('ld-')]; "
    "program = os.path.realpath(sys.executable); "
    "print(json.dumps([program, os.path.dirname(os.__file__), loaders[:1]]))"
)
_ASK_S = 30.0


class _Parts(NamedTuple):
    """What a copy is made of: paths on this machine."""

    program: str
    library: str
    """Directory of the standard library."""
    loader: str
    shared: Mapping[str, str]
    """Shared libraries by the names by which they are looked for."""


def build(state_dir: Path, base_python: str) -> Path:
    """Return the copy of `base_python` below the state directory; made if necessary. Blocks.

    Making one takes a third of a second. Raises HostUnsupported.
    """
    folder = state_dir / "guest"
    record = folder / f"python-{hashlib.sha256(base_python.encode()).hexdigest()[:16]}.json"
    known = _known(record)
    if known is not None:
        return known
    try:
        parts = _parts(base_python)
        states = {path: file_state(path) for path in _sources(parts)}
        digest = hashlib.sha256(json.dumps(states).encode()).hexdigest()[:32]
        made = _copied(folder, f"python-{digest}", parts)
        _write(record, json.dumps({"folder": made.name, "sources": states}))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise HostUnsupported(
            "images",
            f"image: copy the interpreter {base_python}: {error}",
            remedy="is it this machine's Python 3, dynamically linked, and the state directory "
            "writable?",
        ) from error
    return made


def library_of(made: Path) -> str:
    """Return the path of a copy's standard library in a sandbox."""
    (found,) = (each.name for each in (made / "lib").iterdir() if each.is_dir())
    return f"{plan.OWN_PYTHON}/lib/{found}"


def _known(record: Path) -> Path | None:
    """Return the copy that a record tells of, unless anything it was made from has changed."""
    try:
        said = json.loads(record.read_bytes())
        if all(file_state(path) == state for path, state in said["sources"].items()):
            found = record.parent / str(said["folder"])
            return found if found.is_dir() else None
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _sources(parts: _Parts) -> list[str]:
    """Return files, and directories of many files, that show whether a copy is still current."""
    found = [parts.program, parts.loader, *parts.shared.values(), *_extensions(parts.library)]
    for parent, folders, _ in os.walk(parts.library):
        folders[:] = [name for name in folders if name not in {*_LEFT_OUT, "__pycache__"}]
        found.append(parent)
    return found


def _extensions(library: str) -> list[str]:
    folder = f"{library}/lib-dynload"
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [f"{folder}/{name}" for name in names if not name.startswith(_LEFT_OUT_MODULES)]


def _parts(base_python: str) -> _Parts:
    """Ask the interpreter, and its loader, what it consists of.

    SECURITY: a base interpreter, with -I and -S, so that no package of a template runs.
    """
    program, library, loaders = json.loads(_said([base_python, "-I", "-S", "-E", "-c", _ASK]))
    if not loaders:
        raise ValueError("it has no loader: it is linked statically")
    shared: dict[str, str] = {}
    for path in (program, *_extensions(library)):
        for line in _said([loaders[0], "--list", path]).splitlines():
            words = line.split()
            if "/" not in line.partition("=>")[0] and words[2:] and words[2].startswith("/"):
                shared[words[0]] = words[2]
    helper = os.path.join(os.path.dirname(shared.get("libc.so.6", "/")), "libgcc_s.so.1")
    if os.path.exists(helper):  # the C library loads it when a thread is cancelled
        shared.setdefault("libgcc_s.so.1", helper)
    return _Parts(program, library, loaders[0], shared)


def _said(words: list[str]) -> str:
    done = subprocess.run(
        words,
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=_ASK_S,
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        cwd="/",
    )
    return done.stdout.decode()


def _copied(folder: Path, name: str, parts: _Parts) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    made, target = Path(tempfile.mkdtemp(dir=folder, prefix=".python-")), folder / name
    try:
        _copy(made, parts)
        try:
            made.rename(target)
        except OSError:
            if not target.is_dir():
                raise
            remove_tree(str(made))  # another engine has made the same in the meantime
    except BaseException:
        remove_tree(str(made))
        raise
    return target


def _copy(made: Path, parts: _Parts) -> None:
    for name in ("bin", "lib"):
        (made / name).mkdir()
    shutil.copyfile(parts.loader, made / "loader")
    shutil.copyfile(parts.program, made / "bin" / "python")
    (made / "bin" / "python3").write_text(_SCRIPT.format(" ".join(OWN_PYTHON)), encoding="ascii")
    for name, path in parts.shared.items():
        shutil.copyfile(path, made / "lib" / name)
    library = made / "lib" / os.path.basename(parts.library)
    shutil.copytree(parts.library, library, ignore=_left_out, ignore_dangling_symlinks=True)
    for parent, _, names in os.walk(made):  # every sandbox's user reads it
        os.chmod(parent, 0o755)  # noqa: S103
        for name in names:
            os.chmod(f"{parent}/{name}", 0o644)
    for path in ("loader", "bin/python", "bin/python3"):
        (made / path).chmod(0o755)


def _left_out(_folder: str, names: list[str]) -> Iterable[str]:
    return [
        name
        for name in names
        if name in _LEFT_OUT or name.startswith(("config-", *_LEFT_OUT_MODULES))
    ]


def _write(path: Path, text: str) -> None:
    made = path.with_name(f".{path.name}.{os.getpid()}")
    made.write_text(text, encoding="utf-8")
    made.replace(path)

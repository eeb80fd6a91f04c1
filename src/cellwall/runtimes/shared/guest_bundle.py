"""Guest bundle: the code that runs inside, as one content-addressed zip file.

Runtimes call `build_bundle` and start a template's interpreter on the result: the sandbox never
sees cellwall's installation, and an upgrade never changes a running sandbox. It is not a general
packager: it includes cellwall's own packages and modules by name. The file's name is the digest of
its content, so a bundle is never overwritten.
"""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from cellwall.model.errors import HostUnsupported

_ROOT = Path(__file__).resolve().parents[2]
_EPOCH = (1980, 1, 1, 0, 0, 0)
_PACKAGE_MARK = b'"""Part of a guest bundle."""\n'


def build_bundle(state_dir: Path, contents: Iterable[str], entry: str) -> Path:
    """Write (once) the bundle with the packages or modules `contents`; return its path.

    `entry` is `module:function`, called without arguments when an interpreter is started on the
    file. Compiled code of this interpreter's version is added beside the source: a template with
    another version uses the source.
    """
    files = _collect(contents)
    module, _, function = entry.partition(":")
    files["__main__.py"] = f"from {module} import {function}\n\n{function}()\n".encode()
    digest = _digest(files)
    target = state_dir / "guest" / f"{digest}.pyz"
    if target.exists():
        return target
    try:
        _write(target, files)
    except OSError as error:
        raise HostUnsupported(
            "state directory",
            f"write guest bundle {target}: {error.strerror}",
            remedy="make it writable, or name another one with CELLWALL_STATE_DIR",
            errno=error.errno,
        ) from None
    return target


def file_state(path: str) -> str:
    """Return a file's identity; the kernel updates the last of its fields at every change."""
    found = os.stat(path)
    return f"{path} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def _collect(contents: Iterable[str]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for name in contents:
        relative = "/".join(name.split(".")[1:])
        source = f"{_ROOT}/{relative}"
        for path in _files_in(source) if os.path.isdir(source) else [f"{source}.py"]:
            with open(path, "rb") as file:
                files[f"cellwall/{path[len(str(_ROOT)) + 1 :]}"] = file.read()
    for folder in {each for name in files for each in _folders_of(name)}:
        files.setdefault(f"{folder}/__init__.py", _PACKAGE_MARK)
    # cellwall's own __init__ would import modules that the bundle lacks.
    files["cellwall/__init__.py"] = _PACKAGE_MARK
    return files


def _files_in(folder: str) -> Iterator[str]:
    """Yield the paths of the files below a folder, but for bytecode.

    By the calls that take least: a first answer waits for it.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file():
                yield entry.path
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _files_in(entry.path)


def _folders_of(name: str) -> Iterator[str]:
    while name := name.rpartition("/")[0]:
        yield name


def _digest(files: dict[str, bytes]) -> str:
    digest = hashlib.sha256(importlib.util.MAGIC_NUMBER)
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    return digest.hexdigest()[:32]


def _compiled(name: str, source: bytes) -> bytes:
    """Return a PEP 552 .pyc that is never compared with its source: all times are 1980."""
    code = compile(source, name, "exec", dont_inherit=True)
    hash_based_unchecked = (1).to_bytes(4, "little")
    return b"".join(
        (
            importlib.util.MAGIC_NUMBER,
            hash_based_unchecked,
            importlib.util.source_hash(source),
            marshal.dumps(code),
        )
    )


def _write(target: Path, files: dict[str, bytes]) -> None:
    import tempfile  # mostly it is there, and a first answer waits for imports
    import zipfile

    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".bundle-")
    try:
        with os.fdopen(descriptor, "wb") as stream, zipfile.ZipFile(stream, "w") as bundle:
            for name in sorted(files):
                bundle.writestr(zipfile.ZipInfo(name, _EPOCH), files[name])
                if name.endswith(".py"):
                    pyc = zipfile.ZipInfo(name + "c", _EPOCH)
                    bundle.writestr(pyc, _compiled(name, files[name]))
            os.fchmod(stream.fileno(), 0o644)  # a sandbox of another uid reads it
        os.rename(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise

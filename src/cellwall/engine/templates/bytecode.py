"""Bytecode of a template's modules; sandboxes cannot write it because the tree is read-only.

The invariant: the host's base interpreter only parses a package's sources, in processes that hold
none of the engine's rights (`bytecode_worker`); the template's own interpreter, which imports what
packages bring (`.pth` files), is never started. A source that cannot be compiled, or that ends its
compiler, has no bytecode; that costs time in the sandbox and nothing else. A compiler that could
not give up its rights gets no source.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, NamedTuple, cast

from cellwall.engine.templates.base_interpreter import BaseInterpreter
from cellwall.engine.templates.bytecode_worker import HEADER, LENGTH, READY
from cellwall.model.errors import HostUnsupported

_WORKER = str(Path(__file__).with_name("bytecode_worker.py"))
_WORKERS = 8
_CHUNK = 256
"""Number of sources for one worker: few starts, and all CPUs are busy to the end."""
_CHUNK_S = 1200.0
_LARGEST_BYTES = 32 << 20
_LONGEST_WHY = 400


class _Source(NamedTuple):
    folder: str
    name: str


def compile_tree(packages: Path, base: BaseInterpreter) -> int:
    """Compile every module below `packages`; return how many have bytecode now.

    Raises `HostUnsupported`.
    """
    sources = list(_sources(packages))
    chunks = [sources[at : at + _CHUNK] for at in range(0, len(sources), _CHUNK)]
    with ThreadPoolExecutor(min(_WORKERS, len(os.sched_getaffinity(0)))) as threads:
        return sum(threads.map(lambda chunk: _compile(chunk, packages, base), chunks))


def _sources(packages: Path) -> Iterator[_Source]:
    for folder, folders, names in os.walk(packages):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (_Source(folder, name) for name in names if name.endswith(".py"))


def _compile(chunk: list[_Source], packages: Path, base: BaseInterpreter) -> int:
    written = 0
    while chunk:
        questions = b"".join(_question(source, packages) for source in chunk)
        answers = list(_answers(_asked(questions, base)))
        for source, compiled in zip(chunk, answers, strict=False):
            written += bool(compiled) and _is_written(source, base.cache_tag, compiled)
        chunk = chunk[len(answers) + 1 :]  # skip the source that ended its compiler
    return written


def _question(source: _Source, packages: Path) -> bytes:
    """Return one frame for `bytecode_worker`; a non-regular or very large file counts as empty."""
    path = os.path.join(source.folder, source.name)
    name = os.fsencode(os.path.relpath(path, packages))
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        is_usual = stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST_BYTES
        text = file.read() if is_usual else b""
    return HEADER.pack(len(name), len(text), int(status.st_mtime) & 0xFFFFFFFF) + name + text


def _asked(questions: bytes, base: BaseInterpreter) -> bytes:
    """Return a worker's answers.

    SECURITY: the worker gets no source before it has given up its rights.
    """
    with subprocess.Popen(
        [base.executable, "-I", "-S", "-B", _WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
        cwd="/",
    ) as worker:
        try:
            return _conversation(worker, questions)
        finally:
            worker.kill()


def _conversation(worker: subprocess.Popen[bytes], questions: bytes) -> bytes:
    said = cast("IO[bytes]", worker.stdout)  # it is a pipe
    first = said.read(len(READY))
    if first != READY:
        why = (first + said.read(_LONGEST_WHY)).decode("utf-8", "replace")
        raise HostUnsupported(
            "template build",
            f"compile modules: the process that parses them cannot give up its rights: "
            f"{why or 'it has ended'}",
            remedy="build as an ordinary user, or as a root that may set user ids and group ids",
        )
    return worker.communicate(questions, _CHUNK_S)[0]


def _answers(said: bytes) -> Iterator[bytes]:
    """Return the complete frames; an incomplete last one is dropped."""
    at = 0
    while len(said) - at >= LENGTH.size:
        begin = at + LENGTH.size
        at = begin + LENGTH.unpack_from(said, at)[0]
        if at > len(said):
            return
        yield said[begin:at]


def _is_written(source: _Source, cache_tag: str, compiled: bytes) -> bool:
    folder = os.path.join(source.folder, "__pycache__")
    path = os.path.join(folder, f"{source.name[:-3]}.{cache_tag}.pyc")
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # a file that the package brought
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except (NotADirectoryError, IsADirectoryError, PermissionError):
        return False  # the package has something else of that name
    with os.fdopen(descriptor, "wb") as file:
        file.write(compiled)
    return True

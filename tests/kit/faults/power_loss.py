"""What a disk holds after the power fails: a recorded list of writes, played back up to any point.

A program is run under `strace`; from its system calls on one folder a model disk is built that
keeps only what was synced, file by file and name by name, and then whatever subset of the rest it
likes. Harsher than ext4, which writes names in order and often sooner; that is the point.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_CALLS = "openat,pwrite64,write,ftruncate,fsync,fdatasync,rename,unlink,mkdir"
_LINE = re.compile(r"^(\d+) +(\w+)\((.*)\) += (-?\d+)")
_UNFINISHED = re.compile(r"^(\d+) +(.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"^(\d+) +<\.\.\. \w+ resumed>(.*)$")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_HANDLE = re.compile(r"^(?:-?\d+|AT_FDCWD)<((?:\\x[0-9a-f]{2})*)>")


@dataclass(frozen=True, slots=True)
class Call:
    """One system call that succeeded."""

    name: str
    path: str
    """Of its descriptor, or the one it names."""
    data: bytes = b""
    """What is written; the second path of a `rename`."""
    number: int = 0
    """Offset or size."""


def record(arguments: list[str], folder: Path, into: Path) -> list[Call]:
    """Run Python with `arguments`; return its calls that touch `folder`, in order.

    It finds the modules that we find.
    """
    subprocess.run(
        ["strace", "-f", "-y", "-xx", "-s", "10000000", "-o", into, "-e", f"trace={_CALLS}",
         sys.executable, *arguments],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=200,
    )  # fmt: skip
    with into.open() as lines:
        calls = [_call(*match.groups()) for match in map(_LINE.match, _whole(lines)) if match]
    return [call for call in calls if call is not None and call.path.startswith(str(folder))]


def _whole(lines: Iterator[str]) -> Iterator[str]:
    """Join calls that were shown in two parts; they count from when they returned."""
    begun: dict[str, str] = {}
    for raw in lines:
        line = raw.rstrip("\n")
        if unfinished := _UNFINISHED.match(line):
            begun[unfinished[1]] = line.removesuffix(" <unfinished ...>")
        elif resumed := _RESUMED.match(line):
            yield begun.pop(resumed[1]) + resumed[2]
        else:
            yield line


def _call(_pid: str, name: str, arguments: str, result: str) -> Call | None:
    if int(result) < 0:
        return None
    texts = [bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(arguments)]
    found = _HANDLE.match(arguments)
    handle = bytes.fromhex(found[1].replace("\\x", "")).decode() if found else ""
    last = arguments.rsplit(", ", 1)[-1]
    match name:
        case "pwrite64":
            return Call(name, handle, texts[0], int(last))
        case "write":
            return Call(name, handle, texts[0])
        case "ftruncate":
            return Call(name, handle, number=int(last))
        case "fsync" | "fdatasync":
            return Call("fsync", handle)
        case "openat":
            return Call("create", texts[0].decode()) if "O_CREAT" in arguments else None
        case "rename":
            return Call(name, texts[0].decode(), texts[1])
        case _:
            return Call(name, texts[0].decode())


@dataclass(slots=True, eq=False)
class _File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Call] = field(default_factory=list)

    def content(self, kept: list[Call]) -> bytes:
        data = bytearray(self.durable)
        for call in kept:
            _do(data, call)
        return bytes(data)


def _do(data: bytearray, call: Call) -> None:
    if call.name == "ftruncate":
        del data[call.number :]
        data.extend(bytes(call.number - len(data)))
        return
    data.extend(bytes(max(0, call.number - len(data))))
    data[call.number : call.number + len(call.data)] = call.data


class Disk:
    """The model; `play` moves it on, `image` says what a reader finds after a loss of power."""

    def __init__(self) -> None:
        self._durable: dict[str, _File] = {}
        self._names: dict[str, _File] = {}
        self._moves: list[dict[str, _File]] = []
        """Every state of the names since the last sync of their folder."""

    def play(self, call: Call) -> None:
        """Make the call."""
        match call.name:
            case "create" if call.path not in self._names:
                self._move({**self._names, call.path: _File()})
            case "pwrite64" | "ftruncate" if call.path in self._names:
                self._names[call.path].pending.append(call)
            case "rename":
                names = dict(self._names)
                names[call.data.decode()] = names.pop(call.path)
                self._move(names)
            case "unlink":
                self._move({name: f for name, f in self._names.items() if name != call.path})
            case "fsync":
                self._sync(call.path)
            case _:
                pass

    def _move(self, names: dict[str, _File]) -> None:
        self._names = names
        self._moves.append(names)

    def _sync(self, path: str) -> None:
        file = self._names.get(path)
        if file is None:  # a folder; there is only the one
            self._durable, self._moves = self._names, []
            return
        for call in file.pending:
            _do(file.durable, call)
        file.pending.clear()

    def image(self, luck: random.Random | None) -> dict[str, bytes]:
        """Return files by path: with nothing that was not synced, or with some of it."""
        if luck is None:
            return {path: bytes(file.durable) for path, file in self._durable.items()}
        names = luck.choice([self._durable, *self._moves])
        share = luck.random()
        return {
            path: file.content([call for call in file.pending if luck.random() < share])
            for path, file in names.items()
        }

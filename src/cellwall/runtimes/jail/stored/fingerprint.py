"""Fingerprint of a fork-server: what has to be the same for a stored session to go on.

A stored session is memory: it has addresses of code in libraries, and functions bound to one kind
of processor. So all that its sandbox does not load by itself must be what it was: the layout of
memory, and each byte of the pages that are only read. Nothing that a caller's code wrote is read
here: a worker of a fork-server runs none.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from cellwall.model.errors import HostUnsupported, SandboxBroken

_VDSO = "[vdso]"
_LOADER = re.compile(r"/ld(-linux|-musl|64|\.so)[^/]*$")
"""The C library's loader: what it only reads from its start on has times and its guard."""
_CHUNK_BYTES = 1 << 20
_MADE_AGAIN = "make a new snapshot"


class Trait(NamedTuple):
    """What is compared, as a refusal says it."""

    what: str
    remedy: str


TRAITS: Mapping[str, Trait] = {
    "template": Trait("the template is another", "build the template as it was"),
    "guest": Trait(
        "this version of cellwall has another guest", "restore it with the version that made it"
    ),
    "kernel": Trait("the kernel is of another release", "boot the kernel that it was made on"),
    "processor": Trait(
        "the processor has other features", "restore it on a machine with the same processor"
    ),
    "page_size": Trait("memory has pages of another size", "restore it where it was made"),
    "policy": Trait(
        "the filter of system calls is another", "restore it with the version that made it"
    ),
    "layout": Trait(
        "its interpreter and libraries lie elsewhere in memory, or are other files", _MADE_AGAIN
    ),
    "code": Trait("the code of its interpreter, a library or the vdso is another", _MADE_AGAIN),
}


class _Mapped(NamedTuple):
    start: int
    end: int
    rights: str
    path: str
    line: str
    """The line without the device, which is another one after each mount."""


def read(pid: int, facts: Mapping[str, str]) -> dict[str, str]:
    """Return the fingerprint of a fork-server, by one of its workers. Raises HostUnsupported.

    `facts` are those that are not read of the process: `template`, `guest` and `policy`.
    """
    try:
        text = Path(f"/proc/{pid}/maps").read_text("utf-8", "surrogateescape")
        mapped = list(_mapped(text))
        code = _digest_of_code(pid, mapped)
    except OSError as error:
        if error.errno in (errno.ESRCH, errno.ENOENT):
            raise SandboxBroken("snapshot: its fork-server has ended", remedy="try again") from None
        raise HostUnsupported(
            "durable snapshots",
            f"snapshot: the memory of the fork-server cannot be read: {error.strerror}",
            remedy="run cellwall as root, or leave snapshots_dir out",
            errno=error.errno,
        ) from error
    own = (each.line for each in mapped if each.path.startswith(("/", "[v")))
    machine = os.uname()
    return {
        **facts,
        "kernel": f"{machine.sysname} {machine.release} {machine.machine}",
        "processor": _digest(_flags().encode()),
        "page_size": str(os.sysconf("SC_PAGE_SIZE")),
        "layout": _digest("\n".join(own).encode("utf-8", "surrogateescape")),
        "code": code,
    }


def differing(stored: Mapping[str, str], here: Mapping[str, str]) -> list[Trait]:
    """Return what is not the same; a trait that one of them has not is another, too."""
    names = [*TRAITS, *sorted((stored.keys() | here.keys()) - TRAITS.keys())]
    unknown = Trait("it was made by another version of cellwall", _MADE_AGAIN)
    return [
        TRAITS.get(name, unknown)
        for name in names
        if stored.get(name) is None or stored.get(name) != here.get(name)
    ]


def _mapped(text: str) -> Iterator[_Mapped]:
    """Read /proc/PID/maps, proc_pid_maps(5)."""
    for line in text.splitlines():
        place, rights, offset, _device, inode, *path = line.split(None, 5)
        start, _, end = place.partition("-")
        name = "".join(path)
        same = f"{place} {rights} {offset} {inode} {name}"
        yield _Mapped(int(start, 16), int(end, 16), rights, name, same)


def _digest_of_code(pid: int, mapped: list[_Mapped]) -> str:
    """Return the digest of the pages that are only read, in the order of their addresses."""
    digest = hashlib.blake2b(digest_size=16)
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for each in mapped:
            if not _is_code(each):
                continue
            digest.update(f"{each.line}\n".encode("utf-8", "surrogateescape"))
            for position in range(each.start, each.end, _CHUNK_BYTES):
                size = min(_CHUNK_BYTES, each.end - position)
                found = os.pread(memory, size, position)
                if len(found) != size:
                    raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
                digest.update(found)
    finally:
        os.close(memory)
    return digest.hexdigest()


def _is_code(mapped: _Mapped) -> bool:
    """Report whether pages are only read, and of a file or the vdso.

    Not those of no file: workers make machine code of their own when they first need it, which is
    the guest's.
    """
    if mapped.rights[:2] != "r-" or mapped.rights[3] != "p":
        return False
    if not mapped.path.startswith("/") and mapped.path != _VDSO:
        return False
    return not (mapped.rights == "r--p" and _LOADER.search(mapped.path))


def _flags() -> str:
    """Return the features of the first processor, proc_cpuinfo(5)."""
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return " ".join(sorted(value.split()))
    return ""


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()

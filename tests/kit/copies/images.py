"""Images of sessions that are not what a session wrote: mutations of a real one.

Not a test. `mutated` is a pure function of the image and a number. The parts of an image lie behind
one another: pages, the table of extents, records, what they point to, registers, and two counts.
Beside it are the session's files, as a tar.
"""

from __future__ import annotations

import io
import random
import struct
import tarfile
from dataclasses import replace
from typing import Any, NamedTuple

from cellwall.guest.transplant import walker
from cellwall.runtimes.copies import SessionImage

_REGISTERS, _COUNTS = 64, 16
_WORDS = (
    0,
    1,
    2**64 - 1,
    2**63,
    2**47,
    walker.SCRATCH,
    walker.STATE,
    walker.LIST,
    walker.BLOB,
    walker.EXTENTS,
    walker.BASE,
    0xFFFF_FFFF_FF60_0000,
    *(step % 2**64 for step in range(-9, 0)),
)
"""What a word of a list or a table is replaced with, beside any number of a system call."""


class Mutation(NamedTuple):
    """One image, and what was done to it."""

    what: str
    memory: bytes
    image: SessionImage
    archive: bytes | None = None
    """The tar of its files; None: as it was."""


def parts(image: SessionImage) -> dict[str, tuple[int, int]]:
    """Where each part begins and ends."""
    sizes = {
        "pages": image.pages,
        "table": image.table,
        "records": image.records,
        "strings": image.strings,
        "registers": _REGISTERS,
        "counts": _COUNTS,
    }
    found, place = {}, 0
    for name, size in sizes.items():
        found[name] = (place, place + size)
        place += size
    return found


def mutated(memory: bytes, archive: bytes, image: SessionImage, seed: int) -> Mutation:
    """Return the mutation of that number; one of ten is of the files."""
    chosen = random.Random(seed)
    if seed % 10 == 9:
        what, changed = chosen.choice((_flipped, _shortened, _foreign))(archive, chosen)
        return Mutation(f"files: {what}", memory, image, changed)
    kinds = (_bits, _bits, _words, _words, _words, _noise, _extents, _cut, _lie)
    return chosen.choice(kinds)(memory, image, chosen)


def _bits(memory: bytes, image: SessionImage, chosen: random.Random) -> Mutation:
    name, (start, end) = chosen.choice(sorted(parts(image).items()))
    made = bytearray(memory)
    count = chosen.choice((1, 1, 2, 8, 64))
    for _ in range(count):
        made[chosen.randrange(start, end)] ^= 1 << chosen.randrange(8)
    return Mutation(f"{count} bits of {name}", bytes(made), image)


def _words(memory: bytes, image: SessionImage, chosen: random.Random) -> Mutation:
    """Whole words, most of all those of records: other calls, other addresses."""
    name = chosen.choice(("records", "records", "records", "registers", "counts", "table"))
    start, end = parts(image)[name]
    made = bytearray(memory)
    for _ in range(chosen.choice((1, 1, 2, 5))):
        place = start + chosen.randrange((end - start) // 8) * 8
        word = chosen.choice((*_WORDS, chosen.randrange(460), chosen.getrandbits(47)))
        made[place : place + 8] = struct.pack("<Q", word)
    if name == "records" and chosen.random() < 0.3:  # one record is another system call
        place = start + chosen.randrange((end - start) // walker.RECORD_BYTES) * walker.RECORD_BYTES
        made[place : place + 8] = struct.pack("<Q", chosen.randrange(460))
    return Mutation(f"words of {name}", bytes(made), image)


def _noise(memory: bytes, image: SessionImage, chosen: random.Random) -> Mutation:
    name, (start, end) = chosen.choice(sorted(parts(image).items()))
    size = min(end - start, chosen.choice((16, 4096, end - start)))
    place = chosen.randrange(start, end - size + 1)
    made = memory[:place] + chosen.randbytes(size) + memory[place + size :]
    return Mutation(f"{size} random bytes in {name}", made, image)


def _extents(memory: bytes, image: SessionImage, chosen: random.Random) -> Mutation:
    """Extents that lie elsewhere: over the walker itself, its lists, the stack, the kernel's."""
    start, end = parts(image)["table"]
    place = start + chosen.randrange((end - start) // 16) * 16
    where = chosen.choice(_WORDS) + chosen.choice((0, 1, 4096))
    size = chosen.choice((0, 1, 4096, 0x20000, 1 << 30, 2**63, 2**64 - 4096))
    pair = struct.pack("<2Q", where % 2**64, size)
    return Mutation("an extent", memory[:place] + pair + memory[place + 16 :], image)


def _cut(memory: bytes, image: SessionImage, chosen: random.Random) -> Mutation:
    ends = [end for _, end in parts(image).values()]
    size = chosen.choice((0, 1, *ends[:-1], chosen.randrange(len(memory))))
    if chosen.random() < 0.2:
        return Mutation("longer", memory + chosen.randbytes(5000), image)
    return Mutation(f"cut to {size}", memory[:size], image)


def _lie(memory: bytes, image: SessionImage, chosen: random.Random) -> Mutation:
    """Sizes that are not those of the file."""
    name = chosen.choice(("pages", "table", "records", "strings"))
    size = getattr(image, name)
    lie = chosen.choice((0, 1, size + 16, max(0, size - 16), size * 2, 1 << 20, 1 << 40))
    sizes: dict[str, Any] = {name: lie}
    return Mutation(f"{name} is {lie}", memory, replace(image, **sizes))


# -- files -----------------------------------------------------------------------------------------

_NAMES = (
    "../up",
    "../../../../etc/passwd",
    "/etc/passwd",
    "a/../../b",
    "link/x",
    "",
    ".",
    "x" * 300,
)
_TYPES = (
    tarfile.REGTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.CHRTYPE,
    tarfile.BLKTYPE,
    tarfile.FIFOTYPE,
    tarfile.DIRTYPE,
    tarfile.GNUTYPE_SPARSE,
    b"?",
)
_TARGETS = ("/", "/etc/shadow", "../../..", "/proc/1/root", "/dev/shm")


def _flipped(archive: bytes, chosen: random.Random) -> tuple[str, bytes]:
    made = bytearray(archive)
    for _ in range(chosen.choice((1, 4, 64))):
        made[chosen.randrange(len(made))] ^= 1 << chosen.randrange(8)
    return "bits", bytes(made)


def _shortened(archive: bytes, chosen: random.Random) -> tuple[str, bytes]:
    place = chosen.randrange(len(archive))
    return f"cut to {place}, then noise", archive[:place] + chosen.randbytes(
        chosen.choice((0, 700))
    )


def _foreign(_archive: bytes, chosen: random.Random) -> tuple[str, bytes]:
    """Members that no session has: names that lead out, links, devices, sizes that lie."""
    stream = io.BytesIO()
    with tarfile.open(mode="w", fileobj=stream) as tar:
        for _ in range(chosen.randint(1, 6)):
            area = chosen.choice(("0", "1", "2", "3", "4", "-1", "x", ""))
            member = tarfile.TarInfo(f"{area}/{chosen.choice((*_NAMES, 'link'))}")
            member.type = chosen.choice(_TYPES)
            member.linkname = chosen.choice(_TARGETS)
            member.mode = chosen.choice((0o644, 0o6777, 0))
            member.devmajor, member.devminor = 1, chosen.choice((1, 3, 9))
            member.uid = member.gid = chosen.choice((0, 1000, 1 << 20))
            tar.addfile(member)
            stream.write(chosen.randbytes(512 * chosen.choice((0, 1))))
    return "members", stream.getvalue()

"""Texts of submissions in base64 or plain, and the files of a zip.

Pure. A zip comes from outside and is unpacked here, in memory: its entries, their sizes and their
sum are bounded whatever it announces, and names are only checked by the server that writes them.
"""

from __future__ import annotations

import base64
import binascii
import io
import zipfile
import zlib

MOST_FILES = 1000
UNPACKED_BYTES = 32 * 1024 * 1024
_MOST_ENTRIES = 4 * MOST_FILES
"""Files and folders; each entry of an archive costs memory before it is looked at."""
_ENTRY = b"PK\x01\x02"
"""Signature that begins every entry of an archive's directory."""
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""Methods that Python's `zipfile` unpacks in bounded pieces in every version."""
_PIECE_BYTES = 64 * 1024
_LINE = 60


def from_base64(text: str) -> bytes:
    """Return the bytes of base64, ignoring line ends and other characters, as Ruby does."""
    try:
        return base64.b64decode(text, validate=False)
    except (binascii.Error, ValueError):
        raise ValueError("is not base64") from None


def to_base64(text: str) -> str:
    """Return a text in base64 with the line ends that Ruby writes."""
    raw = base64.b64encode(text.encode("utf-8", "surrogatepass")).decode("ascii")
    return "".join(f"{raw[at : at + _LINE]}\n" for at in range(0, len(raw), _LINE))


def unpacked(data: bytes) -> dict[str, bytes]:
    """Return the files of a zip; `ValueError` if it is none, or too large."""
    if data.count(_ENTRY) > _MOST_ENTRIES:
        raise ValueError(f"has more than {_MOST_ENTRIES} entries")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [each for each in archive.infolist() if not each.is_dir()]
            if len(entries) > MOST_FILES:
                raise ValueError(f"has more than {MOST_FILES} files")
            left, found = UNPACKED_BYTES, {}
            for entry in entries:
                found[entry.filename] = content = _content(archive, entry, left)
                left -= len(content)
            return found
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError):
        raise ValueError("is not a zip archive that can be read") from None


def _content(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, most_bytes: int) -> bytes:
    if entry.compress_type not in _METHODS:
        raise ValueError("has files that are packed by another method than deflate")
    found = bytearray()
    with archive.open(entry) as file:
        while piece := file.read(_PIECE_BYTES):
            found += piece
            if len(found) > most_bytes:
                raise ValueError(f"has more than {UNPACKED_BYTES} bytes unpacked")
    return bytes(found)

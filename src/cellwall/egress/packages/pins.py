"""What files of registries without digests had when they first came: one line each, append only.

The invariant: the first line about a file counts for ever; a file that changes under its name is
refused until the operator removes the line.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re

from cellwall.egress.packages.listings.listing import Digest

_LINE = re.compile(rb"^([0-9a-f]{64}) ([0-9a-f]{64})\n", re.MULTILINE)
_OPEN = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class Pins:
    """The lines of one file. Several processes may add to it."""

    def __init__(self, path: str) -> None:
        """Read the file; it is made with the first pin."""
        self._path = path
        self._read_to = 0
        self._found: dict[str, str] = {}

    @staticmethod
    def key(registry_url: str, file_name: str) -> str:
        """Return what stands for a file of a registry."""
        return hashlib.sha256(f"{registry_url}\0{file_name}".encode()).hexdigest()

    def get(self, key: str) -> Digest | None:
        """Return what the file had; None: it never came."""
        if key not in self._found:
            with contextlib.suppress(FileNotFoundError):
                self._read()
        found = self._found.get(key)
        return None if found is None else Digest("sha256", found)

    def put(self, key: str, digest: Digest) -> Digest:
        """Pin a file, durably, if it is not pinned; return what it is pinned to. `OSError`."""
        fd = os.open(self._path, _OPEN, 0o600)
        try:
            # A line that a crash cut short ends here, and is none.
            os.write(fd, f"\n{key} {digest.hex}\n".encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        return self.get(key) or digest

    def _read(self) -> None:
        with open(self._path, "rb") as file:
            file.seek(self._read_to)
            text = file.read()
        for line in _LINE.finditer(text):
            self._found.setdefault(line[1].decode(), line[2].decode())
        # What is not a whole line yet is read again.
        self._read_to += text.rfind(b"\n") + 1

"""Files with a key of a server's: secrets and snapshots are encrypted by one, tokens signed.

The file has 64 hexadecimal digits, and its owner alone may read it. The invariant: a file that
others may read, or that holds no key, is refused with what to do; a key is never in the store.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from cellwall.model.errors import UsageError

_KEY_BYTES = 32
_ONLY_OURS = 0o600


def read(path: Path, of: str, *, may_make: bool = False) -> bytes:
    """Return the key in a file; with `may_make` the file is made if there is none.

    `of`: what is encrypted or signed by it, for messages. Raises `UsageError`.
    """
    try:
        return _read(path, of)
    except FileNotFoundError:
        if not may_make:
            remedy = "make it, or correct the path"
            raise _wrong(path, of, "there is no such file", remedy) from None
    except OSError as error:
        raise _wrong(path, of, error.strerror or "", "correct the path") from None
    _make(path)
    return _read(path, of)


def _make(path: Path) -> None:
    """Make the file whole or not at all; one that another process made meanwhile stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    made = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(made, "xb", opener=lambda name, _: os.open(name, flags, _ONLY_OURS)) as file:
            file.write(secrets.token_hex(_KEY_BYTES).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(made, path)
    finally:
        made.unlink(missing_ok=True)


def _read(path: Path, of: str) -> bytes:
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
            raise _wrong(path, of, "others may read it", f"run: chmod 600 {path}")
        text = file.read(4 * _KEY_BYTES)
    try:
        key = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise _wrong(path, of, "it holds no key", "put 64 hexadecimal digits into it")
    return key


def _wrong(path: Path, of: str, what: str, remedy: str) -> UsageError:
    return UsageError(f"{of}: the key in {path}: {what}", remedy=remedy)

"""Bytecode worker: compile unreviewed Python sources, received and returned through pipes.

Started by `bytecode`, which chooses the sources, with the base interpreter of the host under
-I -S -B. Standard library only, Python 3.8 and later. The invariant: a source is parsed here, never
run, by a process that has the id of the account `nobody` if it was root, and can open nothing:
no file, no socket, no pipe. A process that cannot give up its rights ends before the first source.

    out  READY, or the reason why it is not ready
    in   length of the name, length of the source, time of change, each four bytes; name; source
    out  length of the bytecode, four bytes, 0 if it is no Python of this version; bytecode
"""

from __future__ import annotations

import codecs
import errno
import importlib._bootstrap_external as bytecode_format
import os
import resource
import struct
import sys
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import List, Tuple

HEADER = struct.Struct("!III")
LENGTH = struct.Struct("!I")
READY = b"ready\n"

_NOBODY = 65534
_MEMORY_BYTES = 4 << 30
_CPU_S = 900
"""CPU seconds for all sources of one worker; the largest templates take a tenth."""
_ENCODINGS = (
    *("ascii", "latin-1", "iso8859-2", "iso8859-15", "cp1251", "cp1252", "utf-8-sig"),
    *("koi8-r", "gbk", "gb2312", "big5", "euc-jp", "shift_jis", "euc-kr"),
)
"""Encodings that sources declare; looked up before the process loses the right to open files."""


def main() -> None:
    """Compile the sources of standard input, in their order, until its end."""
    for name in _ENCODINGS:
        codecs.lookup(name)
    warnings.simplefilter("ignore")
    given, made = sys.stdin.buffer, sys.stdout.buffer
    try:
        _starve()
    except OSError as error:
        made.write(str(error).encode())
        return
    made.write(READY)
    made.flush()
    while header := given.read(HEADER.size):
        name_bytes, source_bytes, changed = HEADER.unpack(header)
        name = given.read(name_bytes).decode("utf-8", "surrogateescape")
        compiled = _compiled(given.read(source_bytes), name, changed)
        made.write(LENGTH.pack(len(compiled)) + compiled)
        made.flush()


def _starve() -> None:
    """Give up all rights.

    SECURITY: a source that takes over the parser gains nothing.
    """
    if os.geteuid() == 0:
        _become_nobody()
    for which, most in (
        (resource.RLIMIT_NOFILE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_CPU, _CPU_S),
    ):
        hard = resource.getrlimit(which)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (least, least))


def _become_nobody() -> None:
    """Take the id of the account `nobody`. Raises OSError.

    A user namespace with a single id, made by an ordinary user, has no such account: its root is
    that user, outside of it as well, and stays so.
    """
    uids, gids = _extents("uid"), _extents("gid")
    if len(uids) == 1 and uids[0][1] != 0 and uids[0][2] == 1:
        return
    uid, gid = _last(uids), _last(gids)
    if not uid or not gid:
        raise OSError(errno.EPERM, "take the id of nobody: root is the only id of this namespace")
    try:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    except OSError as error:
        raise OSError(error.errno, f"take the id of nobody: {error.strerror}") from None


def _extents(kind: str) -> List[Tuple[int, ...]]:
    """Return this user namespace's extents: first id, id outside, count; user_namespaces(7)."""
    with open(f"/proc/self/{kind}_map", encoding="ascii") as lines:
        return [tuple(int(word) for word in line.split()) for line in lines]


def _last(extents: List[Tuple[int, ...]]) -> int:
    """Return the id of the account `nobody`, or the last id of a namespace that has fewer."""
    return min(_NOBODY, max(first + count - 1 for first, _, count in extents))


def _compiled(source: bytes, name: str, changed: int) -> bytes:
    try:
        code = compile(source, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError, OSError):
        return b""
    as_file: Callable[[CodeType, int, int], bytes] = vars(bytecode_format)["_code_to_timestamp_pyc"]
    return bytes(as_file(code, changed, len(source)))


if __name__ == "__main__":
    main()

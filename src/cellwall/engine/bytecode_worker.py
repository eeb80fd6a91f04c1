"""Compiles unreviewed Python sources, given and given back through pipes.

Not which sources (`bytecode`, which starts it with the base interpreter of the host under -I -S
-B). Standard library only, Python 3.8 and later. The invariant: a source is parsed here, never
run, by a process that is nobody, where it may become that, and can open nothing: no file, no
socket, no pipe.

    in   length of the name, length of the source, time of change, each four bytes; name; source
    out  length of the bytecode, four bytes, 0 where it is no Python of this version; bytecode
"""

from __future__ import annotations

import codecs
import contextlib
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

HEADER = struct.Struct("!III")
LENGTH = struct.Struct("!I")

_NOBODY = 65534
_MEMORY_BYTES = 4 << 30
_CPU_S = 900
"""For all sources of one worker; the largest templates take a tenth."""
_ENCODINGS = (
    *("ascii", "latin-1", "iso8859-2", "iso8859-15", "cp1251", "cp1252", "utf-8-sig"),
    *("koi8-r", "gbk", "gb2312", "big5", "euc-jp", "shift_jis", "euc-kr"),
)
"""What sources declare; looked up before nothing can be opened any more."""


def main() -> None:
    """Compile what comes in, in its order, to the end of it."""
    for name in _ENCODINGS:
        codecs.lookup(name)
    warnings.simplefilter("ignore")
    _starve()
    given, made = sys.stdin.buffer, sys.stdout.buffer
    while header := given.read(HEADER.size):
        name_bytes, source_bytes, changed = HEADER.unpack(header)
        name = given.read(name_bytes).decode("utf-8", "surrogateescape")
        compiled = _compiled(given.read(source_bytes), name, changed)
        made.write(LENGTH.pack(len(compiled)) + compiled)
        made.flush()


def _starve() -> None:
    """SECURITY: a source that makes the parser do its bidding finds nothing to do it with."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):  # a root that may not become another may do little else
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    for which, most in (
        (resource.RLIMIT_NOFILE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_CPU, _CPU_S),
    ):
        resource.setrlimit(which, (most, most))


def _compiled(source: bytes, name: str, changed: int) -> bytes:
    try:
        code = compile(source, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError, OSError):
        return b""
    as_file: Callable[[CodeType, int, int], bytes] = vars(bytecode_format)["_code_to_timestamp_pyc"]
    return bytes(as_file(code, changed, len(source)))


if __name__ == "__main__":
    main()

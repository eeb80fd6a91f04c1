"""The boot id that the next sandbox of this process shows as its own.

A worker draws it before each clone; `plan` has the step that writes it to a file. The host's own
would tell sandboxes of two tenants that they share a machine. SECURITY: so would an earlier one
that is found in memory: it is drawn into one place and is never an object that could be freed
(`clone_request`).
"""

from __future__ import annotations

import ctypes

from cellwall.linux.syscalls import process
from cellwall.linux.syscalls.libc import do_all

_NOTHING = b"00000000-0000-0000-0000-000000000000\n"
_HEX = tuple(b"%02x" % value for value in range(256))
_PLACES = tuple(
    slice(start, start + 2) for start in (0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34)
)
_text = bytearray(_NOTHING)
_random = bytearray(len(_PLACES))
TEXT = (ctypes.c_char * len(_text)).from_buffer(_text)
"""Its text as /proc/sys/kernel/random/boot_id shows it; random(4)."""
_draw = (process.prepare_random((ctypes.c_ubyte * len(_random)).from_buffer(_random)),)


def draw() -> None:
    """Draw the next one: a random UUID of version 4 (RFC 9562). Raises SyscallError."""
    do_all(_draw)
    _random[6] = _random[6] & 0x0F | 0x40
    _random[8] = _random[8] & 0x3F | 0x80
    for place, value in zip(_PLACES, _random):
        _text[place] = _HEX[value]


def forget() -> None:
    """Forget it in a sandbox that has it in its file, so that fresh sessions stay alike."""
    _random[:] = bytes(len(_random))
    _text[:] = _NOTHING

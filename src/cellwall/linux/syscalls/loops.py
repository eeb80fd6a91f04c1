"""Loop devices: an open file becomes a block device for as long as it is in use. loop(4).

Standard library. The invariant: the device holds the very open file that it was given, so a lock
on that file (flock(2)) is held until the kernel has let go of the device; and the device frees
itself (`LO_FLAGS_AUTOCLEAR`) when nothing uses it, also after the end of the process that made it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

_CONTROL = "/dev/loop-control"
_GET_FREE = 0x4C82
_CONFIGURE = 0x4C0A
_AUTOCLEAR, _DIRECT_IO = 4, 16
_BLOCK_BYTES = 4096
_INFO = struct.Struct("=5Q4I64s64s32s2Q")
_CONFIG = struct.Struct(f"=2I{_INFO.size}s8Q")
_TRIES = 64
_LABEL = b"cellwall"


def attach(file: int) -> tuple[int, str]:
    """Make a loop device of an open file; return a descriptor of it, and its path.

    The device ends with its last use: the descriptor, or a mount of it. Raises OSError: ENOENT
    or ENXIO without loop devices here, ENOSPC or EBUSY if none is free.
    """
    control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_TRIES):
            path = f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}"
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                _configure(device, file)
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:  # another process was faster
                    raise
            else:
                return device, path
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "every loop device is taken")


def _configure(device: int, file: int) -> None:
    """Bind the device to the file; without a second copy in memory where the host allows that."""
    try:
        _bind(device, file, _BLOCK_BYTES, _AUTOCLEAR | _DIRECT_IO)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        _bind(device, file, 0, _AUTOCLEAR)


def _bind(device: int, file: int, block_bytes: int, flags: int) -> None:
    info = _INFO.pack(0, 0, 0, 0, 0, 0, 0, 0, flags, _LABEL, b"", b"", 0, 0)
    fcntl.ioctl(device, _CONFIGURE, _CONFIG.pack(file, block_bytes, info, *[0] * 8))

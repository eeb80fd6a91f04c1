"""The first process inside a gVisor sandbox: from `runsc`'s descriptors to a guest that serves.

Runs in the template's interpreter out of the guest bundle, standard library only, Python 3.8 and
later. It is confined already: `runsc` gave it its user, its limits and no capability. It reads
one configuration from the channel, warms the interpreter up and becomes init.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import struct
import sys
from typing import Any

_LENGTH = struct.Struct(">I")
_STDIO = (0, 1, 2)


def main() -> None:
    """Own descriptor 0, the channel; what is said on 2 until the guest serves, the host reads."""
    channel = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    config = _read_config(channel)
    import site

    site.main()  # `-S` kept the template's .pth files from running before this point
    from cellwall.guest import init

    if config["warm"]:
        _warm(config)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in _STDIO:
        os.dup2(null, fd)
    os.close(null)
    init.main(channel, config["guest"])


def _read_config(channel: int) -> dict[str, Any]:
    """Read the one message that comes before the frames: a length and a JSON object."""
    (size,) = _LENGTH.unpack(_read(channel, _LENGTH.size))
    config: dict[str, Any] = json.loads(_read(channel, size))
    return config


def _read(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(fd, size - len(data))
        if not piece:
            sys.exit("boot: the host is gone")
        data += piece
    return data


def _warm(config: dict[str, Any]) -> None:
    """Import what the template names, so that its contexts are forks of a warm interpreter."""
    from cellwall.guest import preload, reseed

    environment, added = config["guest"]["env"], config["preload_environment"]
    preload.warm(list(config["preload"]), environment, added, is_rehearsed=False)
    if config["guest"]["purpose"] == "session":
        preload.warm_sessions(is_rehearsed=False)
    reseed.collect()
    gc.collect()
    gc.freeze()

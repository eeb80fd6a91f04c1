"""Boot: the first process inside a gVisor sandbox, from `runsc`'s descriptors to a serving guest.

Runs in the template's interpreter out of the guest image, standard library only, Python 3.8 and
later. It is already confined: `runsc` gave it its user, its limits and no capability. It reads one
configuration from the channel and becomes init: with a warm interpreter if the sandbox is to be
parked, at once if a caller waits for its first program.
"""

from __future__ import annotations

import fcntl
import os
import sys

from cellwall.guest.channel.frames import parse_header

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LENGTH_BYTES = 4


def main() -> None:
    """Run the boot: descriptor 0 is the channel; descriptor 2 is for errors until it serves.

    With the argument `context` the process is a context on an image's root, see `context_exec`.
    """
    if sys.argv[1:2] == ["context"]:
        from cellwall.guest.init import context_exec

        context_exec.begin(sys.argv[2:])
    channel = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    config = _read_config(channel)
    if os.access(os.path.dirname(config["placeholder"]), os.W_OK):  # an image's user need not be
        os.rmdir(config["placeholder"])
    guest, handoff = config["guest"], None
    from cellwall.guest.warm import fast_start

    if config["is_awaited"] and fast_start.may_serve(guest):
        _let_go_of(0, 1)  # the host reads descriptor 2 when a start has failed
        handoff = fast_start.begin(channel, guest)
        fast_start.go_on()
        _let_go_of(2)
    else:
        import gc
        import site

        gc.enable()  # `module_finder` stopped it
        site.main()  # `-S` kept the template's .pth files from running before this point
        if config["warm"]:
            _warm(config)
        _let_go_of(0, 1, 2)
    from cellwall.guest.init import main as init

    init.main(channel, guest, handoff=handoff)


def _let_go_of(*descriptors: int) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for fd in descriptors:
        os.dup2(null, fd)
    os.close(null)


def _read_config(channel: int) -> dict[str, Any]:
    """Read the one message that precedes the frames: a length and a JSON object."""
    size = int.from_bytes(_read(channel, _LENGTH_BYTES), "big")
    return parse_header(_read(channel, size))


def _read(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(fd, size - len(data))
        if not piece:
            sys.exit("boot: the host is gone")
        data += piece
    return data


def _warm(config: dict[str, Any]) -> None:
    """Import the template's preload modules, so that contexts are forks of a warm interpreter."""
    import gc

    from cellwall.guest.process import reseed
    from cellwall.guest.warm import preload

    environment, added = config["guest"]["env"], config["preload_environment"]
    preload.warm(list(config["preload"]), environment, added, is_rehearsed=False)
    if config["guest"]["purpose"] == "session":
        preload.warm_sessions(is_rehearsed=False)
    reseed.collect()
    gc.collect()
    gc.freeze()

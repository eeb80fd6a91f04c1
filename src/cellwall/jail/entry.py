"""Where an interpreter started on the guest bundle begins: `boot`, `forkserver` or `init`.

Not a command line: `supervisor`, `boot` and `inside` pass descriptors as arguments.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Hand over to the stage named by the first argument; none of them returns."""
    stage, arguments = sys.argv[1], sys.argv[2:]
    if stage == "boot":
        from cellwall.jail import boot

        boot.main(arguments)
    elif stage == "forkserver":
        from cellwall.jail.linux import memory

        # First of all: what is imported next, and what every fork touches, lies together.
        arenas = memory.Arenas(int(arguments.pop(0)))
        from cellwall.jail import forkserver

        forkserver.main(arguments, arenas)
    else:
        from cellwall.guest import init
        from cellwall.jail.boot import read_config

        init.main(int(arguments[0]), read_config(int(arguments[1])))

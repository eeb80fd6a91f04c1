"""Entry point of an interpreter started on the guest bundle: `boot`, `forkserver`, `init`, …

It is not a command line: `fork_server`, `boot` and `sandbox_init` pass descriptors as arguments.
"""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    """Run the stage named by the first argument; none of them returns."""
    stage, arguments = sys.argv[1], sys.argv[2:]
    if stage == "idmapper":
        from cellwall.jail.processes import idmapper

        idmapper.main(arguments)
    elif stage == "unpack":
        importlib.import_module("cellwall.jail.unpack.process").main(arguments)
    elif stage == "session_keeper":
        importlib.import_module("cellwall.jail.processes.session_keeper").main(arguments)
    elif stage == "boot":
        from cellwall.jail.processes import boot

        boot.main(arguments)
    elif stage == "forkserver":
        from cellwall.jail.fast import heap_layout

        # Before all other imports, so that what is imported next, and every fork touches, lies
        # together.
        arenas = heap_layout.ArenaReservation(int(arguments.pop(0)))
        from cellwall.jail.processes import forkserver

        forkserver.main(arguments, arenas)
    elif stage == "context":
        importlib.import_module("cellwall.guest.init.context_exec").begin(arguments)
    else:
        from cellwall.guest.init import main as init
        from cellwall.jail.processes.boot import read_config

        init.main(int(arguments[0]), read_config(int(arguments[1])))

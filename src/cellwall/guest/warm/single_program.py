"""A context with no init of ours beside it: a copy of the fork-server's worker, locked down.

Called by `jail.fast.single_program` with all descriptors in place: nothing, two pipes, and the
channel. It does what `context_spawn` does in a context that init has forked, and the host what init
does for one.
"""

from __future__ import annotations

import gc
import os

from cellwall.guest.channel.init_link import Link
from cellwall.guest.context import main as context
from cellwall.guest.init import context_spawn
from cellwall.guest.process import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


def main(address: str, line: int, config: dict[str, Any], told: dict[str, str] | None) -> NoReturn:
    """Serve one program.

    `line` is its first line to the host, which it calls at `address` later; `told` an environment
    that is not the worker's.
    """
    processes.reset_signals()
    # The worker's objects hold numbers that will be reused: none of them may be finalised.
    gc.freeze()
    if told is not None:
        context_spawn.change_environment(dict(os.environ), told)
    context.main(Link(address, line), config)

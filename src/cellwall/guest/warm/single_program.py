"""A context with no init of cellwall beside it: a locked-down copy of the fork-server's worker.

Called by `jail.fast.single_program` with all descriptors in place: /dev/null, two pipes, and the
channel. It does what `context_spawn` does in a context that init has forked; the host does what
init would do.
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

    `line` is the first connection to the host, which the context later calls at `address`; `told`
    is an environment that differs from the worker's.
    """
    processes.reset_signals()
    # The worker's objects hold descriptor numbers that will be reused, so none may be finalised.
    gc.freeze()
    if told is not None:
        context_spawn.change_environment(dict(os.environ), told)
    context.main(Link(address, line), config)

"""What is promised to a sandbox: held while it has processes, and given back at its end.

A hibernated one has none; it gets its part of the machine and of its tenant's quota again before it
goes on, or stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.engine.scheduling.fair_queue import Promise
    from cellwall.engine.scheduling.host_headroom import HostHeadroom


def bind(promise: Promise, sandbox: AsyncSandbox, headroom: HostHeadroom) -> None:
    """Bind a promise to a sandbox's processes."""

    def take_again() -> None:
        headroom.check()
        promise.take_again()

    sandbox.hibernation.on_down = promise.give_back
    sandbox.hibernation.before_back = take_again
    sandbox.on_ended(lambda _reason: promise.release())

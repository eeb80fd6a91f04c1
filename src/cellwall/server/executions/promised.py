"""What is promised to a sandbox: held while it has processes, and given back at its end.

A hibernated one has none; it gets its part of the machine and of its tenant's quota again before it
goes on, or stays as it is.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cellwall.engine.scheduling.admission import Cost
from cellwall.server.schemas.decode import check_allowed

if TYPE_CHECKING:
    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.engine.scheduling.fair_queue import Promise
    from cellwall.engine.scheduling.host_headroom import HostHeadroom
    from cellwall.server.state import State


def bind(promise: Promise, sandbox: AsyncSandbox, headroom: HostHeadroom) -> None:
    """Bind a promise to a sandbox's processes."""

    def take_again() -> None:
        headroom.check()
        promise.take_again()

    sandbox.hibernation.on_down = promise.give_back
    sandbox.hibernation.room = promise.room
    sandbox.hibernation.before_back = take_again
    sandbox.on_ended(lambda _reason: promise.release())


def bind_sleeping(state: State, sandbox: AsyncSandbox, tenant: str) -> None:
    """Bind a promise to a hibernated sandbox of an earlier server: it holds nothing yet.

    What the operator allows now is checked before it comes back.
    """
    promise = state.queue.expect(tenant, Cost.of(sandbox.limits))
    bind(promise, sandbox, state.headroom)
    take_again, defaults = sandbox.hibernation.before_back, state.engine.settings.limits

    def take_as_allowed() -> None:
        check_allowed(sandbox.limits, defaults, state.settings.most)
        take_again()

    sandbox.hibernation.before_back = take_as_allowed
    sandbox.hibernation.floor = partial(state.queue.tenants.floor, tenant)

"""Fleet: sandboxes on every machine of a cluster, for asyncio programs.

The public face; `blocking` is the synchronous one. It joins a cluster of Ray's and has one node on
each machine that can run sandboxes. It is for one trust domain: who may call the cluster may do
anything on it, so tenants need servers instead. The invariant: each program begins at most once,
unless its caller has said `on_lost="retry"`, and each ends with an execution or with an error.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from copy import copy
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from cellwall.fleet.driver.dispatcher import Dispatcher
from cellwall.fleet.driver.mapping import Many, Programs
from cellwall.fleet.driver.member import Callbacks, Member
from cellwall.fleet.driver.results import FleetExecution, Mapped, NodeFacts, executed
from cellwall.fleet.driver.sandbox import FleetSandbox
from cellwall.fleet.driver.ticket import ALONE_S, AMONG_MANY_S, OnLost, Ticket
from cellwall.fleet.wire import items
from cellwall.fleet.wire.failures import raised
from cellwall.model.errors import (
    CapacityError,
    CellwallError,
    Conflict,
    HostUnsupported,
    NodeLost,
    UsageError,
)
from cellwall.model.ids import new_id, new_node
from cellwall.surface.shared.closing import Opening
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from cellwall.fleet.driver.blocking import BlockingFleet
    from cellwall.fleet.driver.cluster import Cluster, Machine
    from cellwall.fleet.wire.items import Json

_LOOK_S = 5.0
"""Seconds between two looks for machines that have come."""
_HEAD_S = 2.0
"""Seconds between two looks for the head of the cluster."""
FENCE_S = 10.0


class Fleet:
    """The nodes of one cluster; see the module."""

    def __init__(self, cluster: Cluster, wishes: Json) -> None:
        """Called by `connect`."""
        self._cluster = cluster
        self._wishes = wishes
        self._tasks = Tasks()
        self._changed = asyncio.Event()
        self._dispatcher = Dispatcher(self._changed.set)
        self._machines: dict[str, Member] = {}
        """The latest node of each machine, by the machine's id."""
        self._ended: CellwallError | None = None

    @staticmethod
    def connect(
        address: str | None = None,
        *,
        trusted: bool = False,
        templates: Sequence[str] = ("python",),
        resource: str | None = None,
        at_once: int | None = None,
        fence_s: float = FENCE_S,
    ) -> Opening[Fleet]:
        """Join a cluster of Ray's: `async with Fleet.connect() as fleet`, or `await` it.

        `address`: of the cluster's head, as `ray.init` takes it; None is the cluster that this
        process is in already, or the one of this machine. `trusted`: join a cluster without token
        authentication, where every process that reaches it may run code on every machine.
        `templates` are ready on each node before it gets work. `resource`: only machines with that
        resource of Ray's have a node. `at_once`: number of programs that a node runs together, by
        default two for each of its CPUs. `fence_s`: seconds without its driver after which a node
        ends its sandboxes and itself.

        Raises HostUnsupported if Ray is not installed, there is no cluster, it has no token
        authentication, or no machine of it can run sandboxes; UsageError.
        """
        if fence_s < 2 or (at_once is not None and at_once < 1):
            raise UsageError(
                "fleet: fence_s is at least 2 seconds, at_once at least 1 program",
                remedy="leave them out for 10 seconds, and two programs for each CPU",
            )
        wishes = {
            "version": version("cellwall"),
            "templates": list(templates),
            "at_once": at_once,
            "fence_s": fence_s,
        }
        return Opening(partial(_connected, address, resource, wishes, trusted=trusted))

    @staticmethod
    def blocking(address: str | None = None, **options: Any) -> BlockingFleet:  # noqa: ANN401 - of connect
        """Join a cluster for a program without an event loop; options as in `connect`."""
        from cellwall.fleet.driver.blocking import BlockingFleet

        return BlockingFleet(address, options)

    # -- programs --------------------------------------------------------------------------

    async def arun(
        self,
        code: str,
        *,
        on_lost: OnLost = "report",
        **options: Any,  # noqa: ANN401 - of items.program
    ) -> FleetExecution:
        """Run `code` once in a fresh sandbox on one of the nodes and return the execution.

        Options are those of `cellwall.arun`, except callbacks, tools, secrets and volumes, which
        stay on their machine. Raises NodeLost if the node was lost and the program may have begun,
        unless `on_lost` is "retry"; CapacityError if no node has taken it; and what `arun` raises.
        """
        ticket = self._submit(code, on_lost, options)
        return executed(*await self._result(ticket))

    def map(
        self,
        programs: Programs,
        *,
        on_lost: OnLost = "report",
        **options: Any,  # noqa: ANN401 - of items.program
    ) -> AsyncGenerator[Mapped, None]:
        """Run many programs; yield what became of each, in the order in which they end.

        `programs`: texts, or mappings with `code` and other arguments of `arun`, of any number;
        they are taken as there is room. `options` hold for all of them. One that fails is a result
        with an `error`, and ends nothing.
        """
        _check_on_lost(on_lost)
        bound = max(2 * self._dispatcher.places, 64)

        def submit(code: str, **each: Any) -> Ticket:  # noqa: ANN401 - of items.program
            return self._submit(code, on_lost, each, AMONG_MANY_S)

        return Many(options, bound, submit, self._dispatcher.withdraw).run(programs)

    def _submit(
        self,
        code: str,
        on_lost: OnLost,
        options: Mapping[str, Any],
        linger_s: float = ALONE_S,
    ) -> Ticket:
        _check_on_lost(on_lost)
        self._check_open()
        ticket_id = new_id()
        item = items.item(ticket_id, "program", items.program(code, **options))
        ticket = Ticket(ticket_id, item, may_move=True, on_lost=on_lost, linger_s=linger_s)
        self._dispatcher.submit(ticket)
        return ticket

    async def _result(self, ticket: Ticket) -> tuple[str, Json]:
        try:
            return await ticket.done
        except asyncio.CancelledError:
            self._dispatcher.withdraw(ticket)
            raise

    # -- sandboxes -------------------------------------------------------------------------

    def sandbox(self, template: str = "python", **options: Any) -> Opening[FleetSandbox]:  # noqa: ANN401 - of items.sandbox
        """Create a sandbox on one of the nodes: `async with fleet.sandbox() as sandbox`.

        Options are those of `AsyncSandbox.create`, except tools, secrets and volumes. It lives on
        that node until it is closed or its time is up; if the node is lost, its calls raise
        NodeLost.
        """
        return Opening(partial(self._open_sandbox, {"template": template, **options}))

    async def _open_sandbox(self, options: Mapping[str, Any]) -> FleetSandbox:
        self._check_open()
        member = self._calmest()
        call = partial(self._call, member)
        node, result = await call("open", items.sandbox(**options))
        if "failure" in result:
            raise raised(result["failure"], node)
        facts = result["value"]
        member.sandboxes.add(facts["id"])
        ended = partial(member.sandboxes.discard, facts["id"])
        return FleetSandbox(node, facts, partial(call, sandbox_id=facts["id"]), ended)

    def _calmest(self) -> Member:
        """Return the node with the fewest sandboxes for its size, and then the least load."""
        ready = [each for each in self._dispatcher.members.values() if each.state == "ready"]
        if not ready:
            raise CapacityError(
                "fleet: no node is ready",
                retry_after_s=1.0,
                remedy="look at fleet.nodes(), which says why",
            )

        def order(each: Member) -> tuple[float, bool]:
            room = each.room
            return (len(each.sandboxes) + room.load) / room.at_once, not each.is_near

        return min(ready, key=order)

    async def _call(
        self, member: Member, op: str, body: Mapping[str, Any], sandbox_id: str = ""
    ) -> tuple[str, Json]:
        self._check_open()
        ticket_id = new_id()
        item = items.item(ticket_id, op, body, sandbox_id)
        ticket = Ticket(ticket_id, item, may_move=False)
        member.give(ticket)
        try:
            return await ticket.done
        except asyncio.CancelledError:
            member.courier.forget(ticket)
            raise

    # -- nodes -----------------------------------------------------------------------------

    def nodes(self) -> list[NodeFacts]:
        """Return the nodes, the oldest first, with those that were lost."""
        return [
            NodeFacts(
                name=each.name,
                address=each.where,
                state=each.state,
                cpus=each.cpus,
                running=each.running if each.state == "ready" else 0,
                given=each.courier.load,
                sandboxes=len(each.sandboxes),
                why="" if each.error is None else each.error.message,
            )
            for each in self._dispatcher.members.values()
        ]

    async def start(self) -> None:
        """Start a node on each machine; return once one is ready and every other has answered."""
        await self._look()
        await self._wait_opened()
        members = [*self._dispatcher.members.values()]
        if not any(each.state == "ready" for each in members):
            raise _no_node(members)
        self._tasks.spawn(self._look_on())
        self._tasks.spawn(self._watch_head())

    async def _wait_opened(self) -> None:
        while any(each.state == "opening" for each in self._dispatcher.members.values()):
            self._changed.clear()
            await self._changed.wait()

    async def _look(self) -> None:
        """Start a node on each machine that has none."""
        for machine in await self._cluster.machines():
            latest = self._machines.get(machine.id)
            if self._ended is None and (latest is None or latest.state == "lost"):
                self._begin(machine)

    def _begin(self, machine: Machine) -> None:
        tell = Callbacks(self._dispatcher.changed, self._dispatcher.again)
        name = self._new_name()
        link = self._cluster.link(machine)
        member = Member(name, machine.address, link, self._tasks, tell)
        member.is_near = machine.is_near
        self._dispatcher.members[name] = self._machines[machine.id] = member
        self._tasks.spawn(member.open({**self._wishes, "needs_token": self._cluster.has_token}))

    def _new_name(self) -> str:
        while (name := new_node()) in self._dispatcher.members:
            pass
        return name

    async def _look_on(self) -> None:
        while self._ended is None:
            await asyncio.sleep(_LOOK_S)
            await self._look()

    async def _watch_head(self) -> None:
        """End the fleet if the head of the cluster is gone, before Ray ends this process."""
        silent_s = 0.0
        while silent_s < self._wishes["fence_s"]:
            await asyncio.sleep(_HEAD_S)
            silent_s = 0.0 if await self._cluster.head_answers() else silent_s + _HEAD_S
        error = NodeLost(
            "fleet: the head of the cluster does not answer any longer; every node has ended",
            remedy="start the cluster anew and connect to it",
        )
        await self._end(error, has_head=False)
        await self._cluster.leave()

    # -- life ------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._ended is not None:
            raise copy(self._ended)

    async def _end(self, error: CellwallError, *, has_head: bool = True) -> None:
        """Have every node end; what is under way ends with `error`."""
        if self._ended is not None:
            return
        self._ended = error
        self._dispatcher.end(error)
        members = self._dispatcher.members.values()
        await asyncio.gather(*(each.close(error, has_head=has_head) for each in members))

    async def close(self) -> None:
        """End every node with its sandboxes, and leave the cluster. Idempotent."""
        await self._end(Conflict("fleet: it was closed", remedy="connect again"))
        await self._tasks.cancel()
        await self._cluster.leave()

    async def aclose(self) -> None:
        """Do what `close` does; by this name the house closes what lives on a loop."""
        await self.close()


async def _connected(
    address: str | None, resource: str | None, wishes: Json, *, trusted: bool
) -> Fleet:
    from cellwall.fleet.driver.cluster import Cluster

    cluster = await Cluster.join(address, resource, trusted=trusted)
    fleet = Fleet(cluster, wishes)
    try:
        await fleet.start()
    except BaseException:
        with contextlib.suppress(CellwallError):
            await fleet.close()
        raise
    return fleet


def _check_on_lost(on_lost: str) -> None:
    if on_lost not in ("report", "retry"):
        raise UsageError(
            f"on_lost: {on_lost!r} is no choice",
            remedy="say 'report' (the default), or 'retry' if it may run twice",
        )


def _no_node(members: Sequence[Member]) -> CellwallError:
    for each in members:
        if each.error is not None:
            return each.error
    return HostUnsupported(
        "node",
        "fleet: the cluster has no machine for a node",
        remedy="start Ray there: `ray start --address=HEAD`, with the resource that was asked for",
    )

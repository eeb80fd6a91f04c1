"""Cluster: the one module that knows Ray; machines, actors, and what Ray's errors prove.

Ray places and starts processes, and carries bytes. It neither restarts nor repeats anything here,
and its word on a death counts only where its own agent beside the process gives it. The invariant:
only bytes of JSON come back from a node.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from cellwall.fleet.driver.link import NoAnswer, NodeGone
from cellwall.fleet.node import ledger
from cellwall.fleet.node.actor import NodeActor
from cellwall.model.errors import HostUnsupported, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")
_HEAD_S = 2.0
_PINGS = "pings"
_ASK_S = 10.0
"""Seconds for what Ray asks the head; without a head it would ask for a minute."""
_PROBE_S = 30.0
_LEAVE_S = 5.0
_INSTALL = "run: pip install 'cellwall[ray]'"
_HOW = (
    "start every `ray start`, and this program, with RAY_AUTH_MODE=token and one token in "
    "RAY_AUTH_TOKEN_PATH; or say trusted=True if nothing else reaches the cluster's ports"
)
_PROBE = """
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1]).check_alive([], timeout=10)
"""
"""Asks the head something, without a token."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine of the cluster that is there, as Ray says."""

    id: str
    address: str
    is_near: bool
    """Whether it is the one that this process is on."""


class Cluster:
    """A cluster that this process has joined."""

    def __init__(self, resource: str | None, *, is_ours: bool, has_token: bool) -> None:
        """Called by `join`. `is_ours`: the connection was made here, and ends with `leave`."""
        import ray

        context = ray.get_runtime_context()
        self._resource = resource
        self._is_ours = is_ours
        self._here = context.get_node_id()
        self._head = context.gcs_address
        self.has_token = has_token
        """Whether each caller needs the cluster's token."""

    @classmethod
    async def join(cls, address: str | None, resource: str | None, *, trusted: bool) -> Cluster:
        """Join the cluster. Raises HostUnsupported, UsageError; see `Fleet.connect`."""
        return await asyncio.to_thread(cls._joined, address, resource, trusted=trusted)

    @classmethod
    def _joined(cls, address: str | None, resource: str | None, *, trusted: bool) -> Cluster:
        ray = _ray()
        if address is not None and address.startswith("ray://"):
            raise UsageError(
                "fleet: a client of Ray's (`ray://`) is outside of the cluster",
                remedy="run this program on a machine of the cluster, and leave the address out",
            )
        has_token = _has_token()
        if not (has_token or trusted):
            # Before anything is sent: a cluster without tokens takes code of any process.
            raise HostUnsupported(
                "token", "fleet: this process has no token for the cluster", remedy=_HOW
            )
        is_ours = not ray.is_initialized()
        if is_ours:
            try:
                ray.init(address=address or "auto", log_to_driver=False, logging_level="error")
            except (ConnectionError, ray.exceptions.RayError) as error:
                raise HostUnsupported(
                    "cluster",
                    f"fleet: join the cluster: {str(error).strip().splitlines()[0]}",
                    remedy="start one: `ray start --head`, and `ray start --address=HEAD`",
                ) from None
        made = cls(resource, is_ours=is_ours, has_token=has_token and not trusted)
        if not trusted and made._takes_anyone():
            made._leave()
            raise HostUnsupported(
                "token", "fleet: the head of the cluster answers without a token", remedy=_HOW
            )
        return made

    def _takes_anyone(self) -> bool:
        """Whether the head answers a process without a token. Raises HostUnsupported if unclear."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, self._head],
            env={**environment, "RAY_AUTH_MODE": "disabled"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PROBE_S,
        )
        if done.returncode and "authenticat" not in done.stderr.lower():
            last = done.stderr.strip().splitlines()[-1:] or [""]
            raise HostUnsupported(
                "token",
                f"fleet: whether the head asks for tokens could not be found out: {last[0]}",
                remedy="say trusted=True if nothing else reaches the cluster's ports",
            )
        return done.returncode == 0

    # -- machines --------------------------------------------------------------------------

    async def machines(self) -> list[Machine]:
        """Return the machines that may have a node; none while the head does not answer."""
        import ray

        if not ray.is_initialized():
            return []
        try:
            found = await _aside(ray.nodes, _ASK_S)
        except (TimeoutError, ray.exceptions.RayError):
            return []
        return [
            Machine(each["NodeID"], each["NodeManagerAddress"], each["NodeID"] == self._here)
            for each in found
            if each["Alive"] and self._is_wanted(each)
        ]

    def _is_wanted(self, node: Mapping[str, Any]) -> bool:
        return self._resource is None or node["Resources"].get(self._resource, 0) > 0

    def link(self, machine: Machine) -> RayLink:
        """Return the way to a new node on a machine."""
        return RayLink(self, machine)

    async def is_there(self, machine: Machine) -> bool:
        """Whether Ray's own agent on that machine answers the head."""
        return any(each.id == machine.id for each in await self.machines())

    async def head_answers(self) -> bool:
        """Whether the head of the cluster takes a connection."""
        host, _, port = self._head.rpartition(":")
        try:
            async with asyncio.timeout(_HEAD_S):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except (OSError, TimeoutError):
            return False
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return True

    # -- its end ---------------------------------------------------------------------------

    async def leave(self) -> None:
        """End the connection, if it was made here."""
        if self._is_ours:
            self._is_ours = False
            with contextlib.suppress(TimeoutError):
                await _aside(self._leave, _LEAVE_S)

    @staticmethod
    def _leave() -> None:
        import ray

        ray.shutdown()


class RayLink:
    """The way to the node on one machine: an actor there, which is started with `open`."""

    def __init__(self, cluster: Cluster, machine: Machine) -> None:
        self._cluster = cluster
        self._machine = machine
        self._actor: Any = None

    def _on_machine(self) -> Any:  # noqa: ANN401 - Ray's own
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node_id=self._machine.id, soft=False)

    async def open(self, message: bytes) -> bytes:
        """Start the actor, and have it open."""
        import ray

        options: dict[str, Any] = {
            "num_cpus": 0,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": 1000,
            # Pings on a thread of their own: an engine that is short of CPU is no lost one.
            "concurrency_groups": {_PINGS: 1},
            "scheduling_strategy": self._on_machine(),
            # Otherwise Ray tells its head of each letter and ping, for lists of its dashboard.
            "enable_task_events": False,
        }
        kind = ray.remote(**options)(NodeActor)
        self._actor = await _aside(kind.remote, _PROBE_S)
        return await self._answer(self._actor.open.remote(message))

    @property
    def _there(self) -> Any:  # noqa: ANN401 - Ray's own
        """The actor. Raises NoAnswer if it never started, or the cluster was left."""
        import ray

        # A call after the end of the connection would start a cluster of its own.
        if self._actor is None or not ray.is_initialized():
            raise NoAnswer("it never started, or the cluster was left")
        return self._actor

    async def ping(self, message: bytes) -> bytes:
        """Ask whether it is there."""
        ping = self._there.ping.options(concurrency_group=_PINGS)
        return await self._answer(ping.remote(message))

    async def exchange(self, message: bytes) -> bytes:
        """Give it items and take results."""
        return await self._answer(self._there.exchange.remote(message))

    async def close(self, message: bytes) -> bytes:
        """Have it end everything."""
        return await self._answer(self._there.close.remote(message))

    async def begun(self, place: str) -> set[str] | None:
        """Read the ledger of the node that has ended, by a task on its machine, and remove it."""
        import ray

        task = ray.remote(ledger.taken_away).options(
            num_cpus=0, max_retries=0, scheduling_strategy=self._on_machine()
        )
        data = await self._answer(await _aside(partial(task.remote, place), _ASK_S))
        return ledger.begun(data)

    async def drop(self) -> None:
        """Have Ray kill the process, should it be there."""
        import ray

        if self._actor is not None and ray.is_initialized():
            with contextlib.suppress(ray.exceptions.RayError, ValueError, TimeoutError):
                await _aside(partial(ray.kill, self._actor), _ASK_S)

    async def _answer(self, reference: Awaitable[bytes]) -> bytes:
        import ray

        try:
            return await reference
        except ray.exceptions.ActorDiedError as error:
            # Of a machine that is cut off Ray says the same, after a minute, and it is no proof.
            if await self._cluster.is_there(self._machine):
                raise NodeGone(_first_line(error)) from None
            raise NoAnswer(_first_line(error)) from None
        except ray.exceptions.RayError as error:
            raise NoAnswer(_first_line(error)) from None


async def _aside(work: Callable[[], T], most_s: float) -> T:
    """Return the result of a blocking call of Ray's. Raises TimeoutError.

    In a thread that nothing waits for: without a head such a call lasts a minute, and threads of
    asyncio's own would keep the program from its end for as long.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(step: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be closed by then
            loop.call_soon_threadsafe(lambda: None if done.done() else step())

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            tell(partial(done.set_exception, error))
        else:
            tell(partial(done.set_result, result))

    threading.Thread(target=run, name="cellwall-ray", daemon=True).start()
    async with asyncio.timeout(most_s):
        return await done


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _ray() -> Any:  # noqa: ANN401 - a module
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise HostUnsupported(
            "ray", "fleet: the package 'ray' is not installed", remedy=_INSTALL
        ) from None
    return ray


def _has_token() -> bool:
    """Whether this process shows a token to the cluster; no if that cannot be found out."""
    try:
        from ray._private.authentication.authentication_utils import is_token_auth_enabled
    except ImportError:
        return False
    return bool(is_token_auth_enabled())

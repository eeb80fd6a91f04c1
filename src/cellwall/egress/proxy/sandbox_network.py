"""The network of one sandbox as the proxy sees it: policy, names, counters, open connections.

The invariant: every connection of the sandbox is in `_open` from the moment it is accepted, and is
closed when the policy that allowed it no longer does.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cellwall.egress.addresses import AddressPolicy
from cellwall.egress.proxy import decision
from cellwall.egress.proxy.decision import Decision
from cellwall.egress.proxy.meter import LimitReached, Meter, SandboxMeter
from cellwall.egress.proxy.naming.names import Names
from cellwall.egress.proxy.naming.resolver import Answers, Ask, Busy, NoSuchName
from cellwall.egress.tls.substitution import Fields, Substitution
from cellwall.model.network import BROKER, NetworkPolicy
from cellwall.model.network_rule import WEB_PORTS

if TYPE_CHECKING:
    from cellwall.egress.packages.broker import Broker
    from cellwall.egress.tls.opening import Opening

CONNECT_S = 10.0
"""Seconds in which one of the addresses of a destination must have answered."""
_REPORT_EVERY_S = 1.0
"""Seconds between two reports of refusals that are alike."""
_MOST_LIKE = 256
_MOST_AT_BROKER = 8
"""Most requests of one sandbox that the package broker answers; others wait. A client's connections
are more, and stay open between requests."""

Report = Callable[[dict[str, Any]], None]
OfBroker = Callable[[], "Broker"]
"""Returns the package broker, or raises `Refused`."""
_Like = tuple[str, int, str, str]
"""Host, port, way and reason of refusals that are alike."""


class Refused(Exception):
    """The connection or request is not allowed; the text says why."""

    def __init__(self, why: str, said: bytes = b"") -> None:
        """`said` are the program's first bytes, if they were read already."""
        super().__init__(why)
        self.said = said


class Unreachable(Exception):
    """The destination is allowed and cannot be reached; the text says why."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a program wants to connect: a name or a literal address, and a port."""

    host: str
    port: int
    is_name: bool

    def __str__(self) -> str:
        """Return it as a URL's authority."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True, eq=False)
class Open:
    """One open connection."""

    task: asyncio.Task[Any] | None
    meter: Meter
    way: str
    """How it came: `direct` or `proxy`."""
    number: int = 0
    """Number of the connection among those of the sandbox that were made."""
    opened_at: float = field(default_factory=time.time)
    destination: Destination | None = None
    address: str = ""
    named: str = ""
    """Server that the program named last (TLS, HTTP) on a connection to a literal address."""
    rule: str = ""
    requests: list[str] = field(default_factory=list)
    secrets: Substitution | None = None
    """What was replaced in its requests, if the sandbox has secrets."""


class SandboxNetwork:
    """The network of one sandbox."""

    def __init__(
        self,
        policy: NetworkPolicy,
        listed: AddressPolicy,
        ask: Ask,
        report: Report,
        broker: OfBroker | None = None,
        opening: Opening | None = None,
    ) -> None:
        """`report` takes a record of each connection when it has ended, or was refused.

        `opening`: with what TLS is opened; None: it never is.
        """
        self.broker: OfBroker = broker or _no_broker
        self.at_broker = asyncio.Semaphore(_MOST_AT_BROKER)
        self._opening = opening
        self.policy = policy
        self._listed = listed
        self._report = report
        self._answers = Answers(ask)
        self._names = Names()
        self.told: dict[bytes, tuple[float, bytes]] = {}
        """Answers of `dns` that hold for some seconds, and until the policy changes."""
        self.meter = SandboxMeter(policy)
        self.opened = 0
        self.refused = 0
        self._open: set[Open] = set()
        self._like: dict[_Like, int] = {}
        """Refusals of the last second: how many came after the one that was reported."""

    # -- decisions -------------------------------------------------------------------------

    async def made_up_address(self, name: str) -> str:
        """Return the address that stands for `name` inside. Raises `NoSuchName`, `Busy`."""
        found = decision.for_name(self.policy, name, None)
        if not found.is_allowed:
            self.note_refusal(name, 0, "dns", found.rule)
            raise NoSuchName(found.rule)
        if name != BROKER:  # it has no other address than the one made up
            try:
                await self._addresses(name, None)
            except Refused as error:
                self.note_refusal(name, 0, "dns", str(error))
                raise NoSuchName(str(error)) from None
        made_up = self._names.address_of(name)
        if made_up is None:
            raise Busy("the sandbox's table of names is full")
        return made_up

    def destination_of(self, address: str, port: int) -> Destination:
        """Return what a program means that dialled `address`."""
        name = self._names.name_of(address)
        return Destination(name or address, port, name is not None)

    def decide(self, destination: Destination) -> Decision:
        """Decide on a destination, before its name is resolved."""
        if destination.is_name:
            return decision.for_name(self.policy, destination.host, destination.port)
        return decision.for_address(self.policy, self._listed, destination.host, destination.port)

    def decide_whole(self, destination: Destination, address: str, named: str = "") -> Decision:
        """Decide on a connection to `address`; `named` is a server that the program named there."""
        found = self.decide(destination)
        if not found.is_allowed:
            return found
        denied = None
        if destination.is_name:
            denied = decision.denial_at(self.policy, destination.host, address, destination.port)
        elif named:
            denied = decision.denial_of_server(self.policy, named, destination.port)
        return denied or found

    def check_named(
        self, entry: Open, destination: Destination, name: str | None, said: bytes = b""
    ) -> None:
        """Raise `Refused` if a program names a denied server on a connection to an address.

        Where a name was dialled, another one is refused already. `said` are its first bytes.
        """
        if destination.is_name or not name:
            return
        entry.named = name
        found = self.decide_whole(destination, destination.host, name)
        if not found.is_allowed:
            raise Refused(found.rule, said)

    def check_request(self, destination: Destination, method: str, path: str) -> None:
        """Raise `Refused` if the policy does not allow this HTTP request."""
        found = decision.for_request(self.policy, destination.host, destination.port, method, path)
        if not found.is_allowed:
            raise Refused(found.rule)

    def opening_for(self, destination: Destination) -> Opening | None:
        """Return with what TLS to a destination is opened; None: it passes as it is."""
        found = self._opening
        if found is None:
            return None
        changes = destination.is_name and (
            found.has_secret_for(destination.host, destination.port) or self.fields_for(destination)
        )
        return found if changes or self.decide(destination).looks_at_requests else None

    def fields_for(self, destination: Destination) -> Fields:
        """Return the header fields that requests to a destination get."""
        if not self.policy.headers or not destination.is_name:
            return []
        found = self.policy.headers_for(destination.host, destination.port)
        return [(name.encode("ascii"), text.encode("ascii")) for name, text in found]

    def substitution(self, destination: Destination, *, is_plain: bool) -> Substitution | None:
        """Return what is replaced in requests to a destination; None: nothing."""
        found = self._opening
        if found is None or not destination.is_name:
            return None
        return found.substitution(destination.host, destination.port, is_plain=is_plain)

    async def _addresses(self, name: str, port: int | None) -> list[str]:
        """Return the addresses of `name` that may be dialled at a port; None: at some port.

        Raises `NoSuchName`, `Busy`, and `Refused` if each of them is denied.
        """
        found = await self._answers.addresses(name)
        dialled = [each for each in found if decision.may_dial(self._listed, each)]
        if not dialled:
            why = f"{name} has no public address ({found[0]})"
            self.note_refusal(name, 0, "dns", why)
            raise NoSuchName(why)
        denials = [decision.denial_at(self.policy, name, each, port) for each in dialled]
        allowed = [each for each, denied in zip(dialled, denials, strict=True) if denied is None]
        if not allowed and denials[0] is not None:
            raise Refused(denials[0].rule)
        return allowed

    async def connect(self, entry: Open, destination: Destination) -> socket.socket:
        """Decide on a destination and connect to it. Raises `Refused`, `Unreachable`."""
        self.rule_for(destination)
        if destination.host == BROKER:
            raise Refused("the package broker is asked without a proxy")
        self.check_meter()
        outer, address = await self._dial(destination)
        try:
            # The policy may have changed meanwhile: the one that holds now decides.
            found = self.decide_whole(destination, address)
            if not found.is_allowed:
                raise Refused(found.rule)
        except Refused:
            outer.close()
            raise
        self.note_open(entry, destination, address, found.rule)
        return outer

    def check_meter(self) -> None:
        """Raise `Refused` if the sandbox has moved as many bytes as its policy allows."""
        try:
            self.meter.check()
        except LimitReached as error:
            raise Refused(str(error)) from None

    def note_open(self, entry: Open, destination: Destination, address: str, rule: str) -> None:
        """Count and report a connection that was made."""
        self.opened += 1
        entry.number = self.opened
        entry.destination, entry.address, entry.rule = destination, address, rule
        self._report({**_record(entry), "event": "open"})

    def rule_for(self, destination: Destination) -> str:
        """Return the rule that allows a destination. Raises `Refused`."""
        found = self.decide(destination)
        if not found.is_allowed:
            raise Refused(found.rule)
        return found.rule

    async def _dial(self, destination: Destination) -> tuple[socket.socket, str]:
        """Return a connection and its address, of those that the name resolved to and that passed.

        Raises `Unreachable`, and `Refused` if each of them is denied.
        """
        if destination.is_name:
            try:
                addresses = await self._addresses(destination.host, destination.port)
            except (NoSuchName, Busy) as error:
                raise Unreachable(str(error)) from None
        else:
            addresses = [destination.host]
        last = ""
        for address in addresses[:4]:
            try:
                async with asyncio.timeout(CONNECT_S / min(4, len(addresses))):
                    return await _connected(address, destination.port), address
            except TimeoutError:
                last = f"{address}: no answer in time"
            except OSError as error:
                last = f"{address}: {error.strerror or error}"
        raise Unreachable(f"{destination}: {last}")

    # -- connections -----------------------------------------------------------------------

    @contextlib.contextmanager
    def connection(self, way: str) -> Iterator[Open]:
        """Count one connection of the running task while it is open. Raises `Refused`."""
        if len(self._open) >= self.policy.connections:
            raise Refused(f"the sandbox has {self.policy.connections} connections open, its limit")
        entry = Open(asyncio.current_task(), Meter(self.meter), way)
        self._open.add(entry)
        try:
            yield entry
        finally:
            self._open.discard(entry)
            if entry.rule:
                self._report(_record(entry))

    def note_refusal(self, host: str, port: int, way: str, why: str) -> None:
        """Report a refusal; those that are alike within a second become two reports.

        Beyond `_MOST_LIKE` in a second they are no longer told apart.
        """
        self.refused += 1
        key = (host, port, way, why)
        if key not in self._like and len(self._like) >= _MOST_LIKE:
            key = ("", 0, way, "more refusals in one second than are told apart")
        if key in self._like:
            self._like[key] += 1
            return
        self._like[key] = 0
        self._report_refusals(key, 1)
        asyncio.get_running_loop().call_later(_REPORT_EVERY_S, self._end_second, key)

    def _end_second(self, key: _Like) -> None:
        held = self._like.pop(key, 0)
        if held:
            self._report_refusals(key, held)

    def _report_refusals(self, key: _Like, times: int) -> None:
        host, port, way, why = key
        self._report(
            {
                "event": "refused",
                "at": time.time(),
                "host": host,
                "port": port,
                "way": way,
                "rule": why,
                "times": times,
            }
        )

    def note_package(self, name: str, size: int) -> None:
        """Report a file of a package that the sandbox was given, with its size in bytes."""
        self._report(
            {
                "event": "package",
                "at": time.time(),
                "host": BROKER,
                "port": WEB_PORTS[0],
                "rule": "packages",
                "name": name,
                "received_bytes": size,
            }
        )

    def set_policy(self, policy: NetworkPolicy) -> None:
        """Change the policy; connections that it does not allow are closed now."""
        self.policy = policy
        self.meter.set(policy)
        self.told.clear()
        for entry in list(self._open):
            if entry.destination is None:
                continue  # it is decided on when its destination is known, by the new policy
            found = self.decide_whole(entry.destination, entry.address, entry.named)
            # Where single requests are decided on or changed, what is open may be something else.
            looks = found.looks_at_requests or self.fields_for(entry.destination)
            if entry.task is not None and (not found.is_allowed or looks):
                entry.task.cancel()

    def usage(self) -> dict[str, int]:
        """Return the counters."""
        return {
            "connections": self.opened,
            "refused": self.refused,
            "sent_bytes": self.meter.sent,
            "received_bytes": self.meter.received,
        }

    async def close(self) -> None:
        """Close every connection."""
        tasks = [entry.task for entry in self._open if entry.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for key in list(self._like):
            self._end_second(key)


def _no_broker() -> Broker:
    raise Refused("no package broker runs here")


async def _connected(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    outer = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        outer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(outer, (address, port))
    except BaseException:
        outer.close()
        raise
    return outer


def _record(entry: Open) -> dict[str, Any]:
    destination = entry.destination or Destination("", 0, is_name=False)
    return {
        "event": "close",
        "number": entry.number,
        "at": entry.opened_at,
        "seconds": round(time.time() - entry.opened_at, 6),
        "host": destination.host,
        "port": destination.port,
        "address": entry.address,
        "way": entry.way,
        "rule": entry.rule,
        "sent_bytes": entry.meter.sent,
        "received_bytes": entry.meter.received,
        "requests": entry.requests,
        **_secrets_of(entry),
    }


def _secrets_of(entry: Open) -> dict[str, list[str]]:
    """Return the names of secrets that a connection was given, and of those it was not."""
    if entry.secrets is None:
        return {}
    return {
        "secrets": sorted(entry.secrets.used),
        "secrets_withheld": sorted(entry.secrets.withheld),
    }

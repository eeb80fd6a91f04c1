"""Results: what a fleet gives back; an execution and its node, one of many, a node's facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from cellwall.fleet.wire.failures import raised
from cellwall.model.execution import Execution
from cellwall.wire.reading import execution_fields

if TYPE_CHECKING:
    from cellwall.fleet.driver.member import State
    from cellwall.fleet.wire.items import Json
    from cellwall.model.errors import CellwallError


@dataclass(frozen=True, slots=True)
class FleetExecution(Execution):
    """Result of one piece of code, and where it ran."""

    node: str = ""
    """Name of the node."""


def executed(node: str, result: Json) -> FleetExecution:
    """Return the execution of a node's result; raise its failure."""
    if "failure" in result:
        raise raised(result["failure"], node)
    value = result["value"]
    facts = {**execution_fields(value), "started_at": value["started"]}
    return FleetExecution(**facts, node=node)


@dataclass(frozen=True, slots=True)
class Mapped:
    """What became of one program of `Fleet.map`: its execution or an error, never both."""

    index: int
    """Number of the program in what was given, from 0."""
    execution: FleetExecution | None
    error: CellwallError | None
    """`NodeLost` if its node was lost after it may have begun."""

    def get(self) -> FleetExecution:
        """Return the execution; raise the error if there is none."""
        if self.error is not None:
            raise self.error
        return cast("FleetExecution", self.execution)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node of a fleet, as its driver knows it."""

    name: str
    """Four letters; a node that was lost never comes back under its name."""
    address: str
    state: State
    """`opening`, `ready`, `unreachable`, `lost`, or `unfit` if it cannot run sandboxes."""
    cpus: int
    running: int
    """Number of programs and calls that are under way there, as of its last answer."""
    given: int
    """Number of those that it was given and whose results have not come."""
    sandboxes: int
    """Number of sandboxes that were made there and not closed."""
    why: str
    """Why it is lost or unfit."""

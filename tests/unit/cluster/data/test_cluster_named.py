"""Names that callers give in a body or in a path become no more of a question than its path."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from cellwall.apps.cluster.doors import opened_doors
from cellwall.cluster.gateway.data.data import Data
from cellwall.cluster.gateway.data.places import OwnPlaces
from cellwall.cluster.gateway.gateway import Gateway
from cellwall.cluster.gateway.names import node_with
from cellwall.cluster.gateway.routing import Way
from cellwall.cluster.gateway.wire.asking import ask
from cellwall.model.errors import NodeUnreachable, NotFound
from cellwall.server.auth.keys import KeyRing
from cellwall.server.core.door_settings import DoorSettings
from cellwall.server.core.settings import ServerSettings
from kit.cluster.tiny_nodes import caller, nodes

SMUGGLED = (
    "x HTTP/1.1\r\ncellwall-tenant: bob\r\ncellwall-scope: admin\r\n\r\nDELETE /sandboxes/abc"
)
NO_NAMES = [SMUGGLED, "..", "x/../y", "x?limit=1", "x y", "x\n", "ü", "x" * 64]


class Seen(dict[str, Any]):
    """A node with nothing, which remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def get(self, target: str, default: Any = None) -> Any:
        self.targets.append(target)
        return default


async def _asked(way: Way, body: bytes) -> list[str]:
    """Return what two nodes were asked for about the template that a request names."""
    first, second = Seen(), Seen()
    async with nodes({"aaaa": first, "bbbb": second}) as book:
        settings = ServerSettings(doors={"e2b": DoorSettings()})
        gateway = Gateway(settings, KeyRing([]), book, opened_doors(settings))
        data = Data(gateway, OwnPlaces())
        async with data.named.at(caller(), way, body, lambda: 404):
            pass
        await gateway.tasks.cancel()
    return first.targets + second.targets


@pytest.mark.parametrize("name", NO_NAMES)
@pytest.mark.parametrize("place", ["body", "path"])
def test_what_can_be_no_name_is_put_into_no_target(name: str, place: str) -> None:
    body = json.dumps({"templateID": name}).encode() if place == "body" else b""
    way = Way("template", path="templateID") if place == "body" else Way("template", name=name)
    targets = asyncio.run(_asked(way, body))
    assert not [each for each in targets if each.startswith("/snapshots/")]
    assert not [each for each in targets if "abc" in each or ".." in each]


def test_a_name_is_asked_for() -> None:
    """The control."""
    targets = asyncio.run(_asked(Way("template", name="best-1"), b""))
    assert targets.count("/snapshots/best-1") == 2


@pytest.mark.parametrize("name", NO_NAMES)
def test_snapshot_whose_name_can_be_none_is_not_there(name: str) -> None:
    async def run() -> None:
        async with nodes({"aaaa": Seen(), "bbbb": Seen()}) as book:
            with pytest.raises(NotFound):
                await node_with(book, name, caller().said)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (b"/x HTTP/1.1\r\na: b", []),
        (b"/x y", []),
        (b"x", []),
        (b"/x", [(b"a", b"b\r\nc: d")]),
        (b"/x", [(b"a\n", b"b")]),
    ],
)
def test_question_of_more_than_one_line_is_never_sent(
    target: bytes, said: list[tuple[bytes, bytes]]
) -> None:
    async def run() -> list[str]:
        seen = Seen()
        async with nodes({"aaaa": seen}) as book:
            with pytest.raises(ValueError, match="one line each"):
                await ask(next(iter(book.nodes)).links, target, said)
        return seen.targets

    assert asyncio.run(run()) == []


@pytest.mark.parametrize("is_known", [False, True])
def test_node_that_is_away_holds_up_only_what_it_has(*, is_known: bool) -> None:
    """Every call of E2B's clients names a template, mostly one of the operator's."""
    way = Way("template", path="templateID", makes="sandbox")

    async def run() -> Way:
        shown: dict[str, Any] = {"/templates": {"own": [], "templates": []}}
        async with nodes({"aaaa": shown, "bbbb": shown}) as book:
            _first, second = book.nodes
            for now_s in range(9):
                book.missed(second, "it is away", now_s)
            assert second.state == "unreachable"
            settings = ServerSettings(doors={"e2b": DoorSettings()})
            gateway = Gateway(settings, KeyRing([]), book, opened_doors(settings))
            places = OwnPlaces()
            if is_known:
                await places.claim("alice", "template:base", "bbbb")
            data = Data(gateway, places)
            async with data.named.at(caller(), way, b'{"templateID":"base"}', lambda: 0) as found:
                return found

    if is_known:
        with pytest.raises(NodeUnreachable):
            asyncio.run(run())
    else:
        assert asyncio.run(run()) == Way("any", makes="sandbox")

"""A name has one place, in memory and in the directory; and what bodies and pulls say."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from cellwall.cluster.directory.places import PlaceRows
from cellwall.cluster.gateway.agreed.places import AgreedPlaces
from cellwall.cluster.gateway.book import Node
from cellwall.cluster.gateway.data.bodies import FirstPart, name_in
from cellwall.cluster.gateway.data.images import joined, merged
from cellwall.cluster.gateway.data.places import OwnPlaces, Place, Places
from cellwall.cluster.gateway.wire.links import Address, Links
from cellwall.model.errors import UsageError
from cellwall.model.ids import new_id
from cellwall.server.core.errors import LACKS, HttpError, lacking
from kit.cluster.directories import committing, directory
from kit.postgres_server import Postgres


@contextlib.asynccontextmanager
async def _agreed(url: str) -> AsyncIterator[Places]:
    async with committing(url) as commits:
        yield AgreedPlaces(PlaceRows(commits))


Work = Callable[[Places], Awaitable[None]]


async def _first_claim_holds(places: Places) -> None:
    assert await places.find("alice", "volume:data") is None
    found = await asyncio.gather(
        *(places.claim("alice", "volume:data", node) for node in ("aaaa", "bbbb", "cccc"))
    )
    assert len({each.node for each in found}) == 1
    assert sorted(each.uses for each in found) == [0, 1, 2]
    assert await places.find("alice", "volume:data") == Place(found[0].node, 2)
    assert await places.claim("bob", "volume:data", "dddd") == Place("dddd", 0)


async def _claim_that_was_repeated_is_not_forgotten(places: Places) -> None:
    first = await places.claim("alice", "volume:data", "aaaa")
    await places.claim("alice", "volume:data", "bbbb")
    await places.forget("alice", "volume:data", first)
    now = await places.find("alice", "volume:data")
    assert now == Place("aaaa", 1)
    await places.forget("alice", "volume:data", now)
    assert await places.find("alice", "volume:data") is None


async def _place_moves_only_from_where_it_was(places: Places) -> None:
    await places.note("alice", "volume:data", "aaaa", "")
    await places.note("alice", "volume:data", "bbbb", "")  # it has one
    await places.note("alice", "volume:data", "cccc", "dddd")
    assert await _node(places, "volume:data") == "aaaa"
    await places.note("alice", "volume:data", "bbbb", "aaaa")
    assert await _node(places, "volume:data") == "bbbb"


async def _names_of_a_kind_are_a_tenants_own(places: Places) -> None:
    await places.claim("alice", "volume:one", "aaaa")
    await places.claim("alice", "template:two", "bbbb")
    await places.claim("bob", "volume:three", "cccc")
    assert await places.of("alice", "volume") == {"one": "aaaa"}
    assert await places.of("carol", "volume") == {}


async def _node(places: Places, thing: str) -> str:
    found = await places.find("alice", thing)
    return "" if found is None else found.node


WORKS = [
    _first_claim_holds,
    _claim_that_was_repeated_is_not_forgotten,
    _place_moves_only_from_where_it_was,
    _names_of_a_kind_are_a_tenants_own,
]


@pytest.mark.parametrize("work", WORKS)
def test_place_in_memory(work: Work) -> None:
    async def run() -> None:
        await work(OwnPlaces())

    asyncio.run(run())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("work", WORKS)
def test_place_in_the_directory(postgres: Postgres, work: Work) -> None:
    url = directory(postgres)

    async def run() -> None:
        async with _agreed(url) as places:
            await work(places)

    asyncio.run(run())


# -- bodies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"name": 5}', b'{"name": "a", "name": "b"}', b"[" * 100_000]
)
def test_body_without_one_name_is_refused(body: bytes) -> None:
    with pytest.raises(UsageError):
        name_in(body)


def test_first_part_of_a_form_is_found_in_pieces() -> None:
    media = "multipart/form-data; boundary=xyz"
    form = (
        b'--xyz\r\nContent-Disposition: form-data; name="build"\r\n\r\n{"name": "task"}\r\n'
        b'--xyz\r\nContent-Disposition: form-data; name="context"\r\n\r\n' + b"t" * 200_000
    )
    find, body, found = FirstPart(media), bytearray(), None
    for at in range(0, len(form), 7):
        body += form[at : at + 7]
        found = find(body, False)
        if found is not None:
            break
    assert found == b'{"name": "task"}'
    assert len(body) < 200
    assert FirstPart(media)(bytearray(b"--xyz\r\n"), True) is None
    with pytest.raises(HttpError):
        FirstPart("application/json")


def test_only_what_can_be_a_name_is_said_in_a_header() -> None:
    error = UsageError("no")
    assert lacking(error, "volume", "data").headers == {LACKS: "volume:data"}
    for name in ("a\r\nx: y", "", "a b", "é", "a" * 300):
        assert lacking(error, "template", name).headers == {}


# -- images ------------------------------------------------------------------------------------


def _pull(status: str, node: str, **more: Any) -> tuple[str, dict[str, Any]]:
    image = {"id": "sha256:1"} if status == "here" else None
    error = {"code": "x"} if status == "failed" else None
    size = {"come_bytes": 5, "all_bytes": 10}
    pull = {"id": new_id(node), "name": "i", "image": image, "error": error, **size, **more}
    return node, {**pull, "status": status}


@pytest.mark.parametrize(
    ("states", "whole"),
    [
        (("here", "here"), "here"),
        (("here", "coming"), "coming"),
        (("failed", "coming"), "coming"),
        (("here", "failed"), "failed"),
    ],
)
def test_pull_is_here_only_if_it_is_everywhere(states: tuple[str, str], whole: str) -> None:
    pulls = [_pull(states[0], "aaaa"), _pull(states[1], "bbbb")]
    made = joined(pulls)
    assert (made["status"], made["come_bytes"], made["all_bytes"]) == (whole, 10, 20)
    assert made["id"] == ".".join(pull["id"] for _name, pull in pulls)
    assert [(each["node"], each["status"]) for each in made["nodes"]] == [
        ("aaaa", states[0]),
        ("bbbb", states[1]),
    ]
    assert (made["error"] is not None) == (whole == "failed")


def test_pull_that_a_node_has_not_begun_has_failed() -> None:
    assert joined([_pull("coming", "aaaa"), _pull("failed", "bbbb", id="")])["status"] == "failed"


def test_image_of_two_nodes_is_listed_once() -> None:
    def node(name: str) -> Node:
        made = Node(Links(Address("127.0.0.1", 1), None))
        made.told = type("Told", (), {"name": name})()
        return made

    one = {"id": "1", "names": ["a"], "used_at": "2", "unpacked_at": "1"}
    other = {"id": "1", "names": ["b", "a"], "used_at": "1", "unpacked_at": "3"}
    found = merged([(node("aaaa"), one), (node("bbbb"), other)])
    assert found == [
        {"id": "1", "names": ["a", "b"], "used_at": "2", "unpacked_at": "3",
         "nodes": ["aaaa", "bbbb"]}
    ]  # fmt: skip

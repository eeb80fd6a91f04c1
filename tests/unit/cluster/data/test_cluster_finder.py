"""Which node has what is named without one, and where a request that names several is led."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cellwall.cluster.gateway.book import Book
from cellwall.cluster.gateway.data.finder import IMAGE, TEMPLATE, VOLUME, Finder, stem_of
from cellwall.cluster.gateway.data.lead import Lead
from cellwall.cluster.gateway.data.places import OwnPlaces, Place
from cellwall.model.errors import Conflict, NodeLost, NodeUnreachable, NotFound, UsageError
from kit.cluster.tiny_nodes import Table, caller, nodes

HAS: Table = {"/volumes/data": {"name": "data"}, "/templates": {"own": [{"name": "task:1"}]}}
NONE: Table = {"/templates": {"own": []}}
ALICE = caller()


def _run(work: Callable[[Book, Finder], Awaitable[None]]) -> None:
    async def whole() -> None:
        tables = {"aaaa": HAS, "bbbb": {**NONE, "/volumes/more": {"name": "more"}}}
        async with nodes(tables) as book:
            await work(book, Finder(book, OwnPlaces()))

    asyncio.run(whole())


def test_what_has_no_place_is_asked_of_all_nodes_and_has_one_then() -> None:
    async def work(_book: Book, finder: Finder) -> None:
        assert (await finder.node_of(ALICE, VOLUME, "data")).name == "aaaa"
        assert await finder.places.find("alice", "volume:data") == Place("aaaa", 1)
        assert (await finder.node_of(ALICE, TEMPLATE, "task")).name == "aaaa"
        for kind, name in ((VOLUME, "none"), (TEMPLATE, "none"), (TEMPLATE, "tas")):
            with pytest.raises(NotFound):
                await finder.node_of(ALICE, kind, name)

    _run(work)


def test_what_may_be_at_a_silent_node_is_not_said_to_be_nowhere() -> None:
    async def work(book: Book, finder: Finder) -> None:
        for _ in range(2):
            book.missed(book.nodes[1], "away", 1.0)
        assert (await finder.node_of(ALICE, VOLUME, "data")).name == "aaaa"
        with pytest.raises(NodeUnreachable, match="bbbb"):
            await finder.node_of(ALICE, VOLUME, "more")

    _run(work)


def test_what_was_at_a_lost_node_is_lost_until_another_one_has_it() -> None:
    async def work(book: Book, finder: Finder) -> None:
        await finder.places.claim("alice", "volume:gone", "cccc")
        await finder.places.claim("alice", "volume:data", "cccc")
        book.bury("cccc", "it did not answer")
        with pytest.raises(NodeLost, match="volume gone: its node cccc is lost"):
            await finder.node_of(ALICE, VOLUME, "gone")
        # Its machine came back under another name, with its disk.
        assert (await finder.node_of(ALICE, VOLUME, "data")).name == "aaaa"
        found = await finder.places.find("alice", "volume:data")
        assert found is not None
        assert found.node == "aaaa"

    _run(work)


def test_name_that_two_nodes_have_is_a_conflict_unless_it_has_a_place() -> None:
    async def whole() -> None:
        async with nodes({"aaaa": HAS, "bbbb": HAS}) as book:
            finder = Finder(book, OwnPlaces())
            with pytest.raises(Conflict, match="several"):
                await finder.node_of(ALICE, VOLUME, "data")
            await finder.places.claim("alice", "volume:data", "bbbb")
            assert (await finder.node_of(ALICE, VOLUME, "data")).name == "bbbb"

    asyncio.run(whole())


def test_image_is_at_any_of_those_that_have_it() -> None:
    async def whole() -> None:
        has = {"/images/sha256:1": {"id": "sha256:1"}}
        async with nodes({"aaaa": has, "bbbb": has, "cccc": {}}) as book:
            finder = Finder(book, OwnPlaces())
            book.nodes[0].in_flight = 1
            assert (await finder.node_of(ALICE, IMAGE, "sha256:1")).name == "bbbb"
            with pytest.raises(NotFound):
                await finder.node_of(ALICE, IMAGE, "sha256:2")

    asyncio.run(whole())


def test_request_is_led_once_and_stays() -> None:
    async def work(_book: Book, finder: Finder) -> None:
        lead = Lead(finder, ALICE)
        node = await lead.take("volume:data")
        assert node is not None
        assert (node.name, lead.node) == ("aaaa", node)
        assert await lead.take("template:task") is node  # it is there, too
        assert await lead.take("volume:none") is None
        assert await Lead(finder, ALICE).take("volume:none") is None

    _run(work)


def test_two_things_on_two_nodes_are_refused() -> None:
    async def work(_book: Book, finder: Finder) -> None:
        lead = Lead(finder, ALICE)
        await lead.take("volume:data")
        with pytest.raises(Conflict, match="volume data and volume more are on different nodes"):
            await lead.take("volume:more")

    _run(work)


def test_request_is_led_from_an_images_node_to_its_volumes_which_may_have_both() -> None:
    has = {"/images/sha256:1": {"id": "sha256:1"}}

    async def whole() -> None:
        async with nodes({"aaaa": has, "bbbb": {**has, **HAS}, "cccc": {}}) as book:
            book.nodes[1].in_flight = 1
            lead = Lead(Finder(book, OwnPlaces()), ALICE)
            first = await lead.take("image:sha256:1")
            then = await lead.take("volume:data")
            assert [each.name for each in (first, then) if each is not None] == ["aaaa", "bbbb"]
            with pytest.raises(Conflict):  # the volume's node has no such image after all
                await lead.take("image:sha256:1")

    asyncio.run(whole())


def test_node_that_lacks_again_what_it_was_found_to_have_answers_itself() -> None:
    async def work(_book: Book, finder: Finder) -> None:
        lead = Lead(finder, ALICE)
        await lead.take("volume:data")
        assert await lead.take("volume:data") is None
        other = Lead(finder, ALICE)
        taken = [await other.take(("volume:data", "template:task")[n % 2]) for n in range(20)]
        assert None in taken

    _run(work)


@pytest.mark.parametrize(
    "lacked", ["volume:", "volume:../node", "volume:a b", "key:data", "volume:a?b", "volume:."]
)
def test_what_a_node_may_not_say_leads_nowhere(lacked: str) -> None:
    async def whole() -> None:
        async with nodes({"aaaa": {lacked.replace("volume:", "/volumes/"): {}, **HAS}}) as book:
            assert await Lead(Finder(book, OwnPlaces()), ALICE).take(lacked) is None

    asyncio.run(whole())


@pytest.mark.parametrize("name", ["", "UP", "a b", "a/b", "a\r\nx: y", ":1"])
def test_what_can_be_no_template_is_not_looked_for(name: str) -> None:
    with pytest.raises(UsageError):
        stem_of(name)

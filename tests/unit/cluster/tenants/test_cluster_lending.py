"""What a node may have of a tenant's secrets: what the request names, by names that can be."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from cellwall.cluster.gateway.book import Node
from cellwall.cluster.gateway.tenants.lending import Keeps, lend, names_in
from cellwall.cluster.gateway.tenants.vault import Vault
from cellwall.cluster.gateway.wire.links import Address, Links
from cellwall.model.errors import NodeUnreachable, NotFound
from kit.cluster.tiny_nodes import caller


class Asked(Vault):
    """A vault that was asked, and has nothing."""

    def __init__(self) -> None:
        """Without a directory."""
        self.wanted: list[str] = []

    async def find(self, tenant: str, names: Any) -> list[dict[str, Any]]:
        self.wanted += names
        raise NotFound("secret: there is none")


def _refused(names: object, named: frozenset[str]) -> list[str]:
    """Return what the directory is asked for; what is raised: there is none of it."""
    vault = Asked()
    node = Node(Links(Address("127.0.0.1", 1), None))
    body = json.dumps({"error": {"names": names}}).encode()
    with pytest.raises(NotFound):
        asyncio.run(lend(Keeps(cast("Any", None), vault), node, "id", caller(), body, named))
    return vault.wanted


@pytest.mark.parametrize("name", ["A\0", "\ud800", "", "A B", "A" * 101, "ä"])
def test_name_that_no_secret_has_is_not_asked_for(name: str) -> None:
    assert _refused([name], frozenset({name})) == []
    assert _refused(["KEY"], frozenset({"KEY"})) == ["KEY"]  # the control


def test_node_gets_no_secret_that_the_request_does_not_name() -> None:
    assert _refused(["KEY", "OTHER"], frozenset({"KEY"})) == []


@pytest.mark.parametrize(
    "refusal", [b"", b"{}", b'{"error": []}', b'{"error": {"names": []}}', b"[" * 100_000]
)
def test_refusal_that_is_none_of_a_nodes_leads_to_another_node(refusal: bytes) -> None:
    node = Node(Links(Address("127.0.0.1", 1), None))
    keeps = Keeps(cast("Any", None), Asked())
    with pytest.raises(NodeUnreachable, match="nothing has begun"):
        asyncio.run(lend(keeps, node, "id", caller(), refusal, frozenset({"KEY"})))


def test_body_says_what_it_names() -> None:
    async def run() -> None:
        long = json.dumps({"code": "1" * 100_000, "secrets": ["KEY"]}).encode()
        assert await names_in([b'{"secrets": ["A",', b' "B"]}']) == {"A", "B"}
        assert await names_in([long]) == {"KEY"}
        for none in (b"", b"[]", b"{}", b'{"secrets": 1}', b'{"secrets": [1]}', b"[" * 100_000):
            assert await names_in([none]) == frozenset()

    asyncio.run(run())

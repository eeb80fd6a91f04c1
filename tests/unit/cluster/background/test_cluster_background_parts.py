"""Parts of background work at gateways: what a body asks for, objects of ends, webhooks."""

from __future__ import annotations

import asyncio
import json

import pytest

from cellwall.cluster.gateway.background.accepting import _looked, _may_ask
from cellwall.cluster.gateway.background.hooks import Hooks
from cellwall.cluster.gateway.background.outcomes import (
    cancelled,
    failed_by,
    last_event,
    notice_of,
)
from cellwall.cluster.gateway.book import lost
from cellwall.cluster.node.offers import Offers
from cellwall.egress.webhook import Webhooks, WebhookSettings
from cellwall.model.errors import Conflict, UsageError
from cellwall.model.ids import GATEWAYS, accepted_id, is_node, new_id
from cellwall.server.core.errors import HttpError
from cellwall.surface.shared.tasks import Tasks
from kit.receivers import Answer, answer, listening

SHOWN = json.dumps({"execution_id": "gate", "status": "queued", "verdict": None, "stdout": ""})
KEY = bytes(range(32))


# -- bodies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b'{"code": "1"}',
        b'{"code": "1", "background": false}',
        b'{"code": "1", "background": "true"}',
        b'{"code": "\\"background\\": true"}',
        b'{"background": true, "background": true}',
        b'[{"background": true}]',
        b'{"background": true',
    ],
)
def test_what_asks_for_no_background_is_left_to_a_node(body: bytes) -> None:
    assert _looked(body) is None


def test_other_escapes_than_of_the_name_cost_no_reading() -> None:
    assert not _may_ask(b'{"code": "\\u00e9 \\u4e2d \\u0022"}')
    for letter in "background":
        escaped = "background".replace(letter, f"\\u{ord(letter):04x}")
        body = f'{{"code": "1", "{escaped}": true}}'.encode()
        assert _may_ask(body)
        assert _looked(body) is not None


def test_a_webhook_stays_at_the_gateway() -> None:
    asked = _looked(b'{"code": "1", "back\\u0067round": true, "webhook": "https://a.example/"}')
    assert asked is not None
    assert asked.webhook == "https://a.example/"
    assert json.loads(asked.data) == {"code": "1", "background": True}
    plain = b'{"code": "1", "background": true}'
    kept = _looked(plain)
    assert kept is not None
    assert (kept.data, kept.webhook) == (plain, "")


def test_a_webhook_that_is_no_text_is_refused() -> None:
    with pytest.raises(UsageError):
        _looked(b'{"background": true, "webhook": 7}')


# -- ends --------------------------------------------------------------------------------------


def test_a_lost_nodes_program_is_interrupted_and_told() -> None:
    value = failed_by(SHOWN, lost("a7c2"), "request")
    assert (value["status"], value["verdict"]) == ("error", "interrupted")
    assert value["failure"]["code"] == "node_lost"
    notice = json.loads(notice_of(value))
    assert (notice["type"], notice["verdict"]) == ("execution.ended", "interrupted")
    line = json.loads(last_event(value, "ndjson"))
    assert (line["type"], line["failure"]["code"]) == ("end", "node_lost")
    assert last_event(cancelled(SHOWN), "sse").startswith(b"id: 1\nevent: end\ndata: {")


# -- ids ---------------------------------------------------------------------------------------


def test_a_node_takes_ids_that_gateways_keep_and_is_never_called_so() -> None:
    offered = new_id(GATEWAYS)
    assert accepted_id(offered, "a7c2") == offered
    assert not is_node(GATEWAYS)
    with pytest.raises(UsageError):  # a server alone has no gateways
        accepted_id(offered, "")


def test_a_refused_try_is_not_the_next_ones() -> None:
    class Asked:
        """A request as far as `Offers` knows it."""

        def __init__(self) -> None:
            self.origin = self
            self.offered_id = ""

    offers, program_id = Offers(), new_id(GATEWAYS)
    offers._refuse(f"{program_id}.1")
    with pytest.raises(HttpError):
        offers.take(Asked(), f"{program_id}.1")  # type: ignore[arg-type]
    second = Asked()
    offers.take(second, f"{program_id}.2")  # type: ignore[arg-type]
    assert second.offered_id == program_id


# -- webhooks ----------------------------------------------------------------------------------


def _hooks(key: bytes | None, *, may_send: bool = True) -> Hooks:
    async def made() -> Hooks:
        return Hooks(None, Tasks(), key, may_send=may_send)  # type: ignore[arg-type]

    return asyncio.run(made())


def test_gateways_with_one_key_have_one_secret_for_each_tenant() -> None:
    one, other = _hooks(KEY), _hooks(KEY)
    assert one.shown("moss") == other.shown("moss")
    assert one.shown("moss") != one.shown("fern")
    assert one.shown("moss") != _hooks(bytes(32)).shown("moss")


def test_webhooks_need_the_operators_word_and_a_key() -> None:
    with pytest.raises(UsageError, match="webhooks = true"):
        _hooks(KEY, may_send=False).check("https://a.example/")
    with pytest.raises(Conflict, match="no key"):
        _hooks(None).check("https://a.example/")
    with pytest.raises(UsageError):
        _hooks(KEY).check("ftp://a.example/")


@pytest.mark.parametrize(
    ("says", "networks", "is_taken"),
    [
        (answer(204), ("127.0.0.0/8",), True),
        (answer(503), ("127.0.0.0/8",), None),
        (answer(410), ("127.0.0.0/8",), False),
        (answer(204), (), False),
    ],
    ids=["taken", "later", "refused", "denied"],
)
def test_one_attempt_says_whether_there_is_another(
    says: Answer, networks: tuple[str, ...], is_taken: bool | None
) -> None:
    async def attempt() -> bool | None:
        async with listening(lambda _: says) as receiver:
            webhooks = Webhooks(KEY, networks, WebhookSettings())
            return await webhooks.attempt("id", "moss", receiver.url(), b"{}")

    assert asyncio.run(attempt()) is is_taken

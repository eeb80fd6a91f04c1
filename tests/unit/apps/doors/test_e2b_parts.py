"""Parts of the E2B door that need no server: places, tokens, policies, pages, versions, names."""

from __future__ import annotations

import dataclasses
import time
from typing import cast
from urllib.parse import quote, unquote, urlencode

import pytest

from cellwall.apps.doors.e2b.addressing import Place, place_of
from cellwall.apps.doors.e2b.clients import Clients
from cellwall.apps.doors.e2b.control import pages
from cellwall.apps.doors.e2b.control.lives import metadata_of
from cellwall.apps.doors.e2b.control.networks import policy_of
from cellwall.apps.doors.e2b.control.snapshot_names import Called, kept_name
from cellwall.apps.doors.e2b.house import Options
from cellwall.apps.doors.e2b.tokens import SandboxTokens, Signed
from cellwall.model.errors import CellwallError, UsageError
from cellwall.model.ids import new_id
from cellwall.model.network import NetworkPolicy
from cellwall.model.snapshot import Snapshot
from cellwall.server.auth.keys import KeyRecord, KeyRing, digest_of, in_e2b_form, new_key, spellings
from cellwall.server.core.errors import HttpError

SANDBOX = "a2b3"

# -- which sandbox a request is for ------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"host": "127.0.0.1:3939"}, None),
        ({"e2b-sandbox-id": SANDBOX}, Place(SANDBOX)),
        ({"e2b-sandbox-id": SANDBOX, "e2b-sandbox-port": "49999"}, Place(SANDBOX, 49999)),
        ({"e2b-sandbox-id": SANDBOX, "e2b-sandbox-port": "65536"}, None),
        ({"e2b-sandbox-id": SANDBOX, "e2b-sandbox-port": "08"}, None),
        ({"e2b-sandbox-id": SANDBOX, "e2b-sandbox-port": "-1"}, None),
        ({"e2b-sandbox-id": SANDBOX, "e2b-sandbox-port": "1 "}, None),
        ({"e2b-sandbox-id": "../x"}, None),
        ({"e2b-sandbox-id": "a-b"}, None),
        ({"e2b-sandbox-id": "A"}, None),
        ({"host": "8000-a2b3.localhost:3939"}, Place(SANDBOX, 8000, is_by_host=True)),
        ({"host": "8000-A2B3.LOCALHOST"}, Place(SANDBOX, 8000, is_by_host=True)),
        ({"host": "0-a2b3.localhost"}, None),
        ({"host": "08000-a2b3.localhost"}, None),
        ({"host": "65536-a2b3.localhost"}, None),
        ({"host": "8000-a2-b3.localhost"}, None),
        ({"host": "8000-a2b3"}, None),
        ({"host": "8000-a2b3."}, None),
        ({"host": "x8000-a2b3.localhost"}, None),
        ({"host": "8000-a2b3.local host"}, None),
        ({"host": "8000-a2b3.a/b"}, None),
        ({"host": "8000-a2b3.a\n"}, None),
        ({"host": "8000-" + "a" * 65 + ".b"}, None),
        # the host wins: it is what a browser cannot be talked into sending
        (
            {"host": "8000-a2b3.b", "e2b-sandbox-id": "other"},
            Place(SANDBOX, 8000, is_by_host=True),
        ),
    ],
)
def test_a_place_is_named_in_exactly_the_protocols_form(
    headers: dict[str, str], expected: Place | None
) -> None:
    assert place_of(headers) == expected


def test_with_a_domain_only_hosts_below_it_name_a_sandbox() -> None:
    inside = {"host": "8000-a2b3.boxes.example:443"}
    assert place_of(inside, "boxes.example") == Place(SANDBOX, 8000, is_by_host=True)
    assert place_of({"host": "8000-a2b3.other.example"}, "boxes.example") is None
    assert place_of({"host": "8000-a2b3.x.boxes.example"}, "boxes.example") is None


# -- keys and tokens ---------------------------------------------------------------------------


def ring(*tenants: str) -> tuple[KeyRing, list[str]]:
    keys = [new_key() for _ in tenants]
    records = [KeyRecord(digest_of(key), each) for key, each in zip(keys, tenants, strict=True)]
    return KeyRing(records), keys


def test_a_key_in_e2b_form_is_the_same_key() -> None:
    known, [key] = ring("acme")
    spelt = in_e2b_form(key)
    assert set(spelt.removeprefix("e2b_")) <= set("0123456789abcdef")
    assert known.find(spelt) == known.find(key)
    assert known.find(key) is not None


@pytest.mark.parametrize("guess", ["e2b_", "e2b_zz", "e2b_ff", "e2b_0", "e2b_" + "00" * 40])
def test_what_only_looks_like_e2b_form_is_no_key(guess: str) -> None:
    known, _ = ring("acme")
    assert known.find(guess) is None


def test_a_key_has_no_third_spelling() -> None:
    known, [key] = ring("acme")
    digits = key.encode().hex()
    assert spellings(key) == spellings(f"e2b_{digits}") == (key, f"e2b_{digits}")
    for third in (f"e2b_{digits.upper()}", f"e2b_ {digits}", f"E2B_{digits}"):
        assert known.find(third) is None


def test_a_token_opens_its_own_sandbox_for_its_own_kind_of_traffic() -> None:
    known, [key, _] = ring("acme", "other")
    tokens, caller = SandboxTokens(b"k" * 32, known), known.find(key)
    assert caller is not None
    sandbox = new_id()
    token = tokens.make("daemon", sandbox, caller)
    assert tokens.opened("daemon", token) == (sandbox, caller)
    assert tokens.opened("traffic", token) is None
    assert SandboxTokens(b"j" * 32, known).opened("daemon", token) is None
    assert tokens.opened("daemon", token.replace(sandbox, new_id())) is None
    assert tokens.opened("daemon", token[:-1] + ("0" if token[-1] != "0" else "1")) is None
    assert tokens.opened("daemon", "") is None


def test_a_token_ends_with_its_key_and_never_has_more_than_the_right_to_run() -> None:
    key = new_key()
    record = KeyRecord(digest_of(key), "acme", "admin")
    known = KeyRing([record])
    tokens = SandboxTokens(b"k" * 32, known)
    token = tokens.make("daemon", SANDBOX, record.principal)
    opened = tokens.opened("daemon", token)
    assert opened is not None
    assert opened[1].scope == "run"
    late = KeyRing([dataclasses.replace(record, expires_at=time.time() - 1)])
    assert SandboxTokens(b"k" * 32, late).opened("daemon", token) is None


def test_a_signature_finds_its_sandbox_among_all_and_only_for_what_was_signed() -> None:
    known, keys = ring("acme", "other")
    tokens = SandboxTokens(b"k" * 32, known)
    mine, others = new_id(), new_id()
    caller = known.find(keys[0])
    assert caller is not None
    all_ = [(others, "other"), (mine, "acme")]
    signature = Signed("/x", "read", "", "99").signature(tokens.make("daemon", mine, caller))
    assert tokens.signer(signature, Signed("/x", "read", "", "99"), all_) == (mine, caller)
    for other in (
        Signed("/y", "read", "", "99"),
        Signed("/x", "write", "", "99"),
        Signed("/x", "read", "root", "99"),
        Signed("/x", "read", "", "100"),
        Signed("/x", "read", "", None),
    ):
        assert tokens.signer(signature, other, all_) is None
    assert tokens.signer(signature, Signed("/x", "read", "", "99"), all_[:1]) is None


# -- network policies --------------------------------------------------------------------------

ALL = "0.0.0.0/0"


def _but(*denied: str) -> dict[str, object]:
    return {"mode": "open", "deny": [*denied]}


@pytest.mark.parametrize(
    ("internet", "allow", "deny", "expected"),
    [
        (None, None, None, None),
        (None, [], [], None),
        (True, None, None, "open"),
        (False, None, None, "none"),
        (None, None, [ALL], "none"),
        (None, ["example.org", "*.example.com", "192.0.2.1"], [ALL],
         ["example.org", "*.example.com", "192.0.2.1"]),
        (False, ["192.0.2.0/24"], None, ["192.0.2.0/24"]),
        (None, ["192.0.2.1"], None, "open"),
        (None, [ALL], [ALL], "open"),
        (None, ["example.org"], [ALL, "192.0.2.1"], ["example.org"]),
        (None, ["example.org"], ["1.2.3.4/0"], ["example.org"]),
        (False, [ALL], None, "open"),
        (None, None, ["8.8.8.8"], _but("8.8.8.8/32", "::/0")),
        (True, None, ["8.8.8.8/24", "8.8.9.0/24"], _but("8.8.8.0/23", "::/0")),
        (None, None, ["::ffff:8.8.8.8"], _but("8.8.8.8/32", "::/0")),
        (None, None, ["2001:db8::/32"], _but("2001:db8::/32")),
        (None, None, ["::/0"], _but("::/0")),
        (None, None, ["0.0.0.0/1", "128.0.0.0/1"], _but("0.0.0.0/1", "128.0.0.0/1", "::/0")),
        # What is allowed wins over what is denied.
        (None, ["8.8.8.8"], ["8.8.8.8"], "open"),
        (None, ["8.8.0.0/16"], ["8.8.8.0/24"], "open"),
        (None, ["8.8.8.1"], ["8.8.8.0/30"], _but("8.8.8.0/32", "8.8.8.2/31", "::/0")),
        (None, ["8.8.8.0", "8.8.8.3", "9.9.9.9", "8.8.7.255"], ["8.8.8.0/30"],
         _but("8.8.8.1/32", "8.8.8.2/32", "::/0")),
        (None, ["8.8.8.0/25", "8000::/1"], ["8.8.8.0/24"], _but("8.8.8.128/25", "::/1")),
        (None, [ALL], ["8.8.8.8"], "open"),
        (None, [ALL], [ALL, "2001:db8::/32"], _but("2001:db8::/32")),
    ],
)  # fmt: skip
def test_lists_become_a_policy_that_is_never_wider(
    internet: bool | None, allow: list[str] | None, deny: list[str] | None, expected: object
) -> None:
    found = policy_of(internet, allow, deny)
    assert found == expected
    NetworkPolicy.of(found)


@pytest.mark.parametrize(
    ("allow", "deny", "field"),
    [
        (["example.org"], None, "allowOut"),
        (["example.org"], ["192.0.2.1"], "allowOut"),
        (None, ["192.0.2.1", "example.org"], "denyOut"),
        ([f"8.{n}.8.8" for n in range(200)], ["8.0.0.0/8"], "denyOut"),
        (None, ["example.org"], "denyOut"),
        (None, ["example.org", ALL], "denyOut"),
    ],
)
def test_lists_that_no_policy_of_ours_can_say_are_refused(
    allow: list[str] | None, deny: list[str] | None, field: str
) -> None:
    with pytest.raises(HttpError, match=field) as raised:
        policy_of(None, allow, deny)
    assert raised.value.status == 400


def test_all_of_ipv6_is_not_everything() -> None:
    with pytest.raises(UsageError, match="every address"):
        NetworkPolicy.of(policy_of(None, ["::/0"], [ALL]))


# -- lists -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_hold_everything_once_in_order_also_at_equal_times(order: str) -> None:
    things = [(float(each // 3), str(each)) for each in range(10)]
    query, found = {"limit": "3", "order": order}, []
    while True:
        page, more = pages.page(things, lambda each: each, pages.Wanted.of(query))
        found += page
        if not more:
            break
        query["nextToken"] = more["x-next-token"]
    assert found == sorted(things, reverse=order == "desc")


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"limit": "²"}, {"limit": ""},
        {"limit": "000000001999"}, {"limit": "9" * 5000},
        {"order": "up"}, {"nextToken": "!"}, {"nextToken": ""}, {"nextToken": "bmFuLXg"},
        {"nextToken": "é"}, {"nextToken": "a" * 5000},
    ],
)  # fmt: skip
def test_a_page_that_cannot_be_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(HttpError) as raised:
        pages.Wanted.of(query)
    assert raised.value.status == 400


def test_a_metadata_filter_is_decoded_as_often_as_clients_encode_it() -> None:
    wanted = {"a x": "b&c", "plain": "1", "z": "ü=%"}
    sent = urlencode({quote(key): quote(value) for key, value in wanted.items()})
    assert metadata_of(unquote(quote(sent))) == wanted


def test_a_metadata_filter_that_is_too_long_is_refused() -> None:
    text = "&".join(f"k{number}=v" for number in range(64))
    assert len(metadata_of(text)) == 64
    with pytest.raises(HttpError, match="metadata") as raised:
        metadata_of(f"{text}&one=more")
    assert raised.value.status == 400


# -- releases of clients -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "is_warned"),
    [
        ("e2b-python-sdk/2.63.0", False),
        ("e2b-python-sdk/2.63.7", False),
        ("e2b-python-sdk/2.8.0 x", False),
        ("e2b-python-sdk/2.64.0", True),
        ("e2b-python-sdk/3.0.0", True),
        ("e2b-python-sdk/2.7.9", True),
        ("e2b-js-sdk/2.51.0", False),
        ("e2b-js-sdk/2.52.0", True),
        ("connectrpc/0.12.1", False),
        ("", False),
    ],
)
def test_a_client_outside_of_the_tested_range_is_told_so(agent: str, is_warned: bool) -> None:
    assert bool(Clients().headers(agent)) == is_warned


def test_the_log_is_told_of_each_release_once(caplog: pytest.LogCaptureFixture) -> None:
    clients = Clients()
    for _ in range(3):
        clients.headers("e2b-python-sdk/9.9.9")
    assert len(caplog.records) == 1


# -- snapshots and options ---------------------------------------------------------------------


def snapshot(name: str) -> Snapshot:
    return Snapshot("snapid", name, "python", 0.0, 1.0, 0, 0)


def test_a_snapshots_name_keeps_its_sandbox_and_its_clients_name() -> None:
    sandbox = new_id()
    named = Called.of(snapshot(kept_name(sandbox, "task:default")))
    assert (named.sandbox_id, named.name) == (sandbox, "task")
    assert named.is_called("task")
    unnamed = Called.of(snapshot(kept_name(sandbox, None)))
    assert (unnamed.sandbox_id, unnamed.name) == (sandbox, None)
    made_at = "1970-01-01T00:00:00.000Z"
    assert unnamed.as_json() == {"snapshotID": "snapid", "names": [], "createdAt": made_at}
    assert len(kept_name(sandbox, None)) <= 63
    on_node = new_id("a7c2")
    for name in (None, "a" * 28):
        assert len(kept_name(on_node, name)) <= 63
        assert Called.of(snapshot(kept_name(on_node, name))).sandbox_id == on_node
    with pytest.raises(CellwallError, match="1 to 28 letters"):
        kept_name(on_node, "a" * 29)
    assert Called.of(snapshot("of-another-door")).name == "of-another-door"


@pytest.mark.parametrize("name", ["a/b", "x:1", "a" * 32, "-x", "ü"])
def test_a_name_that_cannot_be_kept_is_refused(name: str) -> None:
    with pytest.raises(CellwallError):
        kept_name(new_id(), name)


@pytest.mark.parametrize(
    "given", [{"unknown": 1}, {"templates": ["x"]}, {"templates": {"a": 1}}, {"domain": 1}]
)
def test_an_option_that_the_door_does_not_have_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"doors\.e2b"):
        Options.of(given)


def test_templates_of_the_operator_are_beside_the_usual_ones() -> None:
    found = Options.of({"templates": {"mine": "task:1"}})
    assert cast("dict[str, str]", found.templates) == {
        "base": "python",
        "code-interpreter-v1": "data",
        "mine": "task:1",
    }

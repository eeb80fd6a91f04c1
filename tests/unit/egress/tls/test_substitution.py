"""A value goes into requests to its hosts in its places, and does not come back."""

from __future__ import annotations

import base64

import pytest

from cellwall.egress.tls.substitution import Fields, Search, Substitution
from cellwall.model.secret import PLACES, Secret

_VALUE = 'va/lue"of+the key='
_PLACEHOLDER = "placeholder-of-the-key"


def _secret(name: str = "KEY", places: tuple[str, ...] = PLACES) -> Secret:
    return Secret(name, _VALUE, hosts=["a.test"], places=places, placeholder=_PLACEHOLDER)


def _basic(text: str) -> bytes:
    return b"Basic " + base64.b64encode(text.encode())


def test_each_place_is_replaced_in_its_own_spelling() -> None:
    one = Substitution([_secret()], [])
    fields: Fields = [
        (b"Authorization", _basic(f"user:{_PLACEHOLDER}")),
        (b"X-Key", f"token {_PLACEHOLDER};".encode()),
    ]
    target, done = one.request(f"/{_PLACEHOLDER}?k={_PLACEHOLDER}&b=1".encode(), fields)
    assert target == f"/{_PLACEHOLDER}?k=va%2Flue%22of%2Bthe%20key%3D&b=1".encode()
    assert done[:2] == [
        (b"Authorization", _basic(f"user:{_VALUE}")),
        (b"X-Key", f"token {_VALUE};".encode()),
    ]
    assert one.used == {"KEY"}
    assert one.withheld == {"KEY"}  # of the path, which is no place


@pytest.mark.parametrize("place", PLACES)
def test_a_place_that_a_secret_does_not_name_keeps_the_placeholder(place: str) -> None:
    one = Substitution([_secret(places=tuple({*PLACES} - {place}))], [])
    value = _basic(f"u:{_PLACEHOLDER}") if place == "basic" else _PLACEHOLDER.encode()
    name = b"Authorization" if place == "basic" else b"X-Key"
    target = f"/?{_PLACEHOLDER}".encode() if place == "query" else b"/"
    fields = [] if place == "query" else [(name, value)]
    sent, done = one.request(target, fields)
    assert sent == target
    assert done[: len(fields)] == fields
    assert (one.used, one.withheld) == (set(), {"KEY"})


def test_what_says_where_a_request_goes_and_ends_is_not_replaced() -> None:
    one = Substitution([_secret()], [])
    fields: Fields = [(name, _PLACEHOLDER.encode()) for name in (b"Host", b"Content-Length")]
    assert one.request(b"/", fields)[1][:2] == fields


def test_another_servers_secret_is_withheld_and_noted() -> None:
    one = Substitution([], [_secret()])
    fields: Fields = [(b"Authorization", _basic(f"u:{_PLACEHOLDER}"))]
    assert one.request(b"/", fields) == (b"/", fields)
    assert (one.used, one.withheld, one.searches) == (set(), {"KEY"}, False)


def test_an_answer_that_is_searched_is_asked_for_as_it_is_and_whole() -> None:
    one = Substitution([_secret()], [])
    fields: Fields = [(b"accept-encoding", b"gzip"), (b"Range", b"bytes=0-1"), (b"A", b"b")]
    assert one.request(b"/", fields)[1] == [(b"A", b"b"), (b"Accept-Encoding", b"identity")]


def test_every_form_of_a_value_is_hidden_in_an_answer() -> None:
    one = Substitution([_secret()], [])
    one.request(b"/", [(b"Authorization", _basic(f"user:{_PLACEHOLDER}"))])
    for form in (
        _VALUE,
        'va/lue\\"of+the key=',
        "va%2Flue%22of%2Bthe%20key%3D",
        "va/lue%22of%2Bthe%20key%3D",
    ):
        assert one.hidden(f"<{form}>".encode()) == f"<{_PLACEHOLDER}>".encode()
    echoed = base64.b64encode(f"user:{_VALUE}".encode())
    assert one.hidden(echoed) == base64.b64encode(f"user:{_PLACEHOLDER}".encode())


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_a_value_that_comes_in_pieces_is_found(size: int) -> None:
    pairs = [(b"abcabd", b"######"), (b"cab", b"#")]
    text = b"abcabcabd-ca-abcabdab-abcab"
    search, found = Search(pairs), b""
    for start in range(0, len(text), size):
        found += search.feed(text[start : start + size])
        assert b"abcabd" not in found
    found += search.rest()
    assert b"abcabd" not in found
    if size == 100:
        assert found == b"abc######-ca-######ab-ab#"


def test_a_body_without_a_value_stays_as_it_is() -> None:
    search = Search([(b"value", b"other")])
    assert search.feed(b"no val") + search.feed(b"ue, va") + search.rest() == b"no other, va"
    plain = Search([(b"value", b"other")])
    assert plain.feed(b"va") == b""
    assert plain.feed(b"lid") + plain.rest() == b"valid"

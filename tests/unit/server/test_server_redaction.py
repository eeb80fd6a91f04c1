"""Secrets do not get past the sinks, in whatever form they travel."""

from __future__ import annotations

import base64
import json
import re
from urllib.parse import quote, quote_plus

import pytest

from cellwall.server.core.settings import ServerSettings
from cellwall.server.http.vocabulary import words_of
from cellwall.server.observability import redaction
from cellwall.server.observability.labels import Labels
from cellwall.server.observability.redaction import REDACTED, Redactor

SECRET = 's3cr3t/+ "ü" value=1'
RAW = SECRET.encode()


@pytest.fixture
def redactor() -> Redactor:
    made = Redactor()
    made.learn(SECRET, "alice")
    return made


FORMS = {
    "raw": SECRET,
    "percent": quote(SECRET, safe=""),
    "percent, slashes kept": quote(SECRET),
    "percent, lower case": re.sub("%..", lambda m: m[0].lower(), quote(SECRET, safe="")),
    "form": quote_plus(SECRET),
    "hex": RAW.hex(),
    "HEX": RAW.hex().upper(),
    "JSON": json.dumps(SECRET)[1:-1],
    "repr": repr(SECRET)[1:-1],
    "base64": base64.b64encode(RAW).decode(),
    "base64 for addresses": base64.urlsafe_b64encode(RAW).decode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_known_secret_is_taken_out_in_every_form(redactor: Redactor, form: str) -> None:
    for pad in ("", " ", "  "):  # wherever its beginning falls
        assert redactor.clean(f"{pad}x {FORMS[form]} y", "alice") == f"{pad}x {REDACTED} y"


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("after", range(3))
def test_base64_of_a_text_with_a_secret_in_it_is_useless(
    redactor: Redactor, before: int, after: int
) -> None:
    """As in `Authorization: Basic`, where a name stands before the password."""
    whole = base64.b64encode(b"u" * before + RAW + b"x" * after).decode()
    left = redactor.clean(whole, "alice").replace(REDACTED, "!")
    assert max(map(len, left.split("!"))) <= 4 + before
    assert len(whole) > 24


def test_base64_for_addresses_has_letters_of_its_own() -> None:
    secret = "ÿÿþû¿ÿ" * 3
    form = base64.urlsafe_b64encode(secret.encode()).decode()
    assert set("-_") & set(form), "else it is written as base64 is"
    redactor = Redactor()
    redactor.learn(secret, "alice")
    assert redactor.clean(f"x {form} y", "alice") == f"x {REDACTED} y"


def test_text_without_secrets_stays_as_it_is(redactor: Redactor) -> None:
    for text in (
        "request POST /sandboxes/{sandbox_id}/files 200 alice 4b5c6d7e8f90",
        "template build 5a7dd8c1e3b0 /home/user/.cache: no space left",
        "s3cr3t/+ and no more",
        "task-runner skipped 3 checks",
        "",
    ):
        assert redactor.clean(text, "alice") == text


@pytest.mark.parametrize(
    "shaped",
    [
        "cw_" + "aB3-_" * 8,
        "cws_" + "a2" * 13 + "_" + "0f" * 6 + "_" + "0f" * 32,
        "e2b_" + "0f" * 20,
        "sk-proj-" + "A1b2C3d4" * 4,
        "sk_" + "live_" + "A1b2C3d4" * 3,
        "ghp_" + "a1B2" * 9,
        "AKIA" + "ABCD1234" * 2,
        "xoxb-" + "123456789012-abcdef",
        "hf_" + "aBcD" * 8,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_what_has_the_shape_of_a_key_is_taken_out(shaped: str) -> None:
    assert Redactor().clean(f"it was {shaped}!") == f"it was {REDACTED}!"


def test_values_that_stand_where_secrets_stand_are_taken_out() -> None:
    clean = Redactor().clean
    assert clean("https://ada:hunter2@example.org/x") == f"https://{REDACTED}@example.org/x"
    assert clean("GET /signed/" + "Ab_9" * 10) == f"GET /signed/{REDACTED}"
    assert clean("GET /signed/a7c2." + "Ab_9" * 10) == f"GET /signed/{REDACTED}"
    assert clean("Authorization: Bearer abcdefgh12345") == f"Authorization: Bearer {REDACTED}"
    assert clean("?password=hunter2&x=1") == f"?password={REDACTED}&x=1"


def test_each_line_of_a_secret_is_one() -> None:
    redactor = Redactor()
    redactor.learn("first line of it\nsecond line of it\n", "alice")
    assert redactor.clean("got second line of it", "alice") == f"got {REDACTED}"


def test_names_and_nested_values_are_cleaned(redactor: Redactor) -> None:
    value = {"a": [SECRET, 1, None, {SECRET: (SECRET,)}], "b": True}
    cleaned = redactor.clean_all(value, "alice")
    assert cleaned == {"a": [REDACTED, 1, None, {REDACTED: [REDACTED]}], "b": True}


def test_adjacent_and_overlapping_secrets() -> None:
    redactor = Redactor()
    redactor.learn("abcdefghij", "a")
    redactor.learn("efghijklmn", "a")
    assert redactor.clean("x abcdefghijklmn y abcdefghijabcdefghij", "a") == (
        f"x {REDACTED} y {REDACTED}{REDACTED}"
    )


def test_text_seen_before_its_secret_was_one_is_looked_at_again() -> None:
    redactor = Redactor()
    text = "x correct horse battery y"
    assert redactor.clean(text, "alice") == text
    redactor.learn("correct horse battery", "alice")
    assert redactor.clean(text, "alice") == f"x {REDACTED} y"


def test_one_tenant_cannot_make_it_forget_anothers() -> None:
    redactor = Redactor(most_in_group=8)
    redactor.learn(SECRET, "alice")
    redactor.learn_all((f"flood-of-values-{i}" for i in range(100)), "mallory")
    assert redactor.clean(SECRET, "alice") == REDACTED
    assert redactor.clean("flood-of-values-99", "mallory") == REDACTED
    assert redactor.clean("flood-of-values-0", "mallory") == "flood-of-values-0"  # the bound is one


def test_it_keeps_no_secret() -> None:
    import pickle  # noqa: TID251 - reads every value an object holds, in a test

    redactor = Redactor()
    redactor.learn("correct horse battery", "alice")
    assert b"correct" not in pickle.dumps(vars(redactor))


# -- whose values they are -----------------------------------------------------------------------


def test_value_of_a_tenant_is_taken_out_of_its_own_texts_alone(redactor: Redactor) -> None:
    """Control: a key or token of ours is taken out of everybody's."""
    text = f"x {SECRET} y"
    assert redactor.clean(text, "alice") == f"x {REDACTED} y"
    assert [redactor.clean(text, whose) for whose in ("bob", None, "")] == [text] * 3
    assert redactor.clean(text, "alice") == f"x {REDACTED} y"  # also after it was harmless there
    redactor.learn_ours(SECRET, "keys")
    assert [redactor.clean(text, whose) for whose in ("bob", None)] == [f"x {REDACTED} y"] * 2


def test_tenant_cannot_be_called_as_our_own_groups_are() -> None:
    redactor = Redactor()
    for name in ("keys", "tokens", "ours", ""):
        redactor.learn("correct horse battery", name)
    assert redactor.clean("correct horse battery", "bob") == "correct horse battery"


def test_word_of_ours_is_no_secret() -> None:
    """Control: what only begins as one is."""
    redactor = Redactor()
    redactor.reserve(words_of(ServerSettings()))
    for word in ("sandbox:", "execution:", "wall_time", "/sandboxes/{sandbox_id}", "127.0.0.1",
                 "sandbox.delete", "javascript"):  # fmt: skip
        redactor.learn(word, "alice")
        assert redactor.clean(f"x {word} y", "alice") == f"x {word} y"
    redactor.learn("sandbox:my-own-secret", "alice")
    assert redactor.clean("sandbox:my-own-secret", "alice") == REDACTED


def test_label_of_a_metric_is_no_tenants_to_change() -> None:
    redactor = Redactor()
    redactor.learn_all(("my-template", "large-tier"), "mallory")
    shown = Labels(redactor)
    assert [shown("my-template"), shown("large-tier")] == ["my-template", "large-tier"]


def test_names_of_every_request_are_remembered_after_ids_of_thousands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redactor, seen = Redactor(), []

    class Shapes:
        def sub(self, _: str, text: str) -> str:
            seen.append(text)
            return text

    for number in range(3000):
        redactor.clean(f"request {number}")
    monkeypatch.setattr(redaction, "_SHAPES", Shapes())
    for _ in range(3):
        redactor.clean("a name of every request")
    assert seen == ["a name of every request"]

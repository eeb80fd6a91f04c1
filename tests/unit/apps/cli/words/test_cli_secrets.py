"""Secrets on the command line come from the environment, and no complaint repeats one."""

from __future__ import annotations

import pytest

from cellwall.apps.cli.words.secret_words import allowed_with, secrets_of_words
from cellwall.model.errors import UsageError

_VALUE = "the-value-that-no-message-has"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", _VALUE)


def test_a_secret_is_read_from_the_environment_and_its_hosts_are_allowed() -> None:
    (secret,) = secrets_of_words(["KEY=env:MY_KEY@a.test,b.test:8443"])
    assert (secret.name, secret.reveal()) == ("KEY", _VALUE)
    assert allowed_with(["c.test"], [secret]) == ["c.test", "a.test:443", "b.test:8443"]
    assert allowed_with(None, []) is None


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("KEY", "has no name"),
        (f"={_VALUE}", "has no name"),
        (f"KEY={_VALUE}", "not taken from the command line"),
        (f"KEY={_VALUE}@a.test", "not taken from the command line"),
        ("KEY=env:NO_SUCH_VARIABLE@a.test", "no such variable"),
        ("KEY=env:MY_KEY", "KEY has no host"),
        ("KEY=env:MY_KEY@", "KEY has no host"),
    ],
)
def test_other_words_are_refused_without_a_value(word: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        secrets_of_words([word])
    assert _VALUE not in str(caught.value) + str(caught.value.remedy)

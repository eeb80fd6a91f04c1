"""Contexts of the interpreter of E2B's door: what is remembered, and what is not."""

from __future__ import annotations

import pytest

from cellwall.apps.doors.e2b.interpreter import contexts as module
from cellwall.apps.doors.e2b.interpreter.contexts import Contexts, language_of
from cellwall.server.core.errors import HttpError


@pytest.mark.parametrize(
    ("given", "name"),
    [(None, "python"), ("JS", "javascript"), ("ts", "typescript"), ("r", "r"), ("cobol", "cobol")],
)
def test_a_language_has_the_name_that_cellwall_has(given: str | None, name: str) -> None:
    assert language_of(given) == name


def test_a_default_context_is_one_object_for_all_its_executions() -> None:
    contexts = Contexts()
    assert contexts.default("s", "python") is contexts.default("s", "python")
    assert contexts.default("s", "python") is not contexts.default("other", "python")


def test_words_that_are_no_language_fill_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_CONTEXTS", 2)
    contexts = Contexts()
    for at in range(10):
        contexts.default("s", f"word-{at}")
    contexts.default("s", "python")
    contexts.default("s", "bash")
    with pytest.raises(HttpError, match="2 contexts"):
        contexts.default("s", "r")

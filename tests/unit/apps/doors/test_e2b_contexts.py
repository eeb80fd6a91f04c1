"""The interpreter of E2B's door: contexts that are remembered, variables, and lines."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from cellwall.apps.doors.e2b.interpreter import contexts as module
from cellwall.apps.doors.e2b.interpreter import results, variables
from cellwall.apps.doors.e2b.interpreter.contexts import Context, Contexts, language_of
from cellwall.model.execution import Event
from cellwall.server.core.errors import HttpError

if TYPE_CHECKING:
    from cellwall.client.sandbox import AsyncSandbox


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


class _Sandbox:
    """A sandbox whose first cell never ends."""

    def __init__(self) -> None:
        self.cells: list[str] = []

    async def run(self, cell: str, *_: str) -> SimpleNamespace:
        self.cells.append(cell)
        if len(self.cells) == 1:
            await asyncio.Event().wait()
        return SimpleNamespace(ok=True)


def test_variables_are_set_back_for_a_client_that_leaves_while_they_are_set() -> None:
    sandbox = _Sandbox()

    async def run() -> None:
        context = Context("python", "python")
        given = variables.given(cast("AsyncSandbox", sandbox), context, {"A": "1"})
        entering = asyncio.ensure_future(given.__aenter__())
        await asyncio.sleep(0)
        assert len(sandbox.cells) == 1
        entering.cancel()
        await asyncio.gather(entering, return_exceptions=True)

    asyncio.run(run())
    assert "'_cw_env'] =" in sandbox.cells[0]
    assert [".pop('_cw_env')" in cell for cell in sandbox.cells] == [False, True]


def _strict(line: bytes) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(line, parse_constant=refuse)


def test_a_result_with_numbers_that_json_lacks_is_a_line_of_json() -> None:
    data = {"application/json": "[NaN, 1e999, 1.5]", results.CHART: '{"x": [-Infinity]}'}
    value = results.Reading().of(Event(1, "display", data=data))
    assert value is not None
    shown = _strict(results.line(value))
    assert (shown["json"], shown["chart"]) == ([None, None, 1.5], {"x": [None]})


@pytest.mark.parametrize("number", ["1", "NaN"])
def test_a_result_of_any_depth_is_a_line_of_json(number: str) -> None:
    for depth in (10, 400, 600, 100_000):
        data = {"application/json": "[" * depth + number + "]" * depth}
        value = results.Reading().of(Event(1, "display", data=data))
        assert value is not None
        assert _strict(results.line(value))["type"] == "result"

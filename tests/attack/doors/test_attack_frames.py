"""Frames that caller code sends to init itself, as its context does: what the host makes of them.

JSON is small as text and large as objects. The engine's own memory is the witness: it is this
process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cellwall import Execution, Verdict
from kit.arena import Arena, fresh_peak_kib, peak_kib

pytestmark = pytest.mark.attack

# `say`, with what init cannot tell from its context's own words; then an end without any other.
_RAW = """
import json, os, socket, struct
def say(header, body, times=1):
    for _ in range(times):
        line = socket.socket(socket.AF_UNIX)
        line.connect(display.__closure__[0].cell_contents._outbox._link._address)
        head = json.dumps(header).encode()
        line.sendall(struct.pack(">II", len(head), len(body)) + head + body)
        line.close()
shown = {"ev": "display", "kind": "display", "metadata": {}}
"""
_BUNDLES = 7
_PARTS = 340_000
_EMPTY = "[" + ",".join(["[]"] * _PARTS) + "]"
"""A megabyte, and 24 of them as objects."""
_MAY_GROW_KIB = 48 * 1024
"""One body as objects, while it is judged, and all of them as text."""


def _grown(work: Callable[[], Any]) -> tuple[Any, int]:
    before = fresh_peak_kib()
    return work(), peak_kib() - before


def _said(arena: Arena, code: str) -> tuple[Execution, int]:
    code = f"{_RAW}{code}\nos._exit(0)"
    found: tuple[Execution, int] = _grown(lambda: arena.run(code, timeout=20))
    return found


def test_control_objects_cost_many_times_their_text() -> None:
    _, growth = _grown(lambda: [json.loads(_EMPTY) for _ in range(_BUNDLES)])
    assert growth > 2 * _MAY_GROW_KIB


def test_control_bundles_of_text_are_taken(arena: Arena) -> None:
    body = "body = json.dumps({'text/html': '[],' * 340_000}).encode()\n"
    ended, growth = _said(arena, f"{body}say(shown, body, {_BUNDLES})")
    assert (ended.verdict, len(ended.results)) == (Verdict.OK, _BUNDLES), ended.outcome
    assert growth < _MAY_GROW_KIB


def test_bundle_of_objects_ends_the_sandbox_before_it_costs(arena: Arena) -> None:
    body = f"body = b'{{\"a\": [' + b'[],' * {_PARTS} + b'0]}}'\n"
    ended, growth = _said(arena, f"{body}say(shown, body, {_BUNDLES})")
    assert (ended.verdict, ended.results) == (Verdict.SANDBOX_ERROR, ()), ended.outcome
    assert "not an object of texts" in ended.outcome.notes[0]
    assert growth < _MAY_GROW_KIB


def test_bundle_of_thousands_of_forms_is_left_out(arena: Arena) -> None:
    body = "body = json.dumps({f'{n:x}': '' for n in range(70_000)}).encode()\n"
    ended, growth = _said(arena, f"{body}say(shown, body, {_BUNDLES})")
    assert len(ended.results) <= 1
    assert ended.outcome.truncated.display > 4 << 20, ended.outcome
    assert growth < _MAY_GROW_KIB


_VALUE = "depth = {}\nsay({{'ev': 'value'}}, b'[' * depth + b']' * depth)"


@pytest.mark.parametrize("depth", [201, 970])
def test_nested_value_ends_the_sandbox(arena: Arena, depth: int) -> None:
    ended, _ = _said(arena, _VALUE.format(depth))
    assert (ended.verdict, ended.result) == (Verdict.SANDBOX_ERROR, None), ended.outcome
    assert "not JSON: " in ended.outcome.notes[0]


def test_control_value_of_two_hundred_levels_is_taken(arena: Arena) -> None:
    ended, _ = _said(arena, _VALUE.format(200))
    assert ended.verdict is Verdict.OK, ended.outcome
    assert json.dumps(ended.result) == "[" * 200 + "]" * 200


_HONEST = """
class Deep:
    def _repr_mimebundle_(self):
        data = {"text/plain": "shown"}
        for _ in range(300): data = {"x": data}
        return {"text/plain": "shown", "application/json": data}, data
display(Deep())
result = []
for _ in range(300): result = [result]
"""


def test_nested_objects_that_are_meant_well_end_nothing(arena: Arena) -> None:
    """The guest keeps from the host what would be taken for an attack."""
    ended = arena.run(_HONEST)
    assert (ended.verdict, ended.text, ended.result) == (Verdict.OK, "shown", None), ended.outcome
    assert "nested deeper than 128 levels" in ended.outcome.notes[0]

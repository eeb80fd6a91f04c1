"""What a sandbox says of its variables is taken as far as a caller could have said it."""

from __future__ import annotations

import json

import pytest

from cellwall.jail.protocol.environment import MOST_BYTES
from cellwall.model.errors import SandboxBroken
from cellwall.runtimes.jail.stored.variables import _checked


def test_variables_are_taken() -> None:
    said = {"A": "1", "Ä": "x=y\n", "EMPTY": "", "BYTES": "\udcff"}
    assert _checked(json.dumps(said).encode()) == said


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[" * 100_000,
        b"\xff{}",
        b"[]",
        b'{"A": 1}',
        b'{"A": null}',
        b'{"": "x"}',
        b'{"A=B": "x"}',
        b'{"A": "x\\u0000y"}',
        b'{"A\\u0000": "x"}',
        b'{"A": "\\ud800"}',
        json.dumps({"A": "ä" * 30_000}, ensure_ascii=False).encode(),
        b'{"A": "x"}' + b" " * MOST_BYTES,
        json.dumps({"A": "x" * MOST_BYTES}).encode(),
    ],
    ids=lambda said: said[:20],
)
def test_what_no_caller_could_have_said_is_refused(said: bytes) -> None:
    with pytest.raises(SandboxBroken, match="its variables"):
        _checked(said)

"""What is left out of the suites behind a gateway is there, and says why."""

from __future__ import annotations

import re

import pytest

from kit.cluster.left_out import FAILS, OTHERS
from kit.places import ROOT

_ENTRIES = sorted({**FAILS, **OTHERS}.items())


@pytest.mark.parametrize(("name", "reason"), _ENTRIES)
def test_entry_names_what_there_is(name: str, reason: str) -> None:
    file, _, test = name.partition("::")
    path = ROOT / file
    assert path.exists(), "it is gone, or has moved"
    if test:
        function = test.partition("[")[0].rpartition("::")[2]
        assert re.search(rf"def {re.escape(function)}\b", path.read_text(encoding="utf-8"))
    assert len(reason) > 10


def test_entry_is_only_in_one_list() -> None:
    assert not [name for name in FAILS if name.startswith(tuple(OTHERS))]

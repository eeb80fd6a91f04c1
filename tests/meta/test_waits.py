"""Sleeps of unit tests are counted, and may only become fewer: what is waited for has a name.

An event, a future, loop time that the test moves (`kit.loop_clock`), a fact of the kernel
(`kit.waiting`). Sources of programs in text count as well; `sleep(0)` is no sleep.
"""

from __future__ import annotations

import re

import pytest

from kit.places import TESTS

UNIT = TESTS / "unit"
SLEEPS = re.compile(
    r"\b(?:time|asyncio)\.sleep\b(?!\(0[,)])|\bfrom (?:time|asyncio) import .*\bsleep"
)
MOST = 7
"""Four are on a loop whose time stands still, two are caller code that awaits between its cells,
one is a system call that the filter has to let pass. Lower it when there are fewer."""


def test_unit_tests_do_not_sleep() -> None:
    found = {
        str(path.relative_to(UNIT)): len(SLEEPS.findall(path.read_text(encoding="utf-8")))
        for path in UNIT.rglob("*.py")
    }
    assert len(found) > 100, "the tests were read"
    assert sum(found.values()) <= MOST, {name: n for name, n in found.items() if n}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("time.sleep(0.01)", 1),
        ("await asyncio.sleep(1)", 1),
        ('"import time; time.sleep(600)"', 1),
        ("Thread(target=time.sleep, args=(60,))", 1),
        ("from time import monotonic, sleep", 1),
        ("time.sleep(0.0)", 1),
        ("await asyncio.sleep(0)", 0),
        ("asyncio.sleep(0, 4)", 0),
        ("time.sleepless", 0),
    ],
)
def test_the_count_itself(text: str, count: int) -> None:
    assert len(SLEEPS.findall(text)) == count

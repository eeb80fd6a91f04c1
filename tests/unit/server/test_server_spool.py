"""Numbered events: no holes, no doubles, bounded memory, pressure on the source."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.model.execution import Event, ExecutionError
from cellwall.server.streaming.spool import HIGH_BYTES, Reader, Spool


def fill(spool: Spool, count: int, size: int = 10) -> None:
    for _ in range(count):
        spool.append(Event(spool.last + 1, "stdout", text="x" * size))


def numbers(reader: Reader) -> list[int | None]:
    found: list[int | None] = []
    while lines := reader.take():
        found += [line.seq for line in lines]
    return found


def test_reader_gets_every_event_once_in_order() -> None:
    spool = Spool(10**6)
    fill(spool, 3)
    reader = spool.reader()
    assert numbers(reader) == [1, 2, 3]
    fill(spool, 2)
    assert numbers(reader) == [4, 5]
    assert numbers(spool.reader(after=3)) == [4, 5]
    assert numbers(spool.reader(after=99)) == []


def test_what_is_gone_is_said() -> None:
    spool = Spool(5000)
    fill(spool, 100, 1000)
    line = spool.reader(after=2).take()[0]
    gap = json.loads(line.text)
    assert line.seq is None
    assert gap == {"type": "gap", "after": 2, "next": spool.first, "lost": spool.first - 3}
    assert spool.kept_bytes <= 5000


def test_attached_reader_loses_nothing_and_presses() -> None:
    spool = Spool(5000)
    pressure = [0]
    spool.on_pressure = lambda should_wait: pressure.append(int(should_wait))
    reader = spool.reader()
    fill(spool, 400, 1000)
    assert pressure[-1] == 1
    assert spool.first == 1
    assert numbers(reader) == list(range(1, 401))
    reader.passed()
    assert pressure[-1] == 0
    assert spool.kept_bytes <= 5000


def test_reader_that_never_comes_back_does_not_keep_everything() -> None:
    """The source is paused long before; what came through its pause is bounded here."""
    spool = Spool(5000)
    reader = spool.reader()
    fill(spool, 40, 1 << 20)
    assert 31 << 20 < spool.kept_bytes <= 32 << 20
    first, *_ = reader.take()
    assert json.loads(first.text)["lost"] == spool.first - 1


def test_reader_that_leaves_presses_no_more() -> None:
    spool = Spool(5000)
    pressure = [0]
    spool.on_pressure = lambda should_wait: pressure.append(int(should_wait))
    reader = spool.reader()
    fill(spool, HIGH_BYTES // 1000 + 10, 1000)
    assert pressure[-1] == 1
    reader.close()
    assert pressure[-1] == 0
    assert spool.kept_bytes <= 5000


def test_end_closes_and_wakes() -> None:
    async def scene() -> list[str]:
        spool = Spool(5000)
        reader = spool.reader()
        arrival = reader.arrival()
        spool.finish({"type": "end", "verdict": "cancelled", "outcome": None})
        spool.finish({"type": "end", "verdict": "again", "outcome": None})
        await asyncio.wait_for(arrival, 1)
        lines = [line.text for line in reader.take()]
        assert reader.is_over
        return lines

    (line,) = asyncio.run(scene())
    assert json.loads(line) == {"seq": 1, "type": "end", "verdict": "cancelled", "outcome": None}


def test_event_larger_than_the_cap_is_kept_until_the_next() -> None:
    spool = Spool(100)
    fill(spool, 1, 5000)
    assert numbers(spool.reader()) == [1]
    fill(spool, 1, 5)
    assert spool.first == 2


@given(
    steps=st.lists(st.one_of(st.integers(1, 3000), st.just(0)), max_size=60),
    cap=st.integers(300, 20_000),
    start=st.integers(0, 10),
)
def test_numbers_have_no_holes_but_the_ones_that_are_said(
    steps: list[int], cap: int, start: int
) -> None:
    spool = Spool(cap)
    reader: Reader | None = None
    expected = start + 1
    for step in steps:
        if step:
            fill(spool, 1, step)
        elif reader is None:
            reader = spool.reader(after=min(start, spool.last))
            expected = reader.position + 1
        else:
            for line in reader.take():
                if line.seq is None:
                    gap = json.loads(line.text)
                    assert gap["after"] + 1 == expected
                    assert gap["lost"] == gap["next"] - expected
                    expected = gap["next"]
                else:
                    assert line.seq == expected
                    expected += 1
    if reader is None:
        assert spool.kept_bytes <= max(cap, 3256)


@pytest.mark.parametrize("text", ["\n", "\r\n\r\n", "id: 1\n\n", "\u2028", "\x00"])
def test_lines_have_no_line_end_inside(text: str) -> None:
    spool = Spool(1000)
    spool.append(Event(1, "stdout", text=text))
    (line,) = spool.reader().take()
    assert "\n" not in line.text
    assert "\r" not in line.text
    assert json.loads(line.text)["text"] == text


def test_value_is_kept_as_text_and_counted() -> None:
    """As objects it would take 24 times as much: 24 MiB of a spool of one."""
    spool = Spool(10**6)
    value: list[list[object]] = [[] for _ in range(100_000)]
    held = weakref.ref(marked := _Marked())
    tracemalloc.start()
    spool.append(Event(1, "value", value=[*value, marked]))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del marked
    assert held() is None
    assert 300_000 < kept < 400_000
    assert 300_000 < spool.kept_bytes < 400_000
    (line,) = spool.reader().take()
    assert json.loads(line.text) == {"seq": 1, "type": "value", "value": [*value, []]}


class _Marked(list[object]):
    """A list that can be asked whether it is still there."""


@pytest.mark.parametrize(
    "event",
    [
        Event(1, "error", error=ExecutionError("x" * 10**6, "", "")),
        Event(1, "error", error=ExecutionError("", "x" * 10**6, "")),
        Event(1, "display", data={"x" * 10**6: ""}),
    ],
    ids=["name", "value", "type"],
)
def test_every_text_of_an_event_is_counted(event: Event) -> None:
    spool = Spool(10**6)
    spool.append(event)
    assert spool.kept_bytes > 10**6

"""Events beyond memory: written to the store while it runs, read again by number (L4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kit.server.crashes import ended, events, house, program, selected, submitted, wait_until

pytestmark = pytest.mark.timeout(240)  # servers are started several times in one test

MIB = 1024 * 1024
_LINES = "for n in range({count}):\n    print(f'{{n:07d}}' + 'x' * 993, flush=True)\n"


def _texts(found: list[dict[str, Any]]) -> str:
    return "".join(event["text"] for event in found if event["type"] == "stdout")


def _numbers(found: list[dict[str, Any]]) -> list[int]:
    return [event["seq"] for event in found if event["type"] != "gap"]


def _whole(count: int) -> str:
    return "".join(f"{n:07d}" + "x" * 993 + "\n" for n in range(count))


def test_what_memory_does_not_keep_is_read_from_the_store(tmp_path: Path) -> None:
    """While it runs, after its end, and after the end of the server."""
    count = 3000
    with house(tmp_path, spool_bytes=100_000) as made:
        server = made.start()
        client = server.client()
        code = program("a", _LINES.format(count=count) + "import time\ntime.sleep(5)")
        execution = submitted(client, code, limits={"output_kb": 65_536})
        wait_until(lambda: made.ledger == ["a"])
        live = events(client, execution)  # begins somewhere in the middle of it
        assert _numbers(live) == list(range(1, len(live) + 1))
        assert _texts(live) == "a\n" + _whole(count)
        assert events(client, execution) == live
        assert events(client, execution, after=live[-1]["seq"] // 2) == live[len(live) // 2 :]
        value = ended(client, execution)
        assert server.rss_bytes() < 400 * MIB
        made.kill(server)
        client = made.start().client()
        assert events(client, execution) == live
        assert ended(client, execution) == value


def test_what_no_place_is_left_for_is_one_gap_that_says_so(tmp_path: Path) -> None:
    count = 25_000
    # At a pace that a busy disk keeps: a slow store makes the gap begin earlier.
    lines = "import time\n" + _LINES.format(count=count) + "    n % 256 or time.sleep(0.02)\n"
    with house(tmp_path, spool_bytes=100_000) as made:
        client = made.start().client()
        code = program("a", lines)
        execution = submitted(client, code, limits={"output_kb": 65_536})
        ended(client, execution)
        found = events(client, execution)
        gaps = [event for event in found if event["type"] == "gap"]
        assert len(gaps) == 1
        gap = gaps[0]
        assert gap["lost"] == gap["next"] - gap["after"] - 1 > 0
        numbers = _numbers(found)
        lost = range(gap["after"] + 1, gap["next"])
        assert sorted([*numbers, *lost]) == list(range(1, numbers[-1] + 1))
        assert 13 * MIB < len(_texts(found)) < 17 * MIB
        made.kill(made.servers[-1])
        assert events(made.start().client(), execution) == found


def test_reader_that_stays_gets_everything_once(tmp_path: Path) -> None:
    """Its events pass through memory that is too small for them; the store has the early ones."""
    count = 3000
    with house(tmp_path, spool_bytes=20_000) as made:
        client = made.start().client()
        body = {"code": program("a", _LINES.format(count=count))}
        with client.stream(
            "POST", "/execute", json=body, headers={"Accept": "application/x-ndjson"}
        ) as answer:
            found = [json.loads(line) for line in answer.iter_lines()]
        assert _texts(found) == "a\n" + _whole(count)
        assert events(client, answer.headers["x-execution-id"]) == found


def test_events_of_a_run_that_was_cut_short_are_kept_to_where_they_were_written(
    tmp_path: Path,
) -> None:
    with house(tmp_path, spool_bytes=20_000) as made:
        server = made.start()
        client = server.client()
        # Slowly: all at once it is two events on a busy machine, and no chunk but one.
        lines = "import time\n" + _LINES.format(count=2000) + "    time.sleep(0.002)\n"
        execution = submitted(client, program("a", lines + "time.sleep(60)"))

        wait_until(lambda: len(selected(made.database, "SELECT first_seq FROM events")) > 1)
        made.kill(server)
        found = events(made.start().client(), execution)
        assert (found[-1]["type"], found[-1]["verdict"]) == ("end", "interrupted")
        assert _numbers(found) == list(range(1, len(found) + 1))
        assert ("a\n" + _whole(2000)).startswith(_texts(found))
        assert _texts(found)

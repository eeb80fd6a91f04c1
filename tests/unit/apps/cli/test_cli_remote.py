"""`cellwall sandbox` and `cellwall top` without a server: mistakes, help, what is drawn."""

from __future__ import annotations

import io
import socket
from typing import Any

import pytest

from cellwall.apps.cli.console.remote import duration, numbers, pairs
from cellwall.apps.cli.top import Picture, Row, drawn
from cellwall.model.errors import UsageError
from kit.command_line import start

KEY = "k" * 32


def test_every_command_has_an_example_in_its_help() -> None:
    for name in ("ls", "create", "exec", "shell", "cp", "rm", "logs"):
        done = start("sandbox", name, "--help")
        assert done.returncode == 0
        assert f"cellwall sandbox {name}" in done.stdout.partition("\n")[2], name
        assert "CELLWALL_URL" in done.stdout
    assert "  cellwall top --once --json\n" in start("top", "--help").stdout


def test_no_key_is_a_failure_of_ours_with_a_remedy() -> None:
    done = start("sandbox", "ls", CELLWALL_API_KEY="", CELLWALL_URL="")
    assert (done.returncode, done.stdout) == (125, "")
    assert "CELLWALL_API_KEY" in done.stderr


def test_no_server_is_a_failure_of_ours_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
    done = start("sandbox", "ls", "--url", address, CELLWALL_API_KEY=KEY)
    assert (done.returncode, done.stdout) == (125, "")
    assert address in done.stderr
    assert KEY not in done.stderr


@pytest.mark.parametrize("words", [("a", "b"), ("x:a", "y:b"), ("./x:a", "/tmp/b")])
def test_copy_needs_exactly_one_side_in_a_sandbox(words: tuple[str, str]) -> None:
    done = start("sandbox", "cp", *words, CELLWALL_API_KEY=KEY)
    assert done.returncode == 125
    assert "SANDBOX:PATH" in done.stderr


def test_shell_in_a_pipe_names_the_other_command() -> None:
    done = start("sandbox", "shell", "x", CELLWALL_API_KEY=KEY)
    assert done.returncode == 125
    assert "sandbox exec -i" in done.stderr


def test_names_and_values_are_taken_apart_once() -> None:
    assert pairs(["a=b=c", "d="], "--env") == {"a": "b=c", "d": ""}
    assert numbers(["processes=5", "cpus=0.5"], "--limit") == {"processes": 5, "cpus": 0.5}
    for wrong in (["a"], ["=b"]):
        with pytest.raises(UsageError, match="--env"):
            pairs(wrong, "--env")
    with pytest.raises(UsageError, match="number"):
        numbers(["cpus=many"], "--limit")


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-1, "0s"), (59.9, "59s"), (60, "1m"), (3599, "59m"), (11_400, "3h10m")]
)
def test_time_reads_as_people_say_it(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def picture(server: dict[str, Any] | None, *rows: Row) -> str:
    from rich.console import Console

    stats = {
        "version": "1", "uptime_s": 61, "sandboxes": len(rows), "snapshots": 2,
        "executions": 4, "server": server,
    }  # fmt: skip
    console = Console(file=io.StringIO(), width=160)
    console.print(drawn(Picture("http://there", stats, rows)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


ROW = Row("id1", "build", "python", 1.25, 0.5, 5 << 20, 64 << 20, 7, 2, 3, 90, "running")


def test_picture_has_a_line_for_each_sandbox() -> None:
    shown = picture(None, ROW)
    line = next(line for line in shown.splitlines() if "id1" in line)
    assert line.split() == [
        "id1",
        "build",
        "python",
        "50%",
        "1.2s",
        "5M/64M",
        "7",
        "2",
        "3",
        "1m",
    ]
    assert "yours: 1 sandboxes, 2 snapshots, 4 executions" in shown
    assert "server:" not in shown


def test_picture_shows_the_servers_numbers_to_who_may_see_them() -> None:
    server = {
        "requests": 9, "runs": 8, "running": 1, "queued": 2, "sandboxes": 3,
        "paused": 2, "hibernated": 6,
        "pool": {"parked": 4, "starting": 0},
        "copies": {
            "forks": 5, "restores": 6, "hibernations": 4, "refused": {"conflict": 7, "quota": 1},
            "snapshots": 9, "snapshots_bytes": 10 << 20,
        },
    }  # fmt: skip
    shown = picture(server)
    assert "copies: 5 forks, 6 restores, 4 hibernations, 8 refused   snapshots: 9 kept" in shown
    assert "server: 3 sandboxes, 2 paused, 6 hibernated, 1 running, 2 queued, 9 requests" in shown


def test_names_are_data_on_the_screen() -> None:
    from dataclasses import replace

    shown = picture(None, replace(ROW, name="[red]\x1b[31m"))
    assert "\x1b" not in shown
    assert "[red]^[[31m" in shown.replace("\n", "")

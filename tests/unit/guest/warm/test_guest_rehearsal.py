"""Promises of what a fork-server builds before it forks: nothing of the rehearsal stays behind."""

from __future__ import annotations

import atexit
import dis
import errno
import gc
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cellwall.guest.context import main as context
from cellwall.guest.context import program
from cellwall.guest.init import main as init
from cellwall.guest.init.execution import Execution
from cellwall.guest.process.processes import Exit
from cellwall.guest.warm import preload, single_program, warmup_runs
from kit.guest.guest_host import Host
from kit.jail.forked import answer


def _state() -> dict[str, Any]:
    """What a rehearsal takes from its process for a while."""
    names = os.listdir("/proc/self/fd")
    return {
        # The listing's own is gone by the time it is looked for.
        "descriptors": sorted(name for name in names if os.path.lexists(f"/proc/self/fd/{name}")),
        "streams": [os.readlink(f"/proc/self/fd/{number}") for number in range(3)],
        "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "exits": atexit._ncallbacks(),
        "frozen": gc.get_freeze_count(),
        "is_main_thread_alive": threading.main_thread().is_alive(),
        "exit": str(os._exit),
        "directory": os.getcwd(),
        "environment": dict(os.environ),
    }


def _rehearse() -> None:
    context.prepare()
    warmup_runs.rehearse_link()
    _rehearse_program()
    warmup_runs.rehearse(lambda: init.Init(context.main))


def _rehearse_program() -> None:
    with preload.untouched_interpreter():
        warmup_runs.rehearse_program(single_program.main)


def _is_learnt(function: Callable[..., Any]) -> bool:
    """Whether CPython has specialised code of it (`dis`, 3.11)."""
    plain = [each.opname for each in dis.get_instructions(function)]
    learnt = [each.opname for each in dis.get_instructions(function, adaptive=True)]
    return any("LOAD_" in now and now != then for then, now in zip(plain, learnt, strict=True))


def _children() -> str:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as listing:
        return listing.read()


def test_rehearsal_changes_nothing_of_its_process() -> None:
    def before_and_after() -> list[dict[str, Any]]:
        context.prepare()  # it chooses matplotlib's backend, for good
        gc.collect()  # what earlier tests left open is closed now, not in between
        before = _state()
        _rehearse()
        return [before, _state()]

    before, after = answer(before_and_after)
    assert before == after


def test_rehearsal_reaps_every_context_it_forked() -> None:
    def left() -> str:
        _rehearse()
        return _children()

    assert answer(left) == ""


def test_rehearsal_runs_a_program_to_its_end_in_every_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: one that ended early would leave nothing behind either."""
    codes: list[int | None] = []
    finish = Execution.finish

    def note(self: Execution, end: Exit | None, remains: int = 0) -> None:
        codes.append(end.exit_code if end else None)
        finish(self, end, remains)

    def run() -> list[int | None]:
        monkeypatch.setattr(Execution, "finish", note)
        _rehearse()
        return codes

    assert answer(run) == [0] * warmup_runs.ROUNDS


def test_rehearsed_program_is_known_by_heart_in_this_very_process() -> None:
    """Else each fork begins to learn it, in pages of its own."""
    path = (
        *(single_program.main, context.main, context._Context.begin, context._Context.serve),
        *(context._Context._wait_for_work, program.run, program.prepare_main, program._leave),
        *(program._flush_files, program._clear),
    )

    def before_and_after() -> list[list[bool]]:
        context.prepare()
        before = [_is_learnt(each) for each in path]
        _rehearse_program()
        return [before, [_is_learnt(each) for each in path]]

    before, after = answer(before_and_after)
    assert not all(before)
    assert all(after)


def test_rehearsed_program_says_nothing_here(capfd: pytest.CaptureFixture[str]) -> None:
    answer(_rehearse_program)
    assert capfd.readouterr() == ("", "")


def test_prepared_init_serves_like_a_fresh_one(tmp_path: Path) -> None:
    def run() -> list[Any]:
        context.prepare()
        init.prepare()
        host = Host(tmp_path, ("main",))
        try:
            number = host.send("execute", b"import sys\nprint(sys.stdin.read(), 1)", context="main")
            events = host.events(number)
        finally:
            host.close()
        printed = b"".join(body for header, body in events if header["ev"] == "stdout")
        return [printed.decode(), events[-1][0]["exit_code"], os.path.basename(host.home)]

    assert answer(run) == [" 1\n", 0, tmp_path.name]


def test_prepared_streams_know_a_pipe_from_a_file(tmp_path: Path) -> None:
    def run() -> str:
        context.prepare()
        init.prepare()
        host = Host(tmp_path, ("main",))
        try:
            source = b"import sys\nprint(sys.stdout.seekable(), sys.stdout.fileno())"
            events = host.events(host.send("execute", source, context="main"))
        finally:
            host.close()
        return b"".join(body for header, body in events if header["ev"] == "stdout").decode()

    assert answer(run) == "False 1\n"


@pytest.mark.parametrize(("number", "wanted"), [(signal.SIGKILL, True), (signal.SIGABRT, False)])
def test_a_rehearsal_whose_context_is_killed_says_that_somebody_did_it(
    number: int, wanted: bool
) -> None:
    """Else the host would be told to lack something, and would be refused from then on."""

    def ended(*_: Any) -> None:
        os.kill(os.getpid(), number)

    def is_others() -> bool:
        context.prepare()
        try:
            warmup_runs.rehearse(lambda: init.Init(ended))
        except ProcessLookupError as error:
            return error.errno == errno.ESRCH
        except RuntimeError:
            return False
        raise AssertionError("it was not noticed")

    assert answer(is_others) == wanted

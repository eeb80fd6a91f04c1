"""Evidence to verdict, as a table; the order of the rules is what is tested."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from cellwall.engine.attempts import verdicts
from cellwall.engine.attempts.recorder import Recorder
from cellwall.engine.attempts.verdicts import Cause, Evidence, classify
from cellwall.guest.channel import outbox
from cellwall.guest.display import display
from cellwall.model.limits import Limits
from cellwall.model.outcome import Truncated, Verdict

BASE = Evidence(limits=Limits())

TABLE: list[tuple[str, dict[str, object], Verdict]] = [
    ("nothing wrong", {"exit_code": 0}, Verdict.OK),
    ("living context", {}, Verdict.OK),
    ("exit 1", {"exit_code": 1}, Verdict.NONZERO_EXIT),
    ("exit 137 is no limit", {"exit_code": 137}, Verdict.NONZERO_EXIT),
    ("exit 124 is no limit", {"exit_code": 124}, Verdict.NONZERO_EXIT),
    ("raised", {"raised": True, "exit_code": 1}, Verdict.EXCEPTION),
    ("SIGKILL alone is no limit", {"signal": 9}, Verdict.SIGNALLED),
    ("unknown signal", {"signal": 200}, Verdict.SIGNALLED),
    ("OOM kill", {"signal": 9, "oom_kills": 1}, Verdict.MEMORY),
    ("OOM kill of a helper, wall", {"cause": Cause.WALL, "oom_kills": 1}, Verdict.MEMORY),
    ("OOM kill, then clean end", {"exit_code": 0, "oom_kills": 1}, Verdict.MEMORY),
    ("hostile before everything", {"cause": Cause.HOSTILE, "oom_kills": 1}, Verdict.SANDBOX_ERROR),
    ("wall", {"cause": Cause.WALL}, Verdict.WALL_TIME),
    ("wall, also raised", {"cause": Cause.WALL, "raised": True}, Verdict.WALL_TIME),
    ("cpu", {"cause": Cause.CPU, "signal": 9}, Verdict.CPU_TIME),
    ("cancelled", {"cause": Cause.CANCEL}, Verdict.CANCELLED),
    ("lost", {"cause": Cause.LOST}, Verdict.SANDBOX_ERROR),
    ("lost by OOM", {"cause": Cause.LOST, "oom_kills": 2}, Verdict.MEMORY),
    ("lost by processes", {"cause": Cause.LOST, "processes_refused": 1}, Verdict.PROCESSES),
    ("fork refused, failed", {"raised": True, "processes_refused": 3}, Verdict.PROCESSES),
    ("fork refused, went on well", {"exit_code": 0, "processes_refused": 3}, Verdict.OK),
    ("disk full, failed", {"exit_code": 1, "disk_full": True}, Verdict.DISK),
    ("disk full, went on well", {"exit_code": 0, "disk_full": True}, Verdict.OK),
    ("SIGXFSZ", {"signal": 25}, Verdict.DISK),
    ("SIGSYS", {"signal": 31}, Verdict.SYSCALL),
    ("SIGXCPU with the time used", {"signal": 24, "cpu_s": 30.0}, Verdict.CPU_TIME),
    ("SIGXCPU raised by itself", {"signal": 24, "cpu_s": 0.1}, Verdict.SIGNALLED),
    ("interrupted", {"interrupted": True, "raised": True}, Verdict.INTERRUPTED),
    ("output cut", {"exit_code": 0, "cut": Truncated(stdout=1)}, Verdict.OUTPUT),
    ("output cut and failed", {"exit_code": 2, "cut": Truncated(1)}, Verdict.NONZERO_EXIT),
]


@pytest.mark.parametrize(("case", "facts", "verdict"), TABLE, ids=[row[0] for row in TABLE])
def test_classify_follows_the_evidence(
    case: str, facts: dict[str, object], verdict: Verdict
) -> None:
    assert classify(dataclasses.replace(BASE, **facts))[0] is verdict, case  # type: ignore[arg-type]


def test_every_limit_names_its_remedy() -> None:
    for _, facts, verdict in TABLE:
        notes = classify(dataclasses.replace(BASE, **facts))[1]  # type: ignore[arg-type]
        if verdict in (Verdict.WALL_TIME, Verdict.MEMORY, Verdict.PROCESSES, Verdict.OUTPUT):
            assert "limits." in notes[0]


@pytest.mark.parametrize(
    ("cut", "said", "unsaid"),
    [
        (Truncated(stderr=1), "per stream", "displays"),
        (Truncated(display=1), "displays were cut", "stream"),
    ],
)
def test_what_was_cut_names_its_own_bound(cut: Truncated, said: str, unsaid: str) -> None:
    """Displays share one budget, which no limit raises."""
    notes = classify(dataclasses.replace(BASE, exit_code=0, cut=cut))[1]
    assert said in notes[0]
    assert unsaid not in notes[0]


def test_both_kinds_of_cut_are_told() -> None:
    cut = Truncated(stdout=1, display=1)
    (note,) = classify(dataclasses.replace(BASE, exit_code=0, cut=cut))[1]
    assert "per stream" in note
    assert "displays were cut" in note


def test_display_bounds_are_the_guests() -> None:
    assert outbox.MAX_BODY_BYTES == verdicts.ONE_DISPLAY_MB << 20
    assert display.DEFAULT_DISPLAY_BYTES == verdicts.DISPLAYS_MB << 20


def test_displays_above_what_is_kept_are_counted_not_kept() -> None:
    """The guest's bound is lower; this one holds where the guest is somebody else's."""
    body = b'{"text/plain": "' + b"x" * (1 << 20) + b'"}'

    async def record() -> Recorder:
        recorder = Recorder(Limits(), None)
        for _ in range(20):
            recorder.on_frame("display", {"kind": "display"}, body)
        return recorder

    recorder = asyncio.run(record())
    assert len(recorder.results) == 15
    assert recorder.truncated.display == 5 * len(body)


@pytest.mark.parametrize(("peak_mb", "verdict"), [(64, Verdict.MEMORY), (63, Verdict.EXCEPTION)])
def test_softly_held_memory_is_named_by_the_largest_process(peak_mb: int, verdict: Verdict) -> None:
    """Its own rlimit may stop a process before the watchdog has looked."""
    limits = Limits(memory_mb=64)
    evidence = Evidence(limits=limits, raised=True, exit_code=1, softly_held_bytes=peak_mb << 20)
    assert classify(evidence)[0] is verdict

"""What a model is told: every verdict, every form, every budget."""

from __future__ import annotations

import base64
import struct
import time
from typing import Any

import pytest

from cellwall.model import advice
from cellwall.model.errors import CapacityError, NodeLost, NodeUnreachable, NotFound, UsageError
from cellwall.model.excerpts import cut_middle, plain, shares
from cellwall.model.execution import CommandResult, Execution, ExecutionError
from cellwall.model.for_model import (
    LEAST_BUDGET_CHARS,
    NOTHING_SHOWN,
    error_for_model,
    left_out,
)
from cellwall.model.limits import Limits
from cellwall.model.outcome import Isolation, IsolationLevel, Outcome, Truncated, Usage, Verdict
from cellwall.model.readable import html_text
from cellwall.model.tables import as_markdown

ISOLATION = Isolation("jail", IsolationLevel.NAMESPACE, "")
NOT_OK = [verdict for verdict in Verdict if verdict is not Verdict.OK]
LIMIT_OF = {
    Verdict.WALL_TIME: "wall_s = 30",
    Verdict.CPU_TIME: "cpu_s = 30",
    Verdict.MEMORY: "memory_mb = 512",
    Verdict.PROCESSES: "processes = 100",
    Verdict.DISK: "disk_mb = 256",
    Verdict.OUTPUT: "output_kb = 1024",
}
FRAME = """<div><style scoped>.dataframe { color: red }</style><table border="1" class="dataframe">
<thead><tr style="text-align: right;"><th></th><th>a</th><th>b</th></tr></thead>
<tbody><tr><th>0</th><td>1</td><td>x|y &lt;z&gt;</td></tr></tbody></table>
<p>1 rows &times; 2 columns</p></div>"""


def an_execution(verdict: Verdict = Verdict.OK, **changes: Any) -> Execution:
    notes = changes.pop("notes", ())
    cut = changes.pop("truncated", Truncated())
    outcome = Outcome(
        verdict, ISOLATION, usage=Usage(1.5, 0.5, 1 << 26), truncated=cut, notes=notes
    )
    fields: dict[str, Any] = {"stdout": "", "stderr": "", **changes}
    return Execution("id", "python", outcome=outcome, limits=Limits(), **fields)


def test_a_compilers_words_are_called_so() -> None:
    error = ExecutionError("CompileError", "no", "main.c:1: error: no", 1)
    said = an_execution(Verdict.COMPILE_ERROR, error=error).for_model()
    assert said.startswith("The compiler said:\nmain.c:1: error: no\n\n[compile_error] ")


@pytest.mark.parametrize("verdict", NOT_OK)
def test_every_verdict_says_what_happened_and_what_to_try(verdict: Verdict) -> None:
    said = an_execution(verdict, stdout="partial").for_model()
    assert said.startswith("partial\n\n[" + verdict.value + "] ")
    assert "Used: 1.50 s, 0.50 s of CPU, 64 MiB at most. Next: " in said
    assert said.endswith((".", ".)"))


@pytest.mark.parametrize("verdict", NOT_OK)
def test_every_verdict_names_its_limit_if_it_has_one(verdict: Verdict) -> None:
    said = an_execution(verdict).for_model()
    assert LIMIT_OF.get(verdict, "") in said
    assert ("Limit:" in said) == (verdict in LIMIT_OF)


@pytest.mark.parametrize("verdict", NOT_OK)
def test_a_command_is_told_the_same_way(verdict: Verdict) -> None:
    execution = an_execution(verdict, stderr="why")
    said = CommandResult("out", "why", execution.outcome).for_model()
    assert said.startswith("out\n\nstderr:\nwhy\n\n[" + verdict.value + "] ")
    assert "Next: " in said


def test_the_advice_differs_between_verdicts() -> None:
    steps = {advice.next_step(verdict, None, None) for verdict in NOT_OK}
    assert len(steps) == len(NOT_OK)


def test_notes_of_the_outcome_are_what_happened() -> None:
    said = an_execution(Verdict.MEMORY, notes=("2 of its processes had to be killed",)).for_model()
    assert "[memory] 2 of its processes had to be killed. Limit: memory_mb = 512." in said


def test_a_good_end_is_only_what_was_printed() -> None:
    assert an_execution(stdout="42\n").for_model() == "42"


def test_a_note_on_a_good_end_is_passed_on() -> None:
    said = an_execution(stdout="42\n", notes=("context 'main' had ended",)).for_model()
    assert said == "42\n\n[note: context 'main' had ended]"


def test_nothing_shown_is_said() -> None:
    assert an_execution().for_model() == NOTHING_SHOWN


@pytest.mark.parametrize("name", ["ModuleNotFoundError", "FileNotFoundError", "socket.gaierror"])
def test_an_exception_with_a_known_remedy_gets_it(name: str) -> None:
    known = ExecutionError(name, "x", f"Traceback\n{name}: x")
    other = ExecutionError("ValueError", "x", "Traceback\nValueError: x")
    said = an_execution(Verdict.EXCEPTION, error=known).for_model()
    assert f"[exception] it raised {name}." in said
    assert (
        said.rpartition("Next: ")[2]
        != (an_execution(Verdict.EXCEPTION, error=other).for_model().rpartition("Next: ")[2])
    )


def test_a_traceback_is_said_once() -> None:
    trace = "Traceback (most recent call last):\nValueError: 7\n"
    error = ExecutionError("ValueError", "7", trace)
    said = an_execution(Verdict.EXCEPTION, stderr="careful\n" + trace, error=error).for_model()
    assert said.count("ValueError: 7") == 1
    assert said.startswith("stderr:\ncareful\n\nTraceback:\nTraceback (most")


def test_a_data_frame_is_a_markdown_table() -> None:
    bundle = {"text/plain": "   a b", "text/html": FRAME}
    assert an_execution(results=(bundle,)).for_model() == (
        "|  | a | b |\n| --- | --- | --- |\n| 0 | 1 | x\\|y <z> |\n\n1 rows × 2 columns"
    )


@pytest.mark.parametrize(
    "html",
    [
        "<b>no table</b>",
        "<table><tr><td colspan='2'>1</td></tr></table>",
        "<table><tr><td rowspan=3>1</td></tr></table>",
        "<table><tr><td><table></table></td></tr></table>",
        "<table></table>",
        "<table><td>1</td></table>",
        "<table><tr>" + "<td></td>" * 101 + "</tr></table>",
        "<table>" + " " * 300_000,
    ],
)
def test_what_is_no_plain_table_stays_plain_text(html: str) -> None:
    assert as_markdown(html) is None
    bundle = {"text/plain": "plain", "text/html": html}
    assert an_execution(results=(bundle,)).for_model() == "plain"


@pytest.mark.parametrize("piece", ["<", "<!--", "<a ", "<td>", "&", "<tr", "</p>", "<p><td>"])
def test_hostile_html_takes_linear_time(piece: str) -> None:
    html = "<table>" + piece * (255_000 // len(piece))
    began = time.process_time()
    as_markdown(html)
    assert time.process_time() - began < 5


def test_images_are_described_and_numbered() -> None:
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480)
    png = base64.b64encode(head + b"x" * 2048).decode()
    bundles = ({"image/png": png, "text/plain": "<Figure>"}, {"image/svg+xml": "<svg/>"})
    assert an_execution(results=bundles).for_model() == (
        "[image 1: PNG, 640x480 pixels, 2.0 KiB; <Figure>]\n\n[image 2: SVG, 6 bytes]"
    )


def test_a_broken_image_is_still_described() -> None:
    said = an_execution(results=({"image/png": "%%%not base64"},)).for_model()
    assert said == "[image 1: PNG, 9 bytes]"


def test_value_and_files_are_named() -> None:
    said = an_execution(result={"a": [1]}, files={"out.csv": b"x" * 2048}).for_model()
    assert said == 'Value:\n{"a": [1]}\n\nFiles:\nout.csv (2.0 KiB)'


@pytest.mark.parametrize("budget", [2_000, 2_001, 5_000, 20_000, 100_000])
@pytest.mark.parametrize("verdict", [Verdict.OK, Verdict.EXCEPTION, Verdict.SANDBOX_ERROR])
def test_no_answer_is_longer_than_its_budget(budget: int, verdict: Verdict) -> None:
    long = "x" * 70 + "\n"
    execution = an_execution(
        verdict,
        stdout=long * 3_000,
        stderr=long * 3_000,
        results=tuple({"text/plain": long * 50} for _ in range(40)),
        result=["y" * 90_000],
        error=ExecutionError("E" * 9_000, "v", long * 1_000),
        files={f"{'f' * 2_000}{n}": b"" for n in range(500)},
        notes=("n" * 5_000,) * 5,
    )
    said = execution.for_model(budget)
    assert budget * 0.8 < len(said) <= budget
    assert verdict is Verdict.OK or f"[{verdict.value}]" in said
    assert verdict is Verdict.OK or "Next: " in said
    assert said.count("left out here") == 6


def test_a_short_part_leaves_its_room_to_a_long_one() -> None:
    execution = an_execution(stdout="x" * 50_000, stderr="short")
    said = execution.for_model(10_000)
    assert len(said) > 9_500
    assert "stderr:\nshort" in said
    assert set(left_out(execution, 10_000)) == {"stdout"}


def test_what_is_cut_is_the_middle_and_is_counted() -> None:
    text = "".join(f"line {number}\n" for number in range(10_000))
    said = an_execution(stdout=text).for_model(4_000, {"stdout": "/home/user/all.txt"})
    head, _, rest = said.partition("\n[... ")
    note, _, tail = rest.partition(" ...]\n")
    assert head.startswith("line 0\nline 1\n")
    assert tail.endswith("line 9998\nline 9999")
    counted = int(note.partition(" characters")[0].replace(",", ""))
    assert len(head) + counted + len(tail) == len(text.strip("\n"))
    assert note.endswith("left out here; all of it is in /home/user/all.txt")


def test_nothing_is_left_out_of_what_fits() -> None:
    execution = an_execution(stdout="x" * 19_000)
    assert left_out(execution) == {}
    assert "left out" not in execution.for_model()


@pytest.mark.parametrize("budget", [0, LEAST_BUDGET_CHARS - 1, True, 2_000.0, "many"])
def test_a_budget_that_cannot_be_is_refused(budget: Any) -> None:
    with pytest.raises(UsageError, match="budget_chars"):
        an_execution().for_model(budget)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x07link\x1b]8;;\x07", "link"),
        (" 10%\r 50%\r100%\ndone", "100%\ndone"),
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        ("a\x00\x08b\x7f", "ab"),
        ("tab\tnew\n", "tab\tnew\n"),
    ],
)
def test_text_is_as_a_terminal_would_leave_it(raw: str, expected: str) -> None:
    assert plain(raw) == expected


@pytest.mark.parametrize("budget", range(0, 400, 7))
def test_a_cut_keeps_its_budget_whatever_it_is(budget: int) -> None:
    assert len(cut_middle("word " * 1_000, budget, "/a/file")) <= budget
    assert len(cut_middle("line\n" * 1_000, budget)) <= budget


def test_shares_are_fair_and_whole() -> None:
    assert shares({"a": 10, "b": 1_000, "c": 1_000}, 210) == {"a": 10, "b": 100, "c": 100}
    assert shares({"a": 10, "b": 20}, 100) == {"a": 10, "b": 20}
    assert shares({}, 100) == {}
    assert shares({"a": 5}, -3) == {"a": 0}


def test_our_own_errors_carry_their_remedy() -> None:
    said = error_for_model(NotFound("sandbox 'x': there is none", remedy="create one"))
    assert said == "Not done: sandbox 'x': there is none. Next: create one."
    full = error_for_model(CapacityError("full", retry_after_s=3, remedy="wait"))
    assert full.endswith("There may be room again in 3 s.")


def test_a_foreign_error_is_not_repeated() -> None:
    assert "secret" not in error_for_model(RuntimeError("/etc/secret"))


_OPAQUE = "<IPython.core.display.JSON object>"


@pytest.mark.parametrize(
    ("bundle", "said"),
    [
        ({"text/plain": _OPAQUE, "application/json": '{"answer": 42}'}, '{"answer": 42}'),
        ({"text/plain": "<a.Latex object>", "text/latex": "$x^2$"}, "$x^2$"),
        ({"text/plain": "<a.Point at 0x7f1>", "application/geo+json": "{}"}, "{}"),
        ({"text/plain": "[1]", "application/json": "[1, 2]"}, "[1]"),
        ({"text/plain": "x**2", "text/latex": "$x^2$"}, "x**2"),
        ({"text/plain": "<a.Markdown object>", "text/markdown": "**a**"}, "**a**"),
        ({"text/plain": "<a.Script object>", "application/javascript": "1"}, "<a.Script object>"),
        ({"text/plain": "<a.B object at 0x7f1>"}, "<a.B object at 0x7f1>"),
        ({"application/pdf": "JVBE"}, "[application/pdf]"),
    ],
)
def test_a_display_is_said_in_the_form_that_says_most(bundle: dict[str, str], said: str) -> None:
    assert an_execution(results=(bundle,)).for_model() == said


@pytest.mark.parametrize(
    ("html", "said"),
    [
        ("<h1>A &amp; B</h1><p>one <b>two</b>\nthree</p>", "A & B\none two three"),
        ("<ul><li>1<li>2</ul>", "1\n2"),
        ("<style>x { }</style><script>if (a<b) c()</script>seen", "seen"),
        ("<script>never ended", "<a.Page object>"),
        ("<iframe src='x'></iframe>", "<a.Page object>"),
        ("a<br/>b", "a\nb"),
    ],
)
def test_of_html_its_text_is_said(html: str, said: str) -> None:
    bundle = {"text/plain": "<a.Page object>", "text/html": html}
    assert an_execution(results=(bundle,)).for_model() == said


def test_a_chart_is_named_and_not_quoted() -> None:
    bundle = {
        "application/vnd.plotly.v1+json": "x" * 2048,
        "text/html": "<div>" * 2000,
        "text/plain": "Figure()",
    }
    shown = (bundle, {"application/vnd.vegalite.v5+json": "{}"})
    assert an_execution(results=shown).for_model() == (
        "[chart 1: Plotly, 2.0 KiB; Figure()]\n\n[chart 2: Vega-Lite, 2 bytes]"
    )


@pytest.mark.parametrize("piece", ["<", "<!--", "<a ", "<script>", "&", "</p>", "<p", "<script"])
def test_the_text_of_hostile_html_takes_linear_time(piece: str) -> None:
    began = time.process_time()
    html_text(piece * (1_000_000 // len(piece)))
    assert time.process_time() - began < 5


def test_loss_of_a_machine_is_told_as_no_fault_of_the_program() -> None:
    remedy = "run it again if that does no harm"
    lost = error_for_model(NodeLost("execution 7: its node a7c2 was lost", remedy=remedy))
    assert lost == (
        "Lost: execution 7: its node a7c2 was lost. The machine that had it was lost with all that "
        "was there; the program was not the reason, and how far it came is not known. "
        "Next: run it again if that does no harm."
    )
    away = NodeUnreachable("sandbox 7: its node a7c2 does not answer", retry_after_s=4.6)
    said = error_for_model(away)
    assert said.startswith("Not done: sandbox 7: its node a7c2 does not answer. The machine that")
    assert "the program is not the reason" in said
    assert said.endswith("It may answer again in 5 s.")

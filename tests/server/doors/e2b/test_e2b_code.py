"""The code interpreter by its unmodified client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from e2b import NotFoundException, TimeoutException
from e2b_code_interpreter import Sandbox  # type: ignore[import-untyped]

from conftest import Require
from kit.server.e2b_doors import E2BServer


@pytest.fixture(scope="module")
def box(e2b: E2BServer) -> Iterator[Sandbox]:
    made = Sandbox.create(envs={"MINE": "of the sandbox"}, timeout=600, **e2b.sdk())
    yield made
    made.kill()


def test_cells_keep_state_and_return_the_last_expression(box: Sandbox) -> None:
    assert box.run_code("x = 20").text is None
    done = box.run_code("print('out'); x += 1; x * 2")
    assert done.text == "42"
    assert done.results[0].is_main_result
    assert done.logs.stdout == ["out\n"]
    assert done.error is None


def test_executions_are_counted(box: Sandbox) -> None:
    context = box.create_code_context()
    counts = [box.run_code("1", context=context).execution_count for _ in range(3)]
    assert counts == [1, 2, 3]


def test_an_exception_is_told_with_its_traceback(box: Sandbox) -> None:
    error = box.run_code("def f():\n    1 / 0\nf()").error
    assert error is not None
    assert (error.name, error.value) == ("ZeroDivisionError", "division by zero")
    assert "line 2, in f" in error.traceback


def test_callbacks_get_lines_of_any_text(box: Sandbox) -> None:
    out: list[str] = []
    wrong: list[str] = []
    results: list[str | None] = []
    text = "ü \u2028 \x85 😀"
    box.run_code(
        f"import sys\nprint({text!r})\nprint('bad', file=sys.stderr)\n{text!r}",
        on_stdout=lambda line: out.append(line.line),
        on_stderr=lambda line: wrong.append(line.line),
        on_result=lambda result: results.append(result.text),
    )
    assert "".join(out) == text + "\n"
    assert "".join(wrong) == "bad\n"
    assert len(results) == 1


def test_pieces_of_a_line_are_one_message_unless_the_code_pauses(box: Sandbox) -> None:
    box.run_code(
        "import time\ndef say(*pieces):\n    for piece in pieces:\n"
        "        print(piece, end='', flush=True)\n        time.sleep(0.002)"
    )
    assert box.run_code("say('a', 'b', 'c\\n', 'd')").logs.stdout == ["abc\n", "d"]
    paused = box.run_code("say('a', 'b'); time.sleep(3); say('c', 'd\\n', 'e')")
    assert paused.logs.stdout == ["ab", "cd\n", "e"]


def test_lines_without_an_end_are_said_while_they_come(box: Sandbox) -> None:
    code = "import time\nfor _ in range(50): print('.', end='', flush=True); time.sleep(0.04)"
    pieces = box.run_code(code).logs.stdout
    assert "".join(pieces) == "." * 50
    assert 2 < len(pieces) < 50


def test_displays_have_the_forms_of_their_objects(box: Sandbox) -> None:
    code = (
        "from IPython.display import display, HTML, Markdown, JSON, SVG, Latex\n"
        "display(HTML('<b>h</b>'))\ndisplay(Markdown('# m'))\ndisplay(JSON({'a': 1}))\n"
        "display(Latex('$x$'))\n"
        "'text'"
    )
    done = box.run_code(code)
    if done.error is not None:
        pytest.skip(f"the template has no IPython: {done.error.value}")
    html, markdown, data, latex, last = done.results
    assert html.html == "<b>h</b>"
    assert markdown.markdown == "# m"
    assert data.json == {"a": 1}
    assert latex.latex == "$x$"
    assert (last.text, last.is_main_result) == ("text", True)
    assert not html.is_main_result


def test_notebook_syntax_works(box: Sandbox) -> None:
    assert box.run_code("!echo of the shell").logs.stdout == ["of the shell\n"]
    assert box.run_code("import asyncio\nawait asyncio.sleep(0)\n7").text == "7"


def test_variables_are_those_of_the_sandbox_and_of_one_call(box: Sandbox) -> None:
    cell = "import os; print(os.environ.get('MINE'), os.environ.get('ONE'))"
    once = box.run_code(cell, envs={"ONE": "ü😀'\"\\", "MINE": "mine"})
    assert once.logs.stdout == ["mine ü😀'\"\\\n"]
    assert box.run_code(cell).logs.stdout == ["of the sandbox None\n"]
    failed = box.run_code("1/0", envs={"ONE": "1"})
    assert failed.error is not None
    assert box.run_code(cell).logs.stdout == ["of the sandbox None\n"]


_SHOWN = {
    "bash": 'echo "${MINE-none} ${ONE-none}"',
    "java": 'System.out.println(System.getProperty("MINE", "none") + " " '
    '+ System.getProperty("ONE", "none"));',
    "r": 'cat(Sys.getenv("MINE", "none"), paste0(Sys.getenv("ONE", "none"), "\\n"))',
    "typescript": "console.log(process.env.MINE ?? 'none', process.env.ONE ?? 'none')",
}
"""Cells that write two variables."""


@pytest.mark.parametrize("language", sorted(_SHOWN))
def test_other_languages_have_variables_of_the_sandbox_and_of_one_call(
    box: Sandbox, language: str, require: Require
) -> None:
    cell = _SHOWN[language]
    first = box.run_code(cell, language=language)
    missing = first.error.value if first.error is not None else ""
    require(language, "not installed" not in missing, missing)
    assert (first.logs.stdout, first.error) == (["of the sandbox none\n"], None)
    value = "ü'\"\\\\n $HOME `id` \\\\u0041 {}"
    once = box.run_code(cell, language=language, envs={"ONE": value, "MINE": "mine"})
    assert ("".join(once.logs.stdout), once.error) == (f"mine {value}\n", None)
    assert box.run_code(cell, language=language).logs.stdout == ["of the sandbox none\n"]


def test_variables_of_one_call_leave_the_status_of_a_shell(box: Sandbox) -> None:
    box.run_code("(exit 3)", language="bash", envs={"ONE": "1"})
    assert box.run_code("echo $?", language="bash").logs.stdout == ["3\n"]


def test_variables_that_cannot_be_set_are_an_error_of_the_execution(box: Sandbox) -> None:
    done = box.run_code("echo $UID", language="bash", envs={"UID": "1"})
    assert done.error is not None
    assert "env_vars" in done.error.value
    assert done.logs.stdout == []


def test_variables_of_calls_at_the_same_time_are_kept_apart(box: Sandbox) -> None:
    cell = "import os; print(os.environ.get('ONE'))"
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(box.run_code, cell, envs={"ONE": name}) for name in "abcd"]
        assert [call.result().logs.stdout for call in calls] == [[f"{name}\n"] for name in "abcd"]
    assert box.run_code(cell).logs.stdout == ["None\n"]


def test_variables_of_one_call_are_refused_where_they_cannot_be(box: Sandbox) -> None:
    done = box.run_code("puts ENV['ONE']", language="ruby", envs={"ONE": "1"})
    assert done.error is not None
    assert "env_vars" in done.error.value
    assert done.logs.stdout == []


def test_a_client_that_leaves_interrupts_its_cell_and_keeps_the_state(box: Sandbox) -> None:
    box.run_code("kept = 5")
    with pytest.raises(TimeoutException):
        box.run_code("import time\ntime.sleep(600)", timeout=1)
    began = time.monotonic()
    assert box.run_code("kept").text == "5"
    assert time.monotonic() - began < 30


def test_an_end_by_a_limit_is_an_error_that_names_it(box: Sandbox) -> None:
    context = box.create_code_context()
    done = box.run_code("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", context=context)
    assert done.error is not None
    assert done.error.name == "InterpreterKilled"


@pytest.mark.parametrize(
    ("language", "code", "text", "out"),
    [("js", "console.log('a'); 1 + 1", "2", ["a\n"]), ("bash", "echo $((1 + 1))", None, ["2\n"])],
)
def test_other_languages_run(
    box: Sandbox, language: str, code: str, text: str | None, out: list[str]
) -> None:
    done = box.run_code(code, language=language)
    if done.error is not None and "not installed" in done.error.value:
        pytest.skip(done.error.value)
    assert (done.text, done.logs.stdout, done.error) == (text, out, None)


def test_a_language_that_is_not_there_is_an_error_of_the_execution(box: Sandbox) -> None:
    error = box.run_code("x", language="cobol").error
    assert error is not None
    assert "cobol" in error.value


# -- contexts ----------------------------------------------------------------------------------


def test_a_context_has_its_own_state_and_directory(box: Sandbox) -> None:
    context = box.create_code_context(cwd="/tmp")
    assert (context.language, context.cwd) == ("python", "/tmp")
    assert box.run_code("import os; y = 1; os.getcwd()", context=context).text == "/tmp"
    assert box.run_code("y").error is not None
    assert box.list_code_contexts()[-1].id == context.id
    box.restart_code_context(context)
    assert box.run_code("y", context=context).error is not None
    assert box.run_code("import os; os.getcwd()", context=context).text == "/tmp"
    box.remove_code_context(context)
    assert context.id not in [each.id for each in box.list_code_contexts()]
    with pytest.raises(NotFoundException, match=f"Context {context.id} not found"):
        box.run_code("1", context=context)


def test_the_default_contexts_are_listed_first(box: Sandbox) -> None:
    assert [each.id for each in box.list_code_contexts()][:2] == ["python", "javascript"]


def test_a_directory_that_is_not_there_makes_no_context(box: Sandbox) -> None:
    before = len(box.list_code_contexts())
    with pytest.raises(Exception, match="cwd"):
        box.create_code_context(cwd="/none")
    assert len(box.list_code_contexts()) == before


def test_contexts_that_are_not_there_are_not_found(box: Sandbox) -> None:
    with pytest.raises(Exception, match="not found"):
        box.restart_code_context("none")
    with pytest.raises(Exception, match="not found"):
        box.remove_code_context("none")


def test_an_execution_ends_with_its_sandbox(e2b: E2BServer) -> None:
    made = Sandbox.create(**e2b.sdk())
    made.kill()
    with pytest.raises(TimeoutException, match="was not found"):
        made.run_code("1")

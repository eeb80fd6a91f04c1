"""Promises of notebook cells: state stays, values show, nothing a cell does ends the context.

Every test runs with and without IPython where it is installed; what needs it says so.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.guest.guest_python import Context, Result, Server, pack_guest

HAS_IPYTHON = importlib.util.find_spec("IPython") is not None
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
HAS_PANDAS = importlib.util.find_spec("pandas") is not None

Run = Callable[..., Result]

needs_ipython = pytest.mark.skipif(not HAS_IPYTHON, reason="IPython is not installed")
needs_matplotlib = pytest.mark.skipif(not HAS_MATPLOTLIB, reason="matplotlib is not installed")
needs_pandas = pytest.mark.skipif(not HAS_PANDAS, reason="pandas is not installed")


@pytest.fixture(scope="module", params=["plain", "ipython"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    root = pack_guest(tmp_path_factory.mktemp("guest"))
    if request.param == "plain":
        # A package that cannot be found is what a template without IPython looks like.
        (root / "hide_ipython.py").write_text(
            "import sys, importlib.util as u\n_find = u.find_spec\n"
            "u.find_spec = lambda name, *a: None if name == 'IPython' else _find(name, *a)\n"
        )
    elif not HAS_IPYTHON:
        pytest.skip("IPython is not installed")
    server = Server(root, ["hide_ipython"] if request.param == "plain" else [])
    yield server
    server.close()


@pytest.fixture
def context(server: Server, tmp_path: Path) -> Iterator[Context]:
    context = server.fork(tmp_path)
    yield context
    context.close()


@pytest.fixture
def cell(context: Context) -> Run:
    def run(source: str, **options: object) -> Result:
        return context.execute(source, mode="cell", **options)  # type: ignore[arg-type]

    return run


@pytest.fixture
def ipython_cell(server: Server, cell: Run) -> Run:
    if cell("'get_ipython' in dir(__builtins__)").text != "True":
        pytest.skip("not this template")
    return cell


def without_carets(text: str) -> list[str]:
    """Lines of a traceback; from Python 3.13 on carets stand below a whole call, too."""
    return [line for line in text.splitlines() if set(line) - set(" ~^")]


@pytest.mark.parametrize("separator", ["\x0c", "'\u2028'", "'\x85'"])
def test_traceback_counts_lines_as_python_does(cell: Run, separator: str) -> None:
    result = cell(f"{separator}\ndef f():\n    return 1/0\nf()")
    assert without_carets(result.stderr)[1:5] == [
        '  File "<cell 1>", line 4, in <module>',
        "    f()",
        '  File "<cell 1>", line 3, in f',
        "    return 1/0",
    ]


def test_carets_stand_below_what_failed(cell: Run) -> None:
    source, carets = cell("print(1/0)").stderr.splitlines()[2:4]
    assert carets.index("~") == source.index("1/0")


def test_a_semicolon_silences_whatever_lines_there_are(cell: Run) -> None:
    assert cell("x = '\u2028'\n5;").text is None


def test_input_of_a_cell_keeps_its_carriage_returns(cell: Run) -> None:
    result = cell("import sys; ascii([input(), sys.stdin.read()])", stdin=b"a\r\nb\rc")
    assert result.text == repr(ascii(["a\r", "b\rc"]))


def test_a_cell_that_nests_deep_is_run_and_shown(cell: Run) -> None:
    assert cell("+".join(["1"] * 1500)).text == "1500"


def test_a_cell_may_call_as_deep_as_the_limit_says(cell: Run) -> None:
    source = "import sys\ndef f(n): return n and f(n - 1)\nf(sys.getrecursionlimit() - 10)"
    assert cell(source).text == "0"


@pytest.mark.parametrize("how", ["sys.exit(0)", "sys.exit()", "exit()", "raise SystemExit"])
def test_a_good_exit_is_none_that_counts(cell: Run, how: str) -> None:
    result = cell(f"x = 1\nimport sys\n{how}")
    assert result.end is not None
    assert not result.end["status"]
    assert cell("x").text == "1"


def test_state_stays(cell: Run) -> None:
    cell("x = 5")
    assert cell("x + 1").text == "6"


def test_values_are_remembered(cell: Run) -> None:
    cell("1 + 1")
    cell("'a'")
    assert cell("[_, __, dict(Out), In[1]]").text == "['a', 2, {1: 2, 2: 'a'}, '1 + 1']"


@pytest.mark.parametrize("source", ["None", "x = 1", "5;", "5 ;  # quiet", "def f(): 5", "", "#"])
def test_nothing_is_shown_for(cell: Run, source: str) -> None:
    result = cell(source)
    assert (result.bodies("display"), result.stderr) == ([], "")


def test_semicolon_in_a_string_hides_nothing(cell: Run) -> None:
    assert cell("'a;'").text == "'a;'"


def test_value_is_shown_after_what_was_printed(cell: Run) -> None:
    result = cell("print('out'); 7")
    assert (result.stdout, result.text) == ("out\n", "7")


def test_traceback_has_the_lines_of_both_cells(cell: Run) -> None:
    cell("def f():\n    raise KeyError('k')")
    result = cell("\nf()")
    assert without_carets(result.stderr) == [
        "Traceback (most recent call last):",
        '  File "<cell 2>", line 2, in <module>',
        "    f()",
        '  File "<cell 1>", line 2, in f',
        "    raise KeyError('k')",
        "KeyError: 'k'",
    ]
    (error,) = result.bodies("error")
    assert error == {"name": "KeyError", "value": "'k'", "traceback": result.stderr}
    assert result.end == {"ev": "end", "raised": True, "status": None, "display_cut": 0}


def test_syntax_error_is_told_once_and_numbered(cell: Run) -> None:
    cell("1")
    result = cell("a b")
    assert result.stderr.startswith('  File "<cell 2>", line 1\n    a b\n')
    assert result.stderr.count("SyntaxError") == len(result.bodies("error")) == 1


def test_exit_ends_the_cell_only(cell: Run) -> None:
    result = cell("x = 1; import sys; sys.exit(3); x = 2")
    assert result.end == {"ev": "end", "raised": False, "status": 3, "display_cut": 0}
    assert cell("x").text == "1"


def test_exit_message_goes_to_stderr(cell: Run) -> None:
    assert cell("raise SystemExit('bye')").stderr == "bye\n"


def test_interrupt_stops_the_cell_and_state_stays(context: Context, cell: Run) -> None:
    cell("x = 1")
    context.begin("print('up')\nwhile True: pass", mode="cell")
    context.wait_for_output("up")
    context.interrupt()
    assert context.finish().bodies("error")[0]["name"] == "KeyboardInterrupt"
    assert cell("x").text == "1"


def test_interrupt_stops_top_level_await(context: Context, cell: Run) -> None:
    source = "import asyncio\nprint('up')\nawait asyncio.sleep(1000)"
    context.begin(source, mode="cell")
    context.wait_for_output("up")
    context.interrupt()
    assert context.finish().bodies("error")[0]["name"] == "KeyboardInterrupt"
    assert cell("import asyncio\nawait asyncio.sleep(0, 4)").text == "4"


def test_await_works_at_top_level(cell: Run) -> None:
    cell("import asyncio\nasync def f(): return 8")
    assert cell("x = await f()\nx + await f()").text == "16"


def test_a_task_is_made_in_one_cell_and_awaited_in_another(cell: Run) -> None:
    made = cell("import asyncio\nt = asyncio.create_task(asyncio.sleep(0, 5))")
    assert (made.stderr, cell("await t").text) == ("", "5")


def test_a_task_begins_in_the_cell_that_makes_it(cell: Run) -> None:
    source = "import asyncio\nasync def f(): print('begun')\nt = asyncio.create_task(f())"
    assert cell(source).stdout == "begun\n"


_WAITING = (
    "import asyncio, os\nasync def wait():\n"
    "    while not os.path.exists('go'): await asyncio.sleep(0.01)\n"
)


def test_tasks_go_on_between_cells(context: Context, cell: Run, tmp_path: Path) -> None:
    cell(f"{_WAITING}    os.write(2, b'went on')\nt = asyncio.create_task(wait())")
    (tmp_path / "go").touch()
    context.wait_for_errors("went on")
    assert cell("await t; t.done()").text == "True"


@pytest.mark.parametrize("error", ["SystemExit(3)", "ValueError('v')", "KeyboardInterrupt()"])
def test_what_a_task_raises_between_cells_ends_nothing(
    context: Context, cell: Run, tmp_path: Path, error: str
) -> None:
    cell(f"{_WAITING}    os.write(2, b'ends')\n    raise {error}\nt = asyncio.create_task(wait())")
    (tmp_path / "go").touch()
    context.wait_for_errors("ends")
    assert cell("t.done(), 1").text == "(True, 1)"


def test_interrupt_ends_a_task_that_does_not_yield(context: Context, cell: Run) -> None:
    context.begin(
        "import asyncio\nasync def f():\n    print('up', flush=True)\n    while True: pass\n"
        "t = asyncio.create_task(f())",
        mode="cell",
    )
    context.wait_for_output("up")
    context.interrupt()
    assert context.finish().stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert cell("1 + 1").text == "2"


_LOOPS = {
    "of another thread": (
        "import threading\nfound = []\ndef look():\n    try: asyncio.get_running_loop()\n"
        "    except RuntimeError: found.append(1)\nt = threading.Thread(target=look)\n"
        "t.start(); t.join(); found",
        "[1]",
    ),
    "of its own": ("l = asyncio.new_event_loop(); l.run_until_complete(f())", "8"),
    "current": ("asyncio.get_event_loop().run_until_complete(f())", "8"),
    "same": ("asyncio.get_event_loop() is asyncio.get_running_loop()", "True"),
    "after run": ("asyncio.run(f())\nasyncio.get_running_loop().run_until_complete(f())", "8"),
    "closed": ("asyncio.get_event_loop().close()\nasyncio.get_running_loop().is_closed()", "False"),
    "nobody's": ("asyncio._get_running_loop()", None),
}


@pytest.mark.parametrize(("source", "value"), _LOOPS.values(), ids=_LOOPS.keys())
def test_loops_of_a_cell(cell: Run, source: str, value: str | None) -> None:
    cell("import asyncio\nasync def f(): return 8")
    result = cell(source)
    assert (result.text, result.stderr) == (value, "")
    assert cell("await f()").text == "8"


def test_a_notebook_without_tasks_has_no_loop(cell: Run) -> None:
    result = cell("import asyncio, os\nsorted(os.listdir('/proc/self/fd'), key=int)[:-1]")
    assert result.text == "['0', '1', '2']"


def test_asyncio_run_works_in_a_cell(cell: Run) -> None:
    cell("import asyncio\nasync def f(): return 8")
    assert cell("asyncio.run(f())").text == "8"


def test_future_import_lasts(cell: Run) -> None:
    cell("from __future__ import annotations")
    assert cell("def f(x: nothing): pass\nf.__annotations__").text == "{'x': 'nothing'}"


def test_input_without_stdin_is_end_of_file(cell: Run) -> None:
    assert cell("input('? ')").bodies("error")[0]["name"] == "EOFError"


def test_stdin_belongs_to_one_cell(cell: Run) -> None:
    assert cell("input()", stdin=b"one\ntwo\n").text == "'one'"
    assert cell("input()").bodies("error")[0]["name"] == "EOFError"


def test_cell_sees_only_three_descriptors(cell: Run) -> None:
    source = "import os\nsorted(os.listdir('/proc/self/fd'), key=int)[:-1]"
    assert cell(source).text == "['0', '1', '2']"


def test_closed_stdout_is_open_for_the_next_cell(cell: Run) -> None:
    cell("import sys; sys.stdout.close(); sys.stdin.close()")
    assert cell("print('back')").stdout == "back\n"


def test_forked_child_leaves_the_loop(cell: Run) -> None:
    source = (
        "import os\npid = os.fork()\nif not pid: print('child')\n"
        "if pid: print(os.WEXITSTATUS(os.waitpid(pid, 0)[1]))\n"
    )
    assert cell(source).stdout == "child\n0\n"
    assert cell("pid > 0").text == "True"


def test_thread_prints_between_cells(context: Context, cell: Run) -> None:
    cell(
        "import threading\ne = threading.Event()\n"
        "def f():\n    e.wait(); print('late')\nt = threading.Thread(target=f); t.start()\n"
    )
    assert cell("e.set(); t.join()").stdout == "late\n"


def test_exhausted_descriptors_end_the_context_with_a_reason(context: Context) -> None:
    source = (
        "import os, resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "try:\n    while True: os.dup(0)\nexcept OSError: pass\n"
    )
    result = context.execute(source, mode="cell")
    assert result.status is not None
    assert os.WEXITSTATUS(result.status) == 1
    assert "cannot reach init; close files" in result.stderr


def test_display_shows_objects_in_order(cell: Run) -> None:
    shown = cell("display(1); display('a', [2])").bodies("display")
    assert [bundle["text/plain"] for bundle in shown] == ["1", "'a'", "[2]"]


def test_mime_methods_are_asked(cell: Run) -> None:
    source = (
        "class A:\n"
        "    def _repr_html_(self): return '<b>'\n"
        "    def _repr_png_(self): return b'png'\n"
        "    def _repr_json_(self): return {'a': [1]}\n"
        "    def _repr_latex_(self): return '$x$'\n"
        "    def _repr_markdown_(self): return '*x*'\n"
        "    def _repr_svg_(self): return '<svg/>'\n"
        "    def __repr__(self): return 'A!'\n"
        "A()"
    )
    (bundle,) = cell(source).bodies("display")
    assert bundle == {
        "text/plain": "A!",
        "text/html": "<b>",
        "image/png": base64.b64encode(b"png").decode(),
        "application/json": '{"a": [1]}',
        "text/latex": "$x$",
        "text/markdown": "*x*",
        "image/svg+xml": "<svg/>",
    }


def test_huge_string_is_cut_without_its_repr(cell: Run) -> None:
    cell(
        "import resource; big = 'x' * 2**28; resource.setrlimit(resource.RLIMIT_DATA, (2**29,) * 2)"
    )
    text = cell("big").text
    assert text is not None
    assert len(text) < 2**18
    assert text.endswith("... [cut of 268435456 items]")


def test_bundle_over_a_frame_is_dropped_with_a_note(cell: Run) -> None:
    result = cell(
        "class A:\n    def _repr_html_(self): return 'h' * 2**21\n"
        "    def __repr__(self): return 'A'\n"
        "A()"
    )
    assert result.text == "A\n[text/html of 2097152 bytes dropped: the limit is 1048576]"
    assert result.end is not None
    assert result.end["display_cut"] == 2**21


def test_displays_of_one_execution_are_bounded(server: Server, tmp_path: Path) -> None:
    context = server.fork(tmp_path, display_bytes=1000)
    result = context.execute("for i in range(20): display('x' * 100)", mode="cell")
    again = context.execute("1", mode="cell")
    context.close()
    texts = [bundle["text/plain"] for bundle in result.bodies("display")]
    assert texts[-1] == "[display limit of 1000 bytes reached: the rest is dropped]"
    assert len(texts) == 9
    assert result.end is not None
    assert result.end["display_cut"] == 12 * 120
    assert again.text == "1"


def test_broken_repr_is_not_the_end(cell: Run) -> None:
    cell("class A:\n    def __repr__(self): 1/0\nA()")
    assert cell("1").text == "1"


def test_alarm_during_displays_never_tears_a_frame(cell: Run) -> None:
    result = cell(
        "import signal, time\nn = 0\ndef tick(*a):\n    global n; n += 1\n"
        "signal.signal(signal.SIGALRM, tick)\nsignal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)\n"
        "for i in range(200): display('x' * 20000)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0);\n"
    )
    assert len(result.bodies("display")) == 200
    assert int(cell("n").text or 0) > 0


@needs_matplotlib
def test_open_figures_are_images(cell: Run) -> None:
    cell("import matplotlib.pyplot as plt")
    result = cell("plt.plot([1, 2]);")
    (bundle,) = result.bodies("display")
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert result.stderr == ""
    assert cell("plt.get_fignums()").text == "[]"


@needs_matplotlib
def test_show_sends_the_figure_at_once(cell: Run) -> None:
    cell("import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt")
    result = cell("plt.plot([1]); plt.show(); plt.plot([2]); plt.show(); print(plt.get_fignums())")
    assert ["image/png" in bundle for bundle in result.bodies("display")] == [True, True]
    assert (result.stdout, result.stderr) == ("[]\n", "")


@needs_matplotlib
def test_figure_shown_as_value_is_not_shown_twice(cell: Run) -> None:
    cell("import matplotlib.pyplot as plt")
    (bundle,) = cell("fig = plt.figure()\nfig").bodies("display")
    assert "image/png" in bundle


@needs_matplotlib
def test_figure_too_large_for_a_frame_is_drawn_smaller(cell: Run) -> None:
    cell("import random, matplotlib.pyplot as plt")
    cell("pixels = [[random.random() for _ in range(600)] for _ in range(600)]")
    (bundle,) = cell("plt.figure(figsize=(9, 9), dpi=200).figimage(pixels); plt.show()").bodies(
        "display"
    )
    assert 2**17 < len(bundle["image/png"]) < 2**20


@needs_pandas
def test_table_is_html_and_text(cell: Run) -> None:
    (bundle,) = cell("import pandas as pd\npd.DataFrame({'a': [1]})").bodies("display")
    assert "<table" in bundle["text/html"]
    assert bundle["text/plain"] == "   a\n0  1"


@needs_ipython
@pytest.mark.parametrize(
    ("source", "stdout"),
    [
        ("!echo $((1 + 1)); echo err >&2", "2\n"),
        ("x = 3\n!echo $x {x + 1}", "3 4\n"),
        ("out = !echo a; echo b\nprint(list(out))", "['a', 'b']\n"),
        ("%%capture c\nprint('kept')", ""),
        ("%%writefile f.txt\nabc", "Writing f.txt\n"),
        ("%env NOT_THERE=1\n!echo $NOT_THERE", "env: NOT_THERE=1\n1\n"),
        ("%matplotlib inline", ""),
        ("echo = 'shadowed'\necho", ""),
    ],
)
def test_magics_work(ipython_cell: Run, source: str, stdout: str) -> None:
    if "matplotlib" in source and not HAS_MATPLOTLIB:
        pytest.skip("matplotlib is not installed")
    result = ipython_cell(source)
    assert result.stdout == stdout
    assert result.end is not None
    assert result.end["raised"] is False


@needs_ipython
def test_magic_and_python_cells_share_count_and_loop(ipython_cell: Run) -> None:
    ipython_cell("import asyncio\ntask = asyncio.ensure_future(asyncio.sleep(0, 3))\nawait task")
    ipython_cell("%who\nlater = await asyncio.sleep(0, asyncio.get_running_loop())")
    assert ipython_cell("later is asyncio.get_running_loop() and await task").text == "3"
    assert ipython_cell("get_ipython().execution_count - len(In)").text == "0"


@needs_ipython
def test_error_in_a_magic_cell_shows_only_the_callers_frames(ipython_cell: Run) -> None:
    result = ipython_cell("%who\n1/0")
    assert 'File "<cell 2>", line 2' in result.stderr
    assert "IPython" not in result.stderr
    assert "\x1b" not in result.stderr


@needs_ipython
def test_unknown_magic_is_an_error(ipython_cell: Run) -> None:
    result = ipython_cell("%nothing_of_this_name")
    assert result.stderr.startswith("UsageError: Line magic function")
    assert result.end is not None
    assert result.end["raised"] is True


@needs_ipython
def test_help_is_text_without_a_pager(ipython_cell: Run) -> None:
    (bundle,) = ipython_cell("len?").bodies("display")
    assert "Return the number of items" in bundle["text/plain"]


@needs_ipython
def test_events_of_ipython_are_called(ipython_cell: Run) -> None:
    ipython_cell("get_ipython().events.register('post_execute', lambda: print('after'))")
    assert ipython_cell("1").stdout == "after\n"


@needs_ipython
def test_no_thread_and_no_history_file(ipython_cell: Run) -> None:
    assert ipython_cell("import os; len(os.listdir('/proc/self/task'))").text == "1"
    assert ipython_cell("get_ipython().history_manager.enabled").text == "False"


def test_small_cell_costs_little(context: Context, cell: Run) -> None:
    def cpu_ns() -> int:
        return int(Path(f"/proc/{context.pid}/schedstat").read_text().split()[0])

    cell("print(1)")
    costs = []
    for _ in range(50):
        before = cpu_ns()
        cell("print(1)")
        costs.append(cpu_ns() - before)
    # 0.2 ms where this was written; the promise is 0.4 ms, and the machine may be twice as slow.
    assert sorted(costs)[10] < 800_000


def test_cd_knows_the_folder_before(ipython_cell: Run, tmp_path: Path) -> None:
    ipython_cell("%cd /tmp")
    ipython_cell("%cd -")
    assert ipython_cell("import os; os.getcwd()").text == repr(str(tmp_path))
    assert ipython_cell("str([str(each) for each in _dh])").text == repr(
        str([str(tmp_path), "/tmp", str(tmp_path)])
    )


@pytest.mark.xfail(
    sys.version_info >= (3, 12),
    reason="there IPython ends lines of a cell with magics at U+2028, which its tokenizer refuses",
)
def test_lines_of_a_cell_with_magics_are_counted_as_python_does(ipython_cell: Run) -> None:
    result = ipython_cell("x = '\u2028'\n%who_ls\n1/0")
    assert "    1/0" in result.stderr.splitlines()

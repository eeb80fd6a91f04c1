"""Promises of a program in a context: it runs, ends and complains as `python main.py` does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.guest.guest_python import Context, Result, Server, pack_guest


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(pack_guest(tmp_path_factory.mktemp("guest")), [])
    yield server
    server.close()


@pytest.fixture
def context(server: Server, tmp_path: Path) -> Iterator[Context]:
    context = server.fork(tmp_path)
    yield context
    context.close()


def run(context: Context, source: str, **header: object) -> Result:
    return context.execute(source, mode="program", **header)  # type: ignore[arg-type]


AS_PYTHON = {
    "output": "print(1); import sys; print(2, file=sys.stderr)",
    "uncaught": "def f():\n    return {}['a']\n\nf()\n",
    "chained": "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise KeyError(2) from e\n",
    "context": "try:\n    1/0\nexcept ZeroDivisionError:\n    [][0]\n",
    "syntax": "x = 1\nfor\n",
    "nul": "x = '''\n",
    "exit_none": "import sys; sys.exit()",
    "exit_number": "import sys; sys.exit(300)",
    "exit_true": "raise SystemExit(True)",
    "exit_text": "import sys; sys.exit('bye')",
    "exit_in_function": "def f(): raise SystemExit(7)\nf()",
    "broken_str": "class E(Exception):\n    def __str__(self): 1/0\nraise E\n",
    "atexit": "import atexit; atexit.register(print, 'last'); print('first')",
    "atexit_error": "import atexit, sys; atexit.register(print, 'x'); sys.exit(4)",
    "thread": "import threading\nthreading.Thread(target=lambda: print('t')).start()\n",
    "daemon": "import threading\nthreading.Thread(target=input, daemon=True)\nprint(1)",
    "del": "class A:\n    def __del__(self): print('gone')\na = A()\nprint('end')\n",
    "dataclass": "import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int\nprint(P(1))",
    "pickle": "import pickle\nclass P: pass\nprint(type(pickle.loads(pickle.dumps(P()))))",
    "asyncio": "import asyncio\nasync def f(): return 5\nprint(asyncio.run(f()))",
    "input": "input('name? ')",
    "names": "print(__name__, __spec__, sorted(k for k in globals() if k[0] != '_'))",
    "fork": "import os\nif os.fork():\n    os.wait(); print('parent')\nelse:\n    print('child')\n",
    "hook": "import sys\nsys.excepthook = lambda *a: print(a[0].__name__)\n1/0\n",
    "no_future": "def f(x: 1 + 1): pass\nprint(f.__annotations__)",
    "unicode": "print('\\u2603 \\u00e9')\nraise ValueError('\\u2603')",
    "getsource": "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f))\n",
    "class_source": "import inspect\nclass A:\n    x = 1\nprint(inspect.getsource(A))\n",
    "mp_fork": "import multiprocessing as m\ndef f(x): return x * 2\n"
    "if __name__ == '__main__':\n    with m.get_context('fork').Pool(1) as p: print(p.map(f, [1]))",
    "mp_spawn": "import multiprocessing as m\ndef f(q): q.put(6)\n"
    "if __name__ == '__main__':\n    c = m.get_context('spawn'); q = c.Queue()\n"
    "    p = c.Process(target=f, args=(q,)); p.start(); print(q.get()); p.join()\n",
    "own_source": "print(open(__file__).read(), __file__)",
    "own_folder": "import os\nos.chdir('/')\n"
    "os.chdir(os.path.dirname(__file__))\nprint(os.getcwd())",
    "own_path": "import inspect, sys\nprint(sys.path[0], inspect.getsourcefile(lambda: 0))",
    "listed": "import glob\nprint(glob.glob('*.*'))",
    "again": "import os, sys\nprint(len(sys.argv), flush=True)\n"
    "if len(sys.argv) < 3: os.execv(sys.executable, [sys.executable, *sys.argv, 'x'])",
    "as_a_command": "import subprocess, sys\n"
    "if __name__ == '__main__' and len(sys.argv) == 1:\n"
    "    print(subprocess.check_output([sys.executable, 'main.py', 'x']))\nelse: print('again')",
    "as_a_module": "if __name__ == '__main__': import main\nprint(__name__)",
    "warning": "import warnings; warnings.warn('w')",
    "form_feed": "x = 1\n\x0c\ndef f():\n    return 1/0\nf()\n",
    "line_separator": "x = 'a\u2028b\x85'\n\ndef f():\n    return 1/0\nf()\n",
    "carriage_returns": "x = 1\r\n\r\ndef f():\r\n    return 1/0\r\nf()\r\n",
    "old_mac": "x = 1\r\rdef f():\r    return 1/0\rf()",
    "no_last_newline": "print(1/0)",
    "depth_refused": "import sys\ntry: sys.setrecursionlimit(0)\nexcept ValueError as e: print(e)",
}


@pytest.mark.parametrize("source", AS_PYTHON.values(), ids=AS_PYTHON.keys())
def test_program_ends_as_under_python(context: Context, tmp_path: Path, source: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "main.py").write_bytes(source.encode())
    env = {"PATH": os.environ["PATH"], "PYTHONIOENCODING": "utf-8"}
    real = subprocess.run(
        [sys.executable, "main.py"],
        cwd=elsewhere,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    result = run(context, source, display=False)
    output, errors = (
        text.decode().replace(str(elsewhere), str(tmp_path)) for text in (real.stdout, real.stderr)
    )
    assert (result.stdout, result.stderr) == (output, errors)
    assert result.status is not None
    assert os.WEXITSTATUS(result.status) == real.returncode
    # A program that raised says so; of others the exit says it all.
    is_raised = any(header["ev"] == "error" for header, _body in result.events)
    assert (result.end is not None) is is_raised
    assert result.end is None or result.end["exit_code"] == real.returncode


def test_program_has_only_three_descriptors(context: Context) -> None:
    result = run(context, "import os\nprint(sorted(os.listdir('/proc/self/fd'), key=int)[:-1])")
    assert result.stdout == "['0', '1', '2']\n"


def test_unclosed_files_are_written(context: Context, tmp_path: Path) -> None:
    source = (
        "a = open('a', 'w'); a.write('A')\n"
        "b = []; b.append(b); b.append(open('b', 'w')); b[1].write('B')\n"
        "import types, sys; m = sys.modules['m'] = types.ModuleType('m')\n"
        "m.f = open('c', 'w'); m.f.write('C')\n"
    )
    run(context, source)
    assert [(tmp_path / n).read_text() for n in "abc"] == ["A", "B", "C"]


def test_exception_is_an_event(context: Context) -> None:
    result = run(context, "raise KeyError('k')")
    (error,) = result.bodies("error")
    assert (error["name"], error["value"]) == ("KeyError", "'k'")
    assert error["traceback"] == result.stderr
    assert result.end is not None
    assert result.end["raised"] is True


def test_syntax_error_is_told_once(context: Context) -> None:
    assert run(context, "a b").stderr.count("SyntaxError") == 1


def test_last_expression_is_displayed(context: Context) -> None:
    result = run(context, "x = 20\nx + 1")
    assert result.text == "21"


@pytest.mark.parametrize("source", ["None", "x = 1", "print()", "if 1:\n    5"])
def test_nothing_is_displayed_for(context: Context, source: str) -> None:
    assert run(context, source).bodies("display") == []


def test_arguments_reach_main(context: Context) -> None:
    source = "def main(a, b=2):\n    return [a, b, arguments]"
    assert run(context, source, arguments={"a": 1}).bodies("value") == [[1, 2, {"a": 1}]]


def test_async_main_is_awaited(context: Context) -> None:
    source = "async def main(a):\n    return a + 1"
    assert run(context, source, arguments={"a": 1}).bodies("value") == [2]


def test_main_is_not_called_without_arguments(context: Context) -> None:
    source = "def main():\n    return 1\nprint('arguments' in globals())"
    result = run(context, source)
    assert (result.stdout, result.bodies("value")) == ("False\n", [])


def test_error_in_main_is_a_traceback(context: Context) -> None:
    result = run(context, "def main(a):\n    return 1 / a", arguments={"a": 0})
    assert result.status is not None
    assert os.WEXITSTATUS(result.status) == 1
    assert 'main.py", line 2, in main' in result.stderr
    assert "cellwall" not in result.stderr


def test_result_variable_is_the_value_where_nothing_is_called(context: Context) -> None:
    source = "result = (1, {'a': None})\ndef main(): return 0"
    assert run(context, source).bodies("value") == [[1, {"a": None}]]


def test_main_wins_over_the_result_of_an_example(context: Context) -> None:
    source = "def main(a):\n    return a + 1\nresult = main(5)"
    assert run(context, source, arguments={"a": 1}).bodies("value") == [2]


def test_main_is_not_called_after_an_exit(context: Context) -> None:
    source = "def main(a):\n    print('called')\nresult = 3\nraise SystemExit(2)"
    found = run(context, source, arguments={"a": 1})
    assert (found.stdout, found.bodies("value")) == ("", [3])


_NESTED = "list (nested deeper than 128 levels)"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("result = {1, 2}", "set"),
        ("result = [float('nan')]", "list (NaN, infinity or a cycle)"),
        ("result = []; result.append(result)", "list (NaN, infinity or a cycle)"),
        ("result = {(1, 2): 3}", "dict"),
        ("result = 'x' * 2**21", "str (2097154 bytes; limit 1048576)"),
        ("result = []\nfor _ in range(128): result = [result]", _NESTED),
        ("result = 0\nfor _ in range(129): result = (result, {})", "tuple" + _NESTED[4:]),
    ],
)
def test_result_that_is_not_json_names_its_type(context: Context, source: str, reason: str) -> None:
    result = run(context, source)
    (header,) = [h for h, _body in result.events if h["ev"] == "value"]
    assert header["unserialisable"] == reason
    assert result.status == 0


def test_result_of_many_lists_is_no_nested_one(context: Context) -> None:
    source = "result = [[], {}] * 1000\nfor _ in range(126): result = [result]"
    (value,) = run(context, source).bodies("value")
    assert json.dumps(value).count("{}") == 1000


def test_argv_is_the_callers(context: Context, tmp_path: Path) -> None:
    result = run(context, "import sys; print(sys.argv)", argv=["-x", "y"])
    assert result.stdout == f"['{tmp_path}/main.py', '-x', 'y']\n"


def test_file_of_the_callers_with_the_programs_name_stays(context: Context, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("def f(): return 'theirs'")
    source = (
        "import main, multiprocessing as m\ndef f(q): q.put(__name__)\n"
        "if __name__ == '__main__':\n    print(main.f())\n    c = m.get_context('spawn')\n"
        "    q = c.Queue(); p = c.Process(target=f, args=(q,)); p.start()\n"
        "    print(q.get()); p.join(); 1/0\n"
    )
    result = run(context, source)
    assert result.stdout == "theirs\n__mp_main__\n"
    assert "    print(q.get()); p.join(); 1/0\n" in result.stderr


def test_program_runs_where_its_file_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "main.py").mkdir()  # a root may write to any folder
    context = server.fork(tmp_path)
    result = run(context, "import inspect\ndef f(): pass\nprint(inspect.getsource(f))")
    context.close()
    assert result.stdout == "def f(): pass\n\n"


@pytest.mark.parametrize("limit", [300, 1000, 2000])
def test_calls_go_as_deep_as_the_limit_says(context: Context, limit: int) -> None:
    """`python3` leaves two frames to others; a few more than that do no harm."""
    source = (
        f"import sys\nassert sys.getrecursionlimit() == 1000\nsys.setrecursionlimit({limit})\n"
        "def f(n):\n    global top\n    top = n\n    f(n + 1)\n"
        "try: f(0)\nexcept RecursionError: print(top - sys.getrecursionlimit())"
    )
    assert -2 <= int(run(context, source).stdout) <= 32


_DEEP = {
    "sum": ("+".join(["1"] * 1500), "1500"),
    "calls": ("x = ''\nx" + ".strip()" * 600, "''"),
    "elif": (
        "x = 7\nif 0: 0\n" + "".join(f"elif x == {n}: y = {n}\n" for n in range(1200)) + "y",
        "7",
    ),
}


@pytest.mark.parametrize(("source", "value"), _DEEP.values(), ids=_DEEP.keys())
def test_source_that_nests_deep_is_run_and_shown(context: Context, source: str, value: str) -> None:
    result = run(context, source)
    assert (result.text, result.stderr) == (value, "")


def test_stdin_is_a_pipe_that_init_writes_to(context: Context) -> None:
    source = "import sys; print(input()); print(sys.stdin.read())"
    result = run(context, source, stdin=b"caf\xc3\xa9\nrest")
    assert result.stdout == "café\nrest\n"


def test_input_keeps_its_carriage_returns(context: Context) -> None:
    source = "import sys; print(ascii([input(), sys.stdin.read()]))"
    assert run(context, source, stdin=b"a\r\nb\rc").stdout == "['a\\r', 'b\\rc']\n"


def test_exit_code_survives_exhausted_descriptors(context: Context) -> None:
    source = (
        "import os, resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "try:\n    while True: os.dup(0)\nexcept OSError: pass\n"
        "print('full', flush=True); raise SystemExit(9)\n"
    )
    result = run(context, source)
    assert result.stdout == "full\n"
    assert result.status is not None
    assert os.WEXITSTATUS(result.status) == 9


def test_exit_code_survives_lack_of_memory(context: Context) -> None:
    source = (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**28, 2**28))\nx = 'a' * 2**30\n"
    )
    result = run(context, source)
    assert result.stderr.splitlines()[-1] == "MemoryError"
    assert result.status is not None
    assert os.WEXITSTATUS(result.status) == 1


def test_recursion_is_reported_short(context: Context) -> None:
    result = run(context, "def f(): f()\nf()")
    assert "RecursionError: maximum recursion depth exceeded" in result.stderr
    assert "Previous line repeated" in result.stderr


def test_interrupt_ends_the_program(context: Context) -> None:
    context.begin("print('up', flush=True)\nwhile True: pass", mode="program")
    context.wait_for_output("up")
    context.interrupt()
    result = context.finish()
    assert result.status is not None
    assert os.WEXITSTATUS(result.status) == 130
    assert result.stderr.splitlines()[-1] == "KeyboardInterrupt"


def test_interrupt_before_the_first_line_is_not_lost(context: Context) -> None:
    context.interrupt()
    result = run(context, "while True: pass")
    assert result.status is not None
    assert os.WEXITSTATUS(result.status) == 130


def test_forked_child_says_nothing_on_the_link(context: Context) -> None:
    source = "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nresult = 1\n"
    assert run(context, source, display=True).bodies("value") == [1]


def test_exception_in_a_thread_shows_the_callers_line(context: Context) -> None:
    source = "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start(); t.join()"
    result = run(context, source)
    assert "target=lambda: 1 / 0" in result.stderr
    assert result.status == 0


def test_forks_draw_different_numbers(server: Server, tmp_path: Path) -> None:
    seen = set()
    for _ in range(3):
        context = server.fork(tmp_path)
        seen.add(run(context, "import random; print(random.random())").stdout)
        context.close()
    assert len(seen) == 3


def test_display_is_a_builtin_that_a_program_may_redefine(context: Context) -> None:
    result = run(context, "display(1)\ndef display(x): print(x)\ndisplay(2)")
    assert result.bodies("display") == [{"text/plain": "1"}]
    assert result.stdout == "2\n"


def test_error_event_of_a_huge_exception_is_bounded(context: Context) -> None:
    result = run(context, "raise ValueError('\\x01' * 10**7)")
    (body,) = [b for h, b in result.events if h["ev"] == "error"]
    assert len(body) < 2**20
    assert "characters cut" in json.loads(body)["value"]

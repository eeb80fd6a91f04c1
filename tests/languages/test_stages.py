"""Compile and run are two stages: each with its own limits, output and verdict, and one cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from cellwall.embedded import Runner, Sandbox
from cellwall.engine.engine import Engine
from cellwall.engine.policy.settings import EngineSettings
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.languages.registry import LANGUAGES
from cellwall.languages.tools import is_installed
from cellwall.model.errors import UsageError
from cellwall.model.execution import Event, Execution
from cellwall.model.outcome import LOST, Verdict
from conftest import Require

pytestmark = [pytest.mark.timeout(180)]
Run = Callable[..., Execution]

PRINTS = '#include <stdio.h>\nint main(void) { puts("%s"); }\n'


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    place = tmp_path_factory.mktemp("state")
    settings = EngineSettings(pool_max=0, pool_min=0)
    made = Runner(partial(Engine, place, settings, templates=TemplateStore(state_dir())))
    yield made
    made.close()


@pytest.fixture
def run(runner: Runner, require: Require) -> Run:
    def do(
        code: str, language: str = "c", on_event: Callable[[Event], None] | None = None, **o: Any
    ) -> Execution:
        found = LANGUAGES[language]
        require(language, is_installed(found), f"run: {found.install}")
        return runner.call(
            lambda engine, put: engine.run(
                code, language=language, on_event=None if on_event is None else put, **o
            ),
            on_event,
        )

    return do


def _stage(execution: Execution) -> Any:
    assert execution.compilation is not None
    return execution.compilation


def test_second_run_of_the_same_source_is_not_compiled(run: Run) -> None:
    code = PRINTS % "once"
    first, second = run(code), run(code)
    assert [each.stdout for each in (first, second)] == ["once\n"] * 2
    assert [_stage(each).is_cached for each in (first, second)] == [False, True]
    assert _stage(first).outcome.verdict is Verdict.OK
    assert _stage(second).outcome is None
    assert "gcc" in _stage(second).version


@pytest.mark.parametrize(
    "difference",
    [{"compile_options": ["-O0"]}, {"files": {"other.c": "int other;"}}, {"tenant": "bob"}],
    ids=lambda each: next(iter(each)),
)
def test_whatever_makes_a_difference_is_compiled_anew(run: Run, difference: dict[str, Any]) -> None:
    code = PRINTS % "difference"
    run(code)
    assert _stage(run(code)).is_cached
    assert not _stage(run(code, **difference)).is_cached
    assert _stage(run(code, **difference)).is_cached


def test_warnings_are_told_and_do_not_mix_with_the_program(run: Run) -> None:
    code = '#include <stdio.h>\nint main(void) { int unused; puts("ran"); }\n'
    for _ in range(2):
        execution = run(code, compile_options=["-Wall"])
        assert (execution.stdout, execution.stderr) == ("ran\n", "")
        assert "unused" in _stage(execution).stderr


def test_compile_error_has_the_compilers_words_and_the_line(run: Run) -> None:
    events: list[Event] = []
    execution = run("int main(void) {\n    return missing;\n}\n", on_event=events.append)
    assert execution.verdict is Verdict.COMPILE_ERROR
    assert "missing" in execution.stderr
    assert execution.error is not None
    assert (execution.error.name, execution.error.line) == ("CompileError", 2)
    assert [each.kind for each in events] == ["stderr", "error", "end"]
    assert events[-1].outcome == execution.outcome


def test_compile_error_is_not_kept(run: Run) -> None:
    executions = [run("int main(void) { return nowhere; }") for _ in range(2)]
    assert [_stage(each).is_cached for each in executions] == [False, False]


@pytest.mark.parametrize(
    ("limits", "verdict"),
    [({"memory_mb": 16}, Verdict.MEMORY), ({"cpu_s": 0.001, "wall_s": 0.05}, None)],
    ids=["memory", "time"],
)
def test_compile_that_meets_a_limit_says_so(
    run: Run, limits: dict[str, Any], verdict: Verdict | None
) -> None:
    code = '#include <map>\n#include <regex>\nint main() { std::regex r("a"); }\n'
    execution = run(code, "cpp", compile_limits=limits)
    expected = {verdict} if verdict else {Verdict.WALL_TIME, Verdict.CPU_TIME}
    assert execution.verdict in expected
    assert any("compile stage" in note for note in execution.outcome.notes)


def test_limits_of_the_run_do_not_bind_the_compile(run: Run) -> None:
    execution = run("#include <regex>\nint main() {}\n", "cpp", limits={"memory_mb": 16})
    assert execution.verdict is Verdict.OK
    assert _stage(execution).limits.memory_mb == 1024
    assert _stage(execution).outcome.usage.memory_peak_bytes > 16 << 20


@pytest.mark.parametrize(
    "option", ["-Wl,-rpath=/", "-B/tmp", "@file", "-I/etc", "-o/tmp/x", "-fplugin=x.so", "-Wp,-x"]
)
def test_compile_option_that_is_not_listed_is_refused(run: Run, option: str) -> None:
    with pytest.raises(UsageError, match="compile_options") as caught:
        run("int main(void) {}", compile_options=[option])
    assert caught.value.remedy


def test_options_of_a_language_without_compiler_are_refused(run: Run) -> None:
    with pytest.raises(UsageError, match="compile_options"):
        run("pass", "python", compile_options=["-O2"])


def test_environment_of_the_caller_reaches_the_program_and_not_the_compiler(run: Run) -> None:
    code = '#include <stdio.h>\n#include <stdlib.h>\nint main(void) { puts(getenv("WHO")); }\n'
    # gcc would fail without its real directory; the control is the program, which sees both.
    execution = run(code, env={"WHO": "me", "COMPILER_PATH": "/nowhere", "GCC_EXEC_PREFIX": "/x/"})
    assert (execution.verdict, execution.stdout) == (Verdict.OK, "me\n")


def test_compiler_leaves_nothing_but_its_product(run: Run) -> None:
    code = """#include <dirent.h>
#include <stdio.h>
int main(void) {
    for (struct dirent *e; (e = readdir(opendir("."))) != NULL;) { puts(e->d_name); break; }
    return fopen("main.c", "r") != NULL;
}
"""
    execution = run(code)
    assert execution.verdict is Verdict.OK, "its source is there"


def test_program_cannot_reach_the_cache(run: Run) -> None:
    run(PRINTS % "kept")
    place = state_dir()
    code = f"import os; print(os.path.exists({str(place)!r}), os.path.exists('/var/lib/cellwall'))"
    assert run(code, "python").stdout == "False False\n"


@pytest.mark.parametrize(
    ("language", "code", "files"),
    [
        (
            "c",
            'int twice(int);\n#include <stdio.h>\nint main(void) { printf("%d\\n", twice(21)); }\n',
            {"lib/twice.c": "int twice(int n) { return 2 * n; }\n"},
        ),
        (
            "java",
            "public class Main { public static void main(String[] a) "
            "{ System.out.println(Twice.of(21)); } }\n",
            {"Twice.java": "class Twice { static int of(int n) { return 2 * n; } }\n"},
        ),
        (
            "typescript",
            'import { twice } from "./lib/twice";\nconsole.log(twice(21));\n',
            {"lib/twice.ts": "export const twice = (n: number): number => 2 * n;\n"},
        ),
        (
            "rust",
            'mod twice;\nfn main() { println!("{}", twice::of(21)); }\n',
            {"twice.rs": "pub fn of(n: i32) -> i32 { 2 * n }\n"},
        ),
        (
            "ruby",
            'require_relative "twice"\nputs twice(21)\n',
            {"twice.rb": "def twice(n) = 2 * n\n"},
        ),
    ],
    ids=lambda each: each if isinstance(each, str) and "\n" not in each else "",
)
def test_program_of_several_files(
    run: Run, language: str, code: str, files: dict[str, str]
) -> None:
    execution = run(code, language, files=files)
    assert execution.stdout == "42\n", execution.stderr


def test_artifacts_of_a_folder_come_back(run: Run) -> None:
    code = (
        "import os\nos.makedirs('out/deep')\nopen('out/a.csv', 'w').write('1,2')\n"
        "open('out/deep/b', 'wb').write(b'\\0')\nos.symlink('/etc/passwd', 'out/link')\n"
        "open('elsewhere', 'w').write('x')\n"
    )
    execution = run(code, "python", artifacts="out")
    assert dict(execution.files) == {"out/a.csv": b"1,2", "out/deep/b": b"\0"}


def test_folder_that_is_not_there_is_a_note(run: Run) -> None:
    execution = run("pass", "python", artifacts="nowhere/")
    assert execution.ok
    assert any("artifacts nowhere" in note for note in execution.outcome.notes)


@pytest.mark.parametrize("folder", ["a/out", "./a/out", "a//out/", "a/./out", "."])
def test_artifacts_come_however_their_folder_is_written(run: Run, folder: str) -> None:
    code = "import os; os.makedirs('a/out'); open('a/out/x', 'w').write('1')"
    execution = run(code, "python", artifacts=folder)
    assert (dict(execution.files), execution.outcome.notes) == ({"a/out/x": b"1"}, ())


@pytest.mark.parametrize(
    ("code", "found"),
    [("echo 1 > x", {"x": b"1\n"}), ("echo : > main.sh", {"main.sh": b":\n"})],
    ids=["as it was sent", "changed"],
)
def test_program_itself_is_an_artifact_only_where_it_was_changed(
    run: Run, code: str, found: dict[str, bytes]
) -> None:
    assert dict(run(code, "bash", artifacts=".").files) == found
    kept = run(code, "bash", artifacts=".", collect=["main.sh"])
    assert "main.sh" in kept.files


@pytest.mark.parametrize("folder", ["home", "user", "home/user"])
def test_artifacts_come_from_a_folder_called_as_one_above(run: Run, folder: str) -> None:
    code = f"import os; os.makedirs('{folder}'); open('{folder}/x', 'w').write('1')"
    assert dict(run(code, "python", artifacts=folder).files) == {f"{folder}/x": b"1"}


_DEEP = "/".join(["d"] * 40)


@pytest.mark.parametrize(
    ("code", "note"),
    [
        ("", None),
        (f"os.makedirs('out/{_DEEP}')", None),
        (f"os.makedirs('out/{_DEEP}/{_DEEP}'); open('out/{_DEEP}/{_DEEP}/y', 'w')", "out/d/d"),
        ("open('out/y', 'w'); os.chmod('out/y', 0)", "out/y: "),
        ("os.mkdir('out/y'); open('out/y/z', 'w'); os.chmod('out/y', 0)", "out/y: "),
        ("os.mkdir('out/y'); open('out/y/z', 'w'); os.chmod('out/y', 0o600)", "out/y: "),
        ("open(b'out/\\xff', 'w')", "out/\ufffd: "),
        ("os.mkdir('out/z'); [os.mknod(f'out/z/{i}') for i in range(1500)]", "out: "),
        ("open('out/z', 'w').truncate(40 << 20); open('out/y', 'w').truncate(40 << 20)", "out/z: "),
    ],
    ids=["none", "deep", "deeper", "closed", "folder", "unsearched", "name", "many", "large"],
)
def test_artifact_that_does_not_come_is_said_and_others_come(
    run: Run, code: str, note: str | None
) -> None:
    code = f"import os; os.mkdir('out'); open('out/a', 'w').write('1')\n{code}"
    execution = run(code, "python", artifacts="out", limits={"file_mb": 64})
    assert execution.ok, execution.stderr
    assert execution.files["out/a"] == b"1"
    lost = [each for each in execution.outcome.notes if each.startswith(LOST)]
    assert [LOST + note in each for each in lost] == [True] if note else not lost


@pytest.mark.parametrize("folder", ["/etc", "../x", "a/../..", ""])
def test_folder_outside_is_refused(run: Run, folder: str) -> None:
    with pytest.raises(UsageError, match="artifacts"):
        run("pass", "python", artifacts=folder)


_HEAVY = "#include <bits/stdc++.h>\nint main() { return 0; }\n"


def test_compiler_that_is_killed_for_memory_ends_alone(runner: Runner, require: Require) -> None:
    """As any command would."""
    require("cpp", is_installed(LANGUAGES["cpp"]), LANGUAGES["cpp"].install)
    with Sandbox(limits={"memory_mb": 48}, runner=runner) as sandbox:
        ended = sandbox.run(_HEAVY, language="cpp")
        assert ended.verdict is Verdict.MEMORY
        assert "compile stage" in " ".join(ended.outcome.notes)
        assert sandbox.run("1").ok


def test_cancellation_while_a_session_compiles_counts(runner: Runner, require: Require) -> None:
    require("cpp", is_installed(LANGUAGES["cpp"]), LANGUAGES["cpp"].install)

    async def cancelled(engine: Engine, _put: object) -> Execution:
        async with await engine.create_sandbox() as sandbox:
            return await sandbox.run(
                _HEAVY, language="cpp", on_start=lambda handle: handle.cancel()
            )

    assert runner.call(cancelled).verdict is Verdict.CANCELLED


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("typescript", "console.error('TypeError: no'); process.exit(3);"),
        ("ruby", 'warn "main.rb:1:in `f\': boom (ArgumentError)"; exit 3'),
    ],
)
def test_what_a_program_prints_is_no_verdict(run: Run, language: str, code: str) -> None:
    """It ended as it wished, by the kernel's word; with status 1 it may have been the error."""
    chosen = run(code, language)
    assert (chosen.verdict, chosen.exit_code, chosen.error) == (Verdict.NONZERO_EXIT, 3, None)
    control = run(code.replace("3", "1"), language)
    assert control.verdict is Verdict.EXCEPTION


def test_session_compiles_in_its_own_sandbox(runner: Runner, require: Require) -> None:
    require("c", is_installed(LANGUAGES["c"]), LANGUAGES["c"].install)
    with Sandbox(runner=runner) as sandbox:
        sandbox.files.write("note.txt", "shared")
        code = (
            "#include <stdio.h>\nint main(void) { char b[9]; "
            'puts(fgets(b, 9, fopen("note.txt", "r"))); }'
        )
        assert sandbox.run(code, language="c").stdout == "shared\n"
        broken = sandbox.run("int main(", language="c")
        assert (broken.verdict, broken.stdout) == (Verdict.COMPILE_ERROR, "")
        assert sandbox.run("1 + 1").text == "2"
        assert [each.name for each in sandbox.files.list(".cellwall")] == []


CALLS = {
    "python": "def main(n, name): print('said'); return {'twice': n * 2, 'name': name}\n",
    "javascript": "function main({n, name}) { console.log('said'); "
    "return {twice: n * 2, name}; }\n",
    "typescript": "function main(a: {n: number, name: string}) "
    "{ console.log('said'); return {twice: a.n * 2, name: a.name}; }\n",
    "bash": 'echo said\nresult=$(sed \'s/"n": 21/"twice": 42/\' "$CELLWALL_ARGUMENTS")\n',
    "r": "main <- function(n, name) { cat('said\\n'); list(twice = n * 2, name = name) }\n",
    "ruby": "def main(n:, name:)\n  puts 'said'\n  { twice: n * 2, name: name }\nend\n",
    "php": '<?php\nfunction main($n, $name) { echo "said\\n"; '
    "return ['twice' => $n * 2, 'name' => $name]; }\n",
    "perl": 'sub main { my %a = @_; print "said\\n"; '
    "return { twice => $a{n} * 2, name => $a{name} } }\n1;\n",
    "lua": "function main(a) print('said') return {twice = a.n * 2, name = a.name} end\n",
    "c": '#include <stdio.h>\n#include <stdlib.h>\nint main(void) { puts("said"); char b[99]; '
    'fgets(b, 99, fopen(getenv("CELLWALL_ARGUMENTS"), "r")); '
    'fprintf(fopen(getenv("CELLWALL_RESULT"), "w"), "%s", "{\\"twice\\": 42, \\"name\\": '
    '\\"J\\u00fcrgen \\\\ud83d\\\\ude42\\"}"); }\n',
}


@pytest.mark.parametrize("language", CALLS)
def test_call_takes_arguments_and_gives_a_value(run: Run, language: str) -> None:
    name = "Jürgen 🙂"
    execution = run(CALLS[language], language, arguments={"n": 21, "name": name})
    assert execution.result == {"twice": 42, "name": name}, execution.stderr
    assert execution.stdout == "said\n"


RESULTS = {
    "javascript": "var result = [arguments.a, null, 1.5];",
    "bash": 'result="[\\"x\\", null, 1.5]"',
    "r": "result <- list(arguments$a, NULL, 1.5)",
    "ruby": "result = [arguments['a'], nil, 1.5]",
    "php": "<?php $result = [$arguments['a'], null, 1.5];",
    "perl": "our (%arguments, $result); $result = [$arguments{a}, undef, 1.5];",
}


@pytest.mark.parametrize("language", RESULTS)
def test_variable_result_is_the_value(run: Run, language: str) -> None:
    execution = run(RESULTS[language], language, arguments={"a": "x"})
    assert execution.result == ["x", None, 1.5], execution.stderr


def test_error_in_a_call_has_its_line(run: Run) -> None:
    code = "function main() {\n  throw new RangeError('no');\n}\n"
    execution = run(code, "javascript", arguments={})
    assert execution.verdict is Verdict.EXCEPTION
    assert execution.error is not None
    assert (execution.error.name, execution.error.line) == ("RangeError", 2)


@pytest.mark.parametrize(
    "written",
    [
        "{",
        "NaN",
        '"' + "x" * (5 << 20) + '"',
        "[" * 100_000,
        "[" * 300 + "]" * 300,
        "[" + "[]," * 300_000 + "0]",  # as objects 24 bytes for each of its bytes
    ],
    ids=range(6),
)
def test_hostile_value_is_a_note_and_no_value(run: Run, written: str) -> None:
    code = (
        "const fs = require('fs');"
        "fs.writeFileSync(process.env.CELLWALL_RESULT, fs.readFileSync('value.txt'))"
    )
    execution = run(code, "javascript", arguments={}, files={"value.txt": written})
    assert execution.result is None
    assert any("could not be returned" in note for note in execution.outcome.notes)

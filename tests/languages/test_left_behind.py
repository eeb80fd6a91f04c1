"""What programs leave behind or say on their way: pictures without a name, limits they ran into."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from cellwall.embedded import Sandbox, run
from cellwall.languages import registry
from cellwall.languages.tools import is_installed
from cellwall.model.execution import Event, Execution
from cellwall.model.outcome import Verdict
from conftest import Require

pytestmark = pytest.mark.timeout(180)
_SMALL: dict[str, Any] = {"limits": {"file_mb": 2}, "timeout": 60}
_FILE = 5_000_000
_TOO_LARGE = {
    "python": f"open('big', 'wb').write(b'x' * {_FILE})",
    "javascript": f"require('fs').writeFileSync('big', Buffer.alloc({_FILE}))",
    "typescript": f"import * as fs from 'fs'; fs.writeFileSync('big', Buffer.alloc({_FILE}))",
    "ruby": f"File.binwrite('big', 'x' * {_FILE})",
    "php": f"<?php file_put_contents('big', str_repeat('x', {_FILE}));",
    "perl": f"open(F, '>big'); print F 'x' x {_FILE}; close F;",
    "r": f"writeBin(raw({_FILE}), 'big')",
    "bash": f"head -c {_FILE} /dev/zero > big",
    "c": "#include <stdio.h>\nstatic char b[5000000];\nint main(void) { FILE *f = "
    'fopen("big", "w"); fwrite(b, 1, sizeof b, f); return fclose(f) != 0; }',
    "go": 'package main\nimport "os"\nfunc main() {\n'
    f'if err := os.WriteFile("big", make([]byte, {_FILE}), 0600); err != nil {{ panic(err) }} }}',
    "java": "import java.nio.file.*; public class Main { public static void main(String[] a)"
    f' throws Exception {{ Files.write(Path.of("big"), new byte[{_FILE}]); }} }}',
}


def _run(language: str, code: str, require: Require, **options: Any) -> Execution:
    known = registry.find(language)
    require(language, is_installed(known), f"run: {known.install}")
    return run(code, language=language, **({"timeout": 60} | options))


@pytest.mark.parametrize("language", _TOO_LARGE)
def test_program_that_meets_the_limit_of_files_is_told_its_name(
    language: str, require: Require
) -> None:
    ended = _run(language, _TOO_LARGE[language], require, **_SMALL)
    assert ended.verdict in (Verdict.DISK, Verdict.EXCEPTION, Verdict.NONZERO_EXIT)
    assert "limits.file_mb" in ended.for_model()


@pytest.mark.parametrize("language", ["python", "javascript", "ruby", "bash"])
def test_cell_that_meets_the_limit_of_files_is_told_its_name(
    language: str, require: Require
) -> None:
    known = registry.find(language)
    require(language, is_installed(known), f"run: {known.install}")
    with Sandbox(limits={"file_mb": 2}) as sandbox:
        ended = sandbox.run(_TOO_LARGE[language], language=language)
    assert "limits.file_mb" in " ".join(ended.outcome.notes)


def test_program_that_ends_otherwise_is_not_told_of_files(require: Require) -> None:
    control = _run("python", _TOO_LARGE["python"], require)
    assert (control.verdict, control.outcome.notes) == (Verdict.OK, ())
    ended = run("raise OSError('profile too larger')")
    assert ended.outcome.notes == ()


def test_plots_of_an_r_program_are_shown(require: Require) -> None:
    events: list[Event] = []
    code = "plot(1:3)\nhist(c(1, 2, 2))\nstop('later')\n"
    ended = _run("r", code, require, on_event=events.append)
    pictures = [base64.b64decode(each["image/png"]) for each in ended.results]
    assert [each[:4] for each in pictures] == [b"\x89PNG"] * 2
    assert [each.kind for each in events][-4:] == ["display", "display", "error", "end"]


def test_plots_of_an_r_call_are_shown_beside_its_value(require: Require) -> None:
    code = "main <- function(n) { plot(seq_len(n)); n }"
    ended = _run("r", code, require, arguments={"n": 3})
    assert (ended.result, len(ended.results)) == (3, 1)


@pytest.mark.parametrize(
    ("code", "shown"), [("pdf('a.pdf'); plot(1:3)", 0), ("cat(1)", 0), ("plot(1)", 1)]
)
def test_only_what_an_r_program_gave_no_name_is_shown(
    code: str, shown: int, require: Require
) -> None:
    assert len(_run("r", code, require).results) == shown


def test_picture_that_is_too_large_is_named(require: Require) -> None:
    code = (
        "grDevices::png(); plot(1); dev.off(); "
        "f <- file('Rplot001.png', 'ab'); writeBin(raw(2e6), f); close(f)"
    )
    ended = _run("r", code, require)
    assert ended.results == ()
    assert "Rplot001.png" in " ".join(ended.outcome.notes)


def test_file_that_only_bears_the_name_of_a_picture_is_not_shown(require: Require) -> None:
    ended = _run("r", "writeLines('GIF', 'Rplot001.png')", require)
    assert (ended.results, ended.outcome.notes) == ((), ())


_AWAITS = "const n: number = await Promise.resolve(4);\nconsole.log(n);\nexport {};\n"


@pytest.mark.parametrize(
    ("code", "stdout"),
    [
        (_AWAITS, "4\n"),
        (
            "const fs = require('fs');\nconsole.log(typeof fs.readFileSync, await 1);",
            "function 1\n",
        ),
        (
            "import { createRequire } from 'node:module';\n"
            "const require = createRequire(import.meta.url), __dirname = 'own';\n"
            "console.log(typeof require('fs').readFileSync, await __dirname);",
            "function own\n",
        ),
        ("console.log(require.main === module);", "true\n"),
    ],
    ids=["awaits", "awaits and requires", "names of its own", "a script"],
)
def test_typescript_may_await_at_its_top_level(code: str, stdout: str, require: Require) -> None:
    ended = _run("typescript", code, require)
    assert (ended.stdout, ended.verdict) == (stdout, Verdict.OK), ended.stderr


def test_error_after_an_await_has_its_line(require: Require) -> None:
    ended = _run("typescript", "await 1;\n\nthrow new RangeError('far');\n", require)
    assert ended.error is not None
    assert (ended.error.name, ended.error.line) == ("RangeError", 3)


@pytest.mark.parametrize("language", ["javascript", "typescript"])
@pytest.mark.parametrize(
    "code",
    [
        "const two = await 2;\nfunction main(given) { return given.n + two; }",
        "import fs from 'fs';\nexport function main(given) { return given.n + 2; }",
        "const result = (await 3) + 2;",
        "function main(given) { return given.n + 2; }",
    ],
)
def test_module_takes_arguments_as_a_script_does(
    language: str, code: str, require: Require
) -> None:
    ended = _run(language, code, require, arguments={"n": 3})
    assert (ended.result, ended.verdict) == (5, Verdict.OK), ended.stderr


def test_go_takes_the_standard_library_as_it_came(require: Require) -> None:
    """Compiled anew it takes `net/http` ten seconds, each time; ours are of one CPU and bounded."""
    code = 'package main\nimport ("fmt"; "net/http")\nfunc main() { fmt.Print(http.MethodGet) }'
    ended = _run("go", code, require, compile_limits={"cpu_s": 4})
    assert ended.stdout == "GET", (ended.verdict, ended.stderr)

"""A JavaScript program in a node that waited ends as it would under `node main.js`.

The control is that node itself, without a sandbox. Only frames of Node.js's own may differ: a
waiting node begins a program from its queue.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import cellwall
from cellwall.languages import registry
from cellwall.languages.tools import is_installed
from conftest import Require

pytestmark = pytest.mark.timeout(60)
_NOT_THE_PROGRAMS = r"\s+at (?:.*\(?node:internal/|process\.\w+ \(\[eval\])"
"""Frames: Node.js's own, and the one of ours that is below a handler of `exit`."""
_ENDS = {
    "status set": "process.exitCode = 4; console.log(1);",
    "exit": "process.exit(3);",
    "told of its end": "process.on('exit', (status) => console.log('bye', status));",
    "status set at its end": "process.on('exit', () => { process.exitCode = 7; });",
    "goes on before its end": "let n = 0;\n"
    "process.on('beforeExit', () => { if (n++ < 2) setTimeout(() => console.log(n), 1); });",
    "says exit itself": "console.log(process.emit('exit', 0)); console.log('still here');",
    "caught": "process.on('uncaughtException', (error) => console.log(error.message));\n"
    "setTimeout(() => console.log('later'), 5); throw new Error('no');",
    "uncaught": "process.on('exit', (status) => console.log(status)); throw new Error('no');",
    "uncaught at its end": "process.on('exit', () => { throw new Error('no'); });",
    "rejected": "Promise.reject(new Error('no'));",
    "order": "setTimeout(() => console.log('timer')); Promise.resolve().then(() => "
    "console.log('promise')); process.nextTick(() => console.log('tick')); console.log('main');",
    "much": "process.stdout.write('x'.repeat(300000));\n"
    "process.on('exit', () => console.error('bye'));",
    "a worker": "const { Worker } = require('worker_threads');\n"
    "new Worker('console.log(5)', { eval: true }).on('exit', (s) => console.log('ended', s));",
    "globals": "console.log(Object.keys(globalThis).join(), typeof gc, Object.keys(process).length,"
    " process.listenerCount('exit'), Object.keys(require.cache).length);",
}


def _own(text: str, folder: str) -> str:
    """The lines of `text` that are not frames of Node.js itself, with places told alike."""
    lines = text.replace(folder, "").splitlines()
    return "\n".join(line for line in lines if not re.match(_NOT_THE_PROGRAMS, line))


@pytest.mark.parametrize("code", _ENDS.values(), ids=list(_ENDS))
def test_program_ends_as_under_a_node_of_its_own(
    code: str, tmp_path: Path, require: Require
) -> None:
    language = registry.find("javascript")
    require("javascript", is_installed(language), f"run: {language.install}")
    (tmp_path / "main.js").write_text(code, encoding="utf-8")
    bare = subprocess.run(
        ["node", "main.js"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    ours = cellwall.run(code, language="javascript")
    assert (ours.stdout, ours.exit_code) == (bare.stdout, bare.returncode)
    assert _own(ours.stderr, "/home/user") == _own(bare.stderr, str(tmp_path))


@pytest.mark.needs("node")
def test_stack_shows_no_frame_of_ours() -> None:
    ours = cellwall.run("function f() { throw new Error('deep'); }\nf();", language="javascript")
    assert "at f (/home/user/main.js:1:" in ours.stderr
    assert "[eval" not in ours.stderr
    assert ours.error is not None
    assert "[eval" not in ours.error.traceback


def test_all_threads_are_on_the_cpus_that_the_program_is_given(require: Require) -> None:
    """Node.js has several before it is pinned; one that is elsewhere disturbs who waits for it."""
    language = registry.find("javascript")
    require("javascript", is_installed(language), f"run: {language.install}")
    require("two CPUs", len(os.sched_getaffinity(0)) > 1, "give this machine another one")
    code = """
const fs = require('fs');
const threads = fs.readdirSync('/proc/self/task');
const cpus = threads.map((each) => /^Cpus_allowed_list:\\s*(.*)$/m.exec(
  fs.readFileSync(`/proc/self/task/${each}/status`, 'utf8'))[1]);
console.log(threads.length > 3, new Set(cpus).size, cpus[0].length);
"""
    execution = cellwall.run(code, language="javascript", limits={"cpus": 1}, runtime="jail")
    assert execution.stdout == "true 1 1\n", execution

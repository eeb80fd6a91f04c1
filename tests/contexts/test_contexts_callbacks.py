"""Timers of JavaScript's in a session: they come, in order; an interrupt ends a loop in them.

The control for what they do is Node.js itself, without a session.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cellwall import Sandbox
from cellwall.languages import registry
from cellwall.languages.tools import is_installed
from cellwall.model.execution import Execution
from cellwall.model.outcome import Verdict
from conftest import Require

pytestmark = pytest.mark.timeout(120)
_LOOP = "console.log('on'); while (true) {}"
_LOOPS = {
    "a timer": f"setTimeout(() => {{ {_LOOP} }}, 5); await new Promise(() => {{}});",
    "after waiting": f"await new Promise((done) => setTimeout(done, 5)); {_LOOP}",
    "an immediate": f"setImmediate(() => {{ {_LOOP} }}); await new Promise(() => {{}});",
    "again and again": f"setInterval(() => {{ {_LOOP} }}, 5); await new Promise(() => {{}});",
    "a promise": f"Promise.resolve().then(() => {{ {_LOOP} }}); await new Promise(() => {{}});",
}
# As an interrupt finds it that comes with what the write has brought out already.
_LOOP_IN_A_WRITE = """
const handle = process.{stream}._handle, write = handle.writeUtf8String;
handle.writeUtf8String = (...all) => {{
  write.apply(handle, all);
  delete handle.writeUtf8String;
  while (true) {{}}
}};
process.{stream}.write('on\\n');
"""
_SLEEP = "const sleep = (ms) => new Promise((done) => setTimeout(done, ms));\n"
_TIMERS = {
    "one after another": _SLEEP + "for (let i = 0; i < 4; i++) { await sleep(5); console.log(i); }",
    "of all lengths": _SLEEP
    + "let n = 0; for (let i = 0; i < 40; i++) { await sleep(i % 7); n++; }"
    " console.log(n);",
    "again and again": "await new Promise((done) => { let n = 0; const all = setInterval(() => {"
    " console.log(n); if (++n === 4) { clearInterval(all); done(); } }, 5); });",
    "set by a tick": "await new Promise((done) => setTimeout(() => process.nextTick(() => {"
    " console.log('tick'); setTimeout(done, 5); }), 5)); console.log('done');",
    "taken away by a promise": _SLEEP + "await sleep(5); const gone = setTimeout(() => "
    "console.log('never'), 5); clearTimeout(gone); await sleep(10); console.log('later');",
    "due while others run": _SLEEP + "const all = [1, 2, 3].map((ms) => sleep(ms).then(() => {"
    " const until = Date.now() + 8; while (Date.now() < until); console.log(ms);"
    " return sleep(ms); })); await Promise.all(all); console.log('all');",
    "immediates between": _SLEEP + "for (let i = 0; i < 3; i++) { await new Promise(setImmediate);"
    " await sleep(3); console.log(i); }",
}


@pytest.fixture
def sandbox(require: Require) -> Iterator[Sandbox]:
    language = registry.find("javascript")
    require("javascript", is_installed(language), f"run: {language.install}")
    with Sandbox(limits={"wall_s": 60, "cpu_s": 200}) as made:
        made.run("let x = 41;", language="javascript")
        yield made


@pytest.mark.parametrize("language", ["javascript", "typescript"])
@pytest.mark.parametrize("code", _TIMERS.values(), ids=list(_TIMERS))
def test_timers_come_as_under_a_node_of_its_own(
    sandbox: Sandbox, require: Require, code: str, language: str
) -> None:
    """Twice: what one cell leaves of them is no matter to the next."""
    require(language, is_installed(registry.find(language)), "apt-get install node-typescript")
    bare = subprocess.run(
        ["node", "--input-type=module", "-e", code], capture_output=True, text=True, check=True
    )
    assert bare.stdout
    for _ in range(2):
        cell = f"await (async () => {{ {code} }})();"
        execution = sandbox.run(cell, language=language, timeout=20)
        assert (execution.verdict, execution.stdout) == (Verdict.OK, bare.stdout), execution


@pytest.mark.parametrize("code", _LOOPS.values(), ids=list(_LOOPS))
def test_interrupt_ends_a_loop_in_a_callback(sandbox: Sandbox, code: str) -> None:
    def interrupt(_text: str) -> None:
        threading.Thread(target=sandbox.interrupt, args=("javascript",)).start()

    ended = sandbox.run(code, language="javascript", on_stdout=interrupt)
    assert (ended.verdict, ended.stdout) == (Verdict.INTERRUPTED, "on\n"), ended
    again = "await new Promise((done) => setTimeout(done, 20)); x + 1"
    after = sandbox.run(again, language="javascript")
    assert (after.verdict, after.results) == (Verdict.OK, ({"text/plain": "42"},))


def test_interrupt_ends_a_loop_that_a_cell_left_behind(sandbox: Sandbox) -> None:
    left = "setTimeout(() => { require('fs').writeFileSync('looping', ''); while (true) {} }, 5); 1"
    assert sandbox.run(left, language="javascript").verdict is Verdict.OK
    sandbox.run("while [[ ! -e looping ]]; do read -t 0.01 <> <(:); done", language="bash")
    ended: list[Execution] = []
    next_cell = threading.Thread(
        target=lambda: ended.append(sandbox.run("1", language="javascript"))
    )
    next_cell.start()
    while next_cell.is_alive():
        sandbox.interrupt("javascript")
        next_cell.join(0.5)
    assert ended[0].verdict in {Verdict.INTERRUPTED, Verdict.OK}
    after = sandbox.run("x + 1", language="javascript")
    assert (after.verdict, after.results) == (Verdict.OK, ({"text/plain": "42"},))


def test_interrupt_that_comes_late_ends_no_other_cell(sandbox: Sandbox) -> None:
    """It is sent while a cell ends, at many moments of that; some of them find it.

    Node.js gives SIGINT its default action back for some microseconds at each end of a script that
    an interrupt may stop (design/0010): one in 200 of these interrupts ends the whole context. That
    is told, and the next cell runs in a new one: that after the interrupt, or its own one, when the
    interrupt came while the cell before it ended.
    """
    found: list[Execution] = []
    anew = "this ran in a new one"
    lost = 0
    for each in range(60):
        code = f"const end{each} = Date.now() + {each % 12}; while (Date.now() < end{each}) {{}}"
        cell = threading.Thread(
            target=lambda code=code: found.append(sandbox.run(code, language="javascript"))
        )
        cell.start()
        cell.join((each % 7) / 400)
        sandbox.interrupt("javascript")
        cell.join()
        is_ended = found[-1].verdict is Verdict.NONZERO_EXIT
        if is_ended or any(anew in note for note in found[-1].outcome.notes):
            lost += 1
            again = sandbox.run("var x = 41", language="javascript")
            assert again.verdict is Verdict.OK
            assert any(anew in note for note in again.outcome.notes) == is_ended
        after = sandbox.run("x + 1", language="javascript")
        assert (after.verdict, after.results) == (Verdict.OK, ({"text/plain": "42"},)), found[-1]
    verdicts = {each.verdict for each in found} - {Verdict.NONZERO_EXIT}
    assert verdicts == {Verdict.OK, Verdict.INTERRUPTED}
    assert lost <= 3


def test_error_in_a_callback_is_told_with_its_own_frames_only(sandbox: Sandbox) -> None:
    code = "setTimeout(() => { throw new RangeError('late'); }, 1);\n"
    waiting = "await new Promise((done) => setTimeout(done, 20)); 'alive'"
    told = sandbox.run(code + waiting, language="javascript")
    assert told.results == ({"text/plain": "'alive'"},), told
    assert told.stderr.startswith("Uncaught RangeError: late\n    at Timeout._onTimeout (cell-")
    assert "[eval" not in told.stderr
    assert "evalmachine" not in told.stderr


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_interrupt_in_the_middle_of_a_write_leaves_the_stream_alive(
    sandbox: Sandbox, stream: str
) -> None:
    def interrupt(_text: str) -> None:
        threading.Thread(target=sandbox.interrupt, args=("javascript",)).start()

    code = f"{{ {_LOOP_IN_A_WRITE.format(stream=stream)} }}"
    hear: dict[str, Any] = {f"on_{stream}": interrupt}
    execution = sandbox.run(code, language="javascript", timeout=20, **hear)
    assert execution.verdict is Verdict.INTERRUPTED
    for word in ("two", "three"):
        execution = sandbox.run(f"process.{stream}.write('{word}')", language="javascript")
        assert getattr(execution, stream) == word

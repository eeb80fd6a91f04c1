"""Contract of pauses: a part of `contract.RuntimeContract`.

A runtime whose sandboxes cannot be paused has to refuse with a type; the other tests are skipped.
"""

# ruff: noqa: S101 - a test suite, shipped so that third parties can run it

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from cellwall.model.errors import Conflict, HostUnsupported, SandboxUnavailable
from cellwall.model.outcome import Verdict
from cellwall.runtimes.base import Pauses

if TYPE_CHECKING:
    from cellwall.embedded import Sandbox
    from cellwall.engine.engine import Engine
    from cellwall.testing.contract import Subject

_SPIN = "while :; do :; done"
_LOOK_S = 0.5


def _cpu_s(subject: Subject, sandbox: Sandbox) -> float:
    async def read(engine: Engine, _put: object) -> float:
        found = engine.sandbox(sandbox.id)
        assert found is not None
        return found.live.readings().cpu_s

    return subject.runner.call(read)


def _can_pause(subject: Subject, sandbox: Sandbox) -> bool:
    async def ask(engine: Engine, _put: object) -> bool:
        found = engine.sandbox(sandbox.id)
        return found is not None and isinstance(found.live.runtime_sandbox, Pauses)

    return subject.runner.call(ask)


@contextlib.contextmanager
def _pausing(subject: Subject, **options: Any) -> Iterator[Sandbox]:  # noqa: ANN401 - of Engine.create_sandbox
    """Give a sandbox that can be paused; skip the test if none of the runtime's can."""
    with subject.sandbox() as sandbox:
        if not _can_pause(subject, sandbox):
            pytest.skip("the runtime does not pause")
    with subject.sandbox(**options) as sandbox:
        yield sandbox


def _wait_for(sandbox: Sandbox, status: str, within_s: float = 10.0) -> None:
    until = time.monotonic() + within_s
    while sandbox.status != status:
        assert time.monotonic() < until, f"it is {sandbox.status}"
        time.sleep(0.02)


def _refusal(step: Callable[[], object]) -> HostUnsupported | None:
    try:
        step()
    except HostUnsupported as error:
        return error
    return None


class PausesContract:
    """Pause and resume."""

    def test_runtime_that_cannot_pause_says_so(self, subject: Subject) -> None:
        """A refusal with a remedy; the sandbox runs on."""
        with subject.sandbox() as sandbox:
            if _can_pause(subject, sandbox):
                pytest.skip("the runtime pauses")
            with pytest.raises(HostUnsupported) as refused:
                sandbox.pause()
            assert refused.value.remedy
            assert sandbox.run("print(1)").stdout == "1\n"
        with pytest.raises(HostUnsupported):
            subject.sandbox(auto_pause_s=60)

    def test_paused_sandbox_uses_no_cpu_time(self, subject: Subject) -> None:
        """A command that never waits stands still with everything else, and goes on."""
        with _pausing(subject) as sandbox:
            sandbox.commands.start(_SPIN)
            moving = _cpu_s(subject, sandbox)
            time.sleep(_LOOK_S)
            assert _cpu_s(subject, sandbox) > moving  # the control
            sandbox.pause()
            assert sandbox.status == "paused"
            before = _cpu_s(subject, sandbox)
            time.sleep(_LOOK_S)
            assert _cpu_s(subject, sandbox) - before < 0.05  # gVisor's own part of it
            sandbox.resume()
            assert sandbox.status == "running"
            again = _cpu_s(subject, sandbox)
            time.sleep(_LOOK_S)
            assert _cpu_s(subject, sandbox) > again

    def test_state_is_there_after_a_pause(self, subject: Subject) -> None:
        """Variables and files stay, and the next cell resumes by itself."""
        with _pausing(subject) as sandbox:
            sandbox.run("x = 41")
            sandbox.files.write("a.txt", "kept")
            sandbox.pause()
            assert sandbox.run("print(x + 1)").stdout == "42\n"
            assert sandbox.status == "running"
            sandbox.pause()
            assert sandbox.files.read("a.txt") == "kept"
            sandbox.pause()
            assert sandbox.commands.run("echo on").stdout == "on\n"

    def test_deadline_stands_still_in_a_pause(self, subject: Subject) -> None:
        """A cell that is paused for longer than its time limit ends well, with its own time."""
        with _pausing(subject) as sandbox, ThreadPoolExecutor(1) as threads:
            begun = Event()
            code = "import time\nfor n in range(10):\n    print(n, flush=True); time.sleep(0.1)"
            running = threads.submit(
                sandbox.run, code, timeout=2.5, on_stdout=lambda _text: begun.set()
            )
            assert begun.wait(10)
            sandbox.pause()
            time.sleep(3)
            assert not running.done()
            sandbox.resume()
            execution = running.result(10)
            assert execution.verdict is Verdict.OK
            assert execution.stdout.split() == [str(n) for n in range(10)]
            assert execution.outcome.usage.wall_s < 2.5

    def test_output_that_waits_is_not_lost(self, subject: Subject) -> None:
        """A cell that is paused while it writes a lot comes back whole."""
        with _pausing(subject, limits={"output_kb": 8192}) as sandbox:
            with ThreadPoolExecutor(1) as threads:
                begun = Event()
                code = "for n in range(40000): print('x' * 99, flush=n % 100 == 0)"
                running = threads.submit(sandbox.run, code, on_stdout=lambda _text: begun.set())
                assert begun.wait(10)
                sandbox.pause()
                time.sleep(0.2)
                sandbox.resume()
                execution = running.result(30)
            assert execution.verdict is Verdict.OK
            assert execution.outcome.usage.stdout_bytes == 40_000 * 100

    def test_manual_sandbox_refuses_requests_while_it_is_paused(self, subject: Subject) -> None:
        """Only `resume` resumes it."""
        with _pausing(subject, resume="manual") as sandbox:
            sandbox.pause()
            for request in (
                lambda: sandbox.run("1"),
                lambda: sandbox.commands.run("true"),
                lambda: sandbox.files.exists("a"),
                sandbox.interrupt,
            ):
                with pytest.raises(Conflict) as refused:
                    request()
                assert "resume" in str(refused.value.remedy)
            assert sandbox.status == "paused"
            sandbox.resume()
            assert sandbox.run("print(1)").stdout == "1\n"

    def test_looking_does_not_wake(self, subject: Subject) -> None:
        """Its state and the kernel's counters can be read."""
        with _pausing(subject) as sandbox:
            sandbox.pause()
            left_s = sandbox.ends_at - time.time()
            for _ in range(5):
                _cpu_s(subject, sandbox)
                assert sandbox.isolation.runtime
                time.sleep(0.05)
            assert sandbox.status == "paused"
            assert abs(sandbox.ends_at - time.time() - left_s) < 0.1  # its life stands still

    def test_pauses_and_resumes_are_idempotent(self, subject: Subject) -> None:
        """Also two at once."""
        with _pausing(subject) as sandbox, ThreadPoolExecutor(4) as threads:
            sandbox.resume()
            for _ in range(5):
                for step in (sandbox.pause, sandbox.resume):
                    for each in [threads.submit(step) for _ in range(4)]:
                        each.result(10)
            assert sandbox.run("print(1)").stdout == "1\n"

    def test_cancelled_execution_of_a_paused_sandbox_ends(self, subject: Subject) -> None:
        """An interrupt resumes it, as every request; its state stays."""
        with _pausing(subject) as sandbox, ThreadPoolExecutor(1) as threads:
            begun = Event()
            code = "x = 7\nprint('go', flush=True)\nimport time; time.sleep(60)"
            running = threads.submit(sandbox.run, code, on_stdout=lambda _text: begun.set())
            assert begun.wait(10)
            sandbox.pause()
            sandbox.interrupt()
            assert running.result(10).verdict is Verdict.INTERRUPTED
            assert sandbox.run("print(x)").stdout == "7\n"

    def test_closing_a_paused_sandbox_ends_it(self, subject: Subject) -> None:
        """At once, with what ran in it; afterwards it cannot be paused."""
        with _pausing(subject) as sandbox, ThreadPoolExecutor(1) as threads:
            begun = Event()
            code = "print('go', flush=True)\nimport time; time.sleep(60)"
            running = threads.submit(sandbox.run, code, on_stdout=lambda _text: begun.set())
            assert begun.wait(10)
            sandbox.pause()
            sandbox.close()
            assert running.result(10).verdict is Verdict.CANCELLED
            for step in (sandbox.pause, sandbox.resume):
                with pytest.raises(SandboxUnavailable):
                    step()
        subject.settle()

        async def live(engine: Engine, _put: object) -> int:
            return engine.statistics().sandboxes

        assert subject.runner.call(live) == 0

    def test_idle_sandbox_pauses_if_its_owner_wants(self, subject: Subject) -> None:
        """Instead of ending; and again after a request."""
        with _pausing(subject, auto_pause_s=1, limits={"idle_s": 2}) as sandbox:
            sandbox.run("x = 1")
            _wait_for(sandbox, "paused")
            time.sleep(2.5)
            assert sandbox.status == "paused"
            assert sandbox.run("print(x)").stdout == "1\n"
            _wait_for(sandbox, "paused")

    def test_hibernated_sandbox_goes_on_or_says_why_not(self, subject: Subject) -> None:
        """It has no processes and then its state, or a refusal with a remedy and it runs on."""
        with subject.sandbox() as sandbox:
            sandbox.run("x = 41")
            refusal = _refusal(sandbox.hibernate)
            if refusal is None:
                assert sandbox.status == "hibernated"
            else:
                assert refusal.remedy
                assert sandbox.status == "running"
                with pytest.raises(HostUnsupported):
                    subject.sandbox(hibernate_s=60)
            assert sandbox.run("print(x + 1)").stdout == "42\n"
            assert sandbox.status == "running"
            sandbox.files.write("note", "kept")
            refusal = _refusal(lambda: sandbox.hibernate(keep="files"))
            if refusal is not None:
                assert refusal.remedy
                assert sandbox.status == "running"
            assert sandbox.files.read("note") == "kept"
            has_state = sandbox.run("print('x' in globals())").stdout
            assert has_state == f"{refusal is not None}\n"

    def test_running_command_keeps_its_sandbox_awake(self, subject: Subject) -> None:
        """A command in the background is activity."""
        with _pausing(subject, auto_pause_s=1) as sandbox:
            command = sandbox.commands.start("sleep 2.5; echo done")
            assert command.wait().stdout == "done\n"
            assert sandbox.status == "running"
            _wait_for(sandbox, "paused")

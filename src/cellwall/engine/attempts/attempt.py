"""Attempt: one execution or command, from the request to the evidence of its end.

`Attempt` opens the request, runs the clocks and collects the evidence; `recorder` receives the
frames. Neither decides the verdict: `verdicts` does. When a limit is reached, the output that had
arrived until then is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from cellwall.engine.attempts import hints
from cellwall.engine.attempts.aftermath import ENDING_S, Aftermath
from cellwall.engine.attempts.cpu_share import Share
from cellwall.engine.attempts.deadlines import Deadlines
from cellwall.engine.attempts.recorder import Recorder
from cellwall.engine.attempts.verdicts import Cause, Evidence, classify
from cellwall.model.errors import SandboxBroken
from cellwall.model.execution import Execution
from cellwall.model.ids import new_id, node_of
from cellwall.model.outcome import Outcome, Usage
from cellwall.runtimes.channel.replies import ChannelLost
from cellwall.surface.shared import callbacks

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.model.limits import Limits
    from cellwall.runtimes.base import KernelReadings
    from cellwall.surface.tools.tools import Offer

_GRACE_S = 1.0
"""Seconds between asking a program in a living sandbox to stop and killing its processes."""
_GONE_S = 3.0
_STDIN_STEP_BYTES = 1024 * 1024

OnEvent = callbacks.OnEvent
BeforeCode = Callable[[], Awaitable[None]]
"""Callback awaited once a sandbox is claimed; an exception from it ends the request before any code
has run."""
OnStart = Callable[["Handle"], None]
"""Callback called once, when the code has been handed over."""


def _nothing() -> None:
    """Do nothing: the default of a callback."""


class NotBegun(SandboxBroken):
    """The sandbox ended between its claim and the start of the program."""

    def __init__(self, why: str) -> None:
        """`why` is the known reason of its end."""
        super().__init__(
            f"run: the sandbox ended before the program began ({why})", remedy="try again"
        )


class Handle(Protocol):
    """What a caller can do to a running execution; see `Attempt`."""

    def cancel(self) -> None:
        """End the execution with the verdict `cancelled`. Idempotent."""

    def pause(self) -> None:
        """Stop reading the sandbox's output. Idempotent."""

    def resume(self) -> None:
        """Undo `pause`. Idempotent."""


@dataclass(frozen=True, slots=True)
class Work:
    """Request to the guest, and the limits it runs under."""

    op: str
    fields: Mapping[str, Any]
    limits: Limits
    body: bytes = b""
    stdin: bytes | None = None
    """Bytes sent to stdin, which is closed afterwards. None: no stdin, or (with `stdin: stream`)
    the caller sends it later."""
    stop: Callable[[int], None] | None = None
    """Function that asks the program, by request number, to end; None: the sandbox is killed at a
    limit."""
    after: Callable[[Attempt, Outcome], Awaitable[Outcome]] | None = None
    """Coroutine function awaited after the end and before it is reported: it may add a value or an
    error."""
    tools: Offer | None = None
    """The caller's tools that the code may call."""
    is_asked: bool = False
    """Whether the program can ignore `stop`; then its processes are killed, and only then the
    sandbox."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """Where work stands that an earlier process began, and that goes on in this one."""

    number: int
    """Number of its request."""
    cpu_before_s: float
    """CPU seconds of the sandbox that are not the work's."""
    left_s: float
    """Seconds of its wall time that are left."""


class Attempt:
    """One piece of work under way in a live sandbox."""

    def __init__(
        self,
        live: ClaimedSandbox,
        work: Work,
        on_event: OnEvent | None,
        recorder: Recorder | None = None,
        *,
        is_held: bool = False,
        earlier: Earlier | None = None,
    ) -> None:
        """Hand the work over; the clocks start now. `recorder` replaces the usual one.

        Work that `is_held` begins with `go` or ends with `give_up`. What is at work already, as
        `earlier` says, is not handed over.
        """
        self.live = live
        self.work = work
        self.recorder = recorder or Recorder(work.limits, on_event)
        live.knock()
        self._before: KernelReadings = live.readings_before()
        self._paused_before_s = live.paused_s
        self._began_s = time.perf_counter()
        self._deadlines: Deadlines | None = None
        channel = live.channel
        fields = {**work.fields, "held": True} if is_held else work.fields
        left_s: float | None = None
        if earlier is None:
            self.recorder.number = channel.open(
                work.op, self.recorder, self.recorder.expected, fields, work.body
            )
        else:
            left_s = self._begin_again(earlier)
        self.recorder.context = work.fields.get("context")
        if work.tools is not None:
            from cellwall.engine.attempts.tool_calls import Calls  # most programs call none

            self.recorder.calls = Calls(work.tools, channel, self.recorder.tell_of_call)
        # Later: this may be in the middle of a read, and a limit reads first.
        self.recorder.on_refused = partial(asyncio.get_running_loop().call_soon, self.cancel)
        self._found_others = bool(live.running) or earlier is not None
        live.running.add(self.recorder)
        live.begun += 1
        self._order = live.begun
        self._share: Share | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._aftermath = Aftermath(live, self.recorder, self._before, work.limits)
        self._is_paused = False
        if not is_held:
            self._start_clocks(left_s)
        if work.stdin is not None:
            self._feed(work.stdin)

    def _begin_again(self, earlier: Earlier) -> float:
        """Take the place of the process that began the work; return the wall time left."""
        number = self.recorder.number = earlier.number
        self.live.channel.listen(number, self.recorder, self.recorder.expected)
        self._before = replace(self._before, cpu_s=earlier.cpu_before_s)
        self._began_s -= max(0.0, self.work.limits.wall_s - earlier.left_s)
        return earlier.left_s

    @property
    def clocks(self) -> Deadlines | None:
        """Its clocks, while they run or stand still."""
        return self._deadlines

    def _start_clocks(self, left_s: float | None = None) -> None:
        if self.work.stop is not None:
            self._share = Share(self.live, self.recorder.number)
        self._deadlines = Deadlines(
            self.work.limits,
            self.live.read_cpu_s,
            self._before.cpu_s,
            self._on_breach,
            self._share,
            left_s,
        )
        self.live.clocks.add(self._deadlines)
        if self.live.pausing is not None and self.live.pausing.is_paused:
            self._deadlines.hold()  # until it has resumed

    def _stop_clocks(self) -> None:
        """Stop the clocks and drop references to this object, which would form a cycle."""
        if self._deadlines is not None:
            self._deadlines.stop()
            self.live.clocks.discard(self._deadlines)
        if self._grace is not None:
            self._grace.cancel()
        self._deadlines = self._grace = None
        self.recorder.on_refused = _nothing

    def hand_out(self, on_start: OnStart | None) -> None:
        """Give the caller its handle.

        An exception of the callback ends the work, and `wait` raises it.
        """
        try:
            if on_start is not None:
                on_start(self)
        except Exception as error:  # noqa: BLE001 - raised by the caller's callback
            self.recorder.refuse(error)

    def go(self) -> None:
        """Begin the held work; the clocks start now."""
        self._began_s = time.perf_counter()
        self.live.channel.go()
        self._start_clocks()

    def give_up(self) -> None:
        """Forget the held work; the caller destroys the sandbox."""
        self.live.channel.forget(self.recorder.number)
        self.live.running.discard(self.recorder)

    def abandon(self) -> None:
        """Record no further frames of it, and end nothing: its end cannot be known."""
        self._stop_clocks()
        self.live.channel.forget(self.recorder.number)
        self.live.running.discard(self.recorder)
        self.recorder.settle(Cause.LOST, "its end is not known")

    def _feed(self, data: bytes) -> None:
        number, channel = self.recorder.number, self.live.channel
        for start in range(0, len(data), _STDIN_STEP_BYTES):
            step = data[start : start + _STDIN_STEP_BYTES]
            channel.send({"op": "stdin", "id": number}, step)
        channel.send({"op": "stdin_close", "id": number})

    def _on_breach(self, cause: Cause) -> None:
        # Frames that have arrived count: also a `done` that came at the same moment.
        self.live.channel.poll()
        # The program is asked to stop only once: a later breach neither changes the cause nor
        # extends the grace.
        if self.recorder.is_ended or self._grace is not None:
            return
        self.recorder.cause = cause
        if self.work.stop is None or not self.live.channel.is_open:
            self.recorder.settle(cause)
            return
        self.live.ending.add(self.recorder)
        self.work.stop(self.recorder.number)
        loop = asyncio.get_running_loop()
        if self.work.is_asked:
            self._grace = loop.call_later(_GRACE_S, self._insist)
        else:
            self._grace = loop.call_later(ENDING_S, self._give_up)

    def _insist(self) -> None:
        """Kill a program that did not stop when asked: its processes, or the whole sandbox."""
        self.live.channel.poll()
        if self.recorder.is_ended:
            return
        with contextlib.suppress(ChannelLost):  # then `on_lost` ends it
            self._aftermath.begin_end()
        self._grace = asyncio.get_running_loop().call_later(ENDING_S, self._give_up)

    def _give_up(self) -> None:
        self.live.channel.poll()
        if self.recorder.is_ended:
            return
        self.recorder.settle(self.recorder.cause, "its processes could not be stopped")
        self.live.kill("the processes of a program did not stop at its limit")

    def cancel(self) -> None:
        """End the work on request of its caller: `wait` returns `cancelled`. Idempotent.

        A paused sandbox resumes for it.
        """
        if not self.recorder.is_ended:
            if self.live.pausing is not None:
                self.live.pausing.wake()
            self._on_breach(Cause.CANCEL)

    def pause(self) -> None:
        """Stop reading the sandbox's output until `resume` or the end; idempotent."""
        if not self._is_paused and not self.recorder.is_ended:
            self._is_paused = True
            self.live.channel.pause()

    def resume(self) -> None:
        """Undo `pause`; idempotent."""
        if self._is_paused:
            self._is_paused = False
            self.live.channel.resume()

    async def wait(self) -> Outcome:
        """Return the outcome; on cancellation stop the program first.

        Raises `NotBegun` if the sandbox ended before it was ready for the work.
        """
        try:
            return await self._ended()
        finally:
            if self.recorder.is_ended:
                self.live.ending.discard(self.recorder)

    async def _ended(self) -> Outcome:
        calls = self.recorder.calls
        try:
            await self.recorder.waiter
        except asyncio.CancelledError:
            await self._cancelled()
            raise
        finally:
            self.resume()
            if self.recorder.is_ended:
                self._let_go()
        self.live.ending.add(self.recorder)
        if calls is not None:
            await calls.wait_ended()
        if self.recorder.cause is Cause.LOST and self.live.channel.is_unready:
            raise NotBegun(self.recorder.detail)
        self.recorder.raise_refusal()
        paused_s = self.live.paused_s - self._paused_before_s
        wall_s = time.perf_counter() - self._began_s - paused_s
        now = await self._readings()
        kills = await self._aftermath.kills(now.oom_kills)
        if now.processes_refused > self._before.processes_refused and self._lives_on:
            await self._aftermath.thin()
        outcome = self._judge(wall_s, now, kills)
        if self._lives_on:
            await self._aftermath.end_rest(outcome.verdict)
            if self._aftermath.has_ended_it and outcome.exit_code is None:
                # the signal that ended its context
                outcome = replace(outcome, signal=signal.SIGKILL)
        if self.work.after is not None:
            outcome = await self.work.after(self, outcome)
        notes = hints.of_words(outcome.verdict, self.recorder, self.work.limits)
        if notes := notes + self._aftermath.notes + self._consequences():
            outcome = replace(outcome, notes=outcome.notes + notes)
        self.recorder.end(outcome)
        return outcome

    async def _readings(self) -> KernelReadings:
        """Read the counters; of a lost sandbox at its end, when it is known if memory was why."""
        if self.recorder.cause is Cause.LOST and not self.live.channel.is_open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GONE_S):
                    await self.live.runtime_sandbox.wait_ended()
        return self.live.readings()

    def _let_go(self) -> None:
        self._stop_clocks()
        self.live.channel.forget(self.recorder.number)
        self.live.running.discard(self.recorder)
        self.live.ending.discard(self.recorder)
        self.recorder.calls = None

    async def _cancelled(self) -> None:
        """Stop the program of a cancelled caller; keep a living sandbox's context usable."""
        recorder, loop = self.recorder, asyncio.get_running_loop()
        recorder.waiter = loop.create_future()
        self.cancel()
        if recorder.is_ended:
            return
        try:
            await recorder.waiter
        except asyncio.CancelledError:
            # Cancelled again, as some frameworks do at once: the program keeps its grace, after
            # which it or its sandbox has ended. Until then it counts as running.
            recorder.waiter = loop.create_future()
            recorder.waiter.add_done_callback(lambda _: self._let_go())
            raise

    @property
    def is_context_alive(self) -> bool:
        """Whether its context is available for the next cell."""
        return bool(self.recorder.done.get("alive")) and not self._aftermath.has_ended_it

    @property
    def _lives_on(self) -> bool:
        """Whether the sandbox lives on after this work, as that of a session does."""
        return self.work.stop is not None and bool(self.recorder.done) and self.live.is_alive

    def _judge(self, wall_s: float, now: KernelReadings, kills: int) -> Outcome:
        recorder = self.recorder
        done = recorder.done
        rusage = done.get("rusage", {})
        cpu_s = self._cpu_s(now, rusage)
        is_soft = self.live.isolation.hardness.get("memory_mb") == "soft"
        evidence = Evidence(
            limits=self.work.limits,
            cause=recorder.cause,
            exit_code=done.get("exit_code"),
            signal=done.get("signal"),
            raised=bool(done.get("raised")),
            interrupted=recorder.interrupt_sent and self._was_interrupted(done),
            cpu_s=cpu_s,
            oom_kills=kills,
            processes_refused=self._count_refused(now),
            is_crowd=self._aftermath.is_crowd,
            disk_full=now.disk_full,
            softly_held_bytes=rusage.get("maxrss_kib", 0) << 10 if is_soft else 0,
            cut=recorder.truncated,
            detail=recorder.detail,
        )
        verdict, notes = classify(evidence)
        return Outcome(
            verdict=verdict,
            isolation=self.live.isolation,
            exit_code=evidence.exit_code,
            signal=evidence.signal,
            usage=Usage(
                wall_s=wall_s,
                cpu_s=cpu_s,
                memory_peak_bytes=now.memory_peak_bytes or rusage.get("maxrss_kib", 0) << 10,
                processes_peak=now.processes_peak,
                stdout_bytes=recorder.stdout.kept_bytes + evidence.cut.stdout,
                stderr_bytes=recorder.stderr.kept_bytes + evidence.cut.stderr,
            ),
            truncated=evidence.cut,
            notes=notes,
        )

    def _cpu_s(self, now: KernelReadings, rusage: Mapping[str, int]) -> float:
        """Return the CPU seconds used.

        Beside other executions, take what the kernel reports for the first process and for the
        others.
        """
        total_s = now.cpu_s - self._before.cpu_s
        led_s = (rusage.get("user_us", 0) + rusage.get("system_us", 0)) / 1e6
        if self._share is None or not (self._found_others or self.live.begun > self._order):
            return max(total_s, led_s)
        return max(led_s, min(total_s, self._share.known_s))

    def _count_refused(self, now: KernelReadings) -> int:
        """Return the number of forks refused during this work.

        Where the limit is held softly, a refused fork may end the sandbox and may precede the start
        of this work.
        """
        is_soft = self.live.isolation.hardness.get("processes") == "soft"
        is_its_end = is_soft and self.recorder.cause is Cause.LOST
        return now.processes_refused - (0 if is_its_end else self._before.processes_refused)

    def _was_interrupted(self, done: Mapping[str, Any]) -> bool:
        error = self.recorder.error
        return done.get("signal") == 2 or (error is not None and error.name == "KeyboardInterrupt")

    def _consequences(self) -> tuple[str, ...]:
        """Return notes on a value that did not arrive and on the state of a session's context."""
        recorder = self.recorder
        if recorder.value_refused:
            return (
                f"the result could not be returned as JSON: {recorder.value_refused[:200]}; "
                "write it to a file and collect that",
            )
        if self.work.op != "execute" or self.work.fields.get("mode") != "cell":
            return ()
        if self.is_context_alive:
            is_stopped = recorder.cause is not Cause.ITSELF
            return ("the context is alive and kept its state",) if is_stopped else ()
        rest = "; files, other contexts and commands are still there" if self.live.is_alive else ""
        return (f"the context has ended and its state is lost{rest}",)


def finish(
    attempt: Attempt,
    outcome: Outcome,
    language: str,
    started_at: float,
    files: Mapping[str, bytes] | None = None,
) -> Execution:
    """Build the answer of an execution."""
    recorder, spec = attempt.recorder, attempt.live.spec
    return Execution(
        id=new_id(node_of(spec.sandbox_id)),
        language=language,
        stdout=recorder.stdout.text,
        stderr=recorder.stderr.text,
        outcome=outcome,
        limits=attempt.work.limits,
        result=recorder.value,
        results=tuple(recorder.results),
        error=recorder.error,
        template=spec.template.template.name,
        sandbox_id=spec.sandbox_id,
        started_at=started_at,
        files=files or {},
        trust=attempt.live.trust,
    )

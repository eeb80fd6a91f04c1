"""One execution or command from the request to the evidence of its end.

`perform` opens the request, runs the clocks and gathers; `Recorder` takes the frames. Neither
judges: `verdicts` does. Nothing is kept beyond the limits of the work, whatever the guest sends,
and a limit that strikes keeps the output that had arrived until then.
"""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from cellwall.engine.deadlines import Deadlines
from cellwall.engine.tools import Calls
from cellwall.engine.verdicts import Cause, Evidence, classify
from cellwall.model.errors import SandboxBroken
from cellwall.model.execution import Event, EventKind, Execution, ExecutionError
from cellwall.model.ids import new_id
from cellwall.model.outcome import Outcome, Truncated, Usage
from cellwall.runtimes.channel import RUN, ChannelLost, GuestRefused
from cellwall.runtimes.frames import FrameError, strict_json
from cellwall.surface import callbacks

if TYPE_CHECKING:
    from cellwall.engine.live import Live
    from cellwall.model.limits import Limits
    from cellwall.runtimes.base import KernelReadings
    from cellwall.surface.tools import Offer

_DISPLAY_CAP_BYTES = 16 * 1024 * 1024
"""Display data kept per execution; the guest's own bound is lower."""
_GRACE_S = 1.0
"""Between asking a program in a living sandbox to stop and killing the sandbox."""
_STDIN_STEP_BYTES = 1024 * 1024

OnEvent = callbacks.OnEvent
BeforeCode = Callable[[], Awaitable[None]]
"""Awaited once there is a sandbox; what it raises ends the request, and nothing has run."""
OnStart = Callable[["Handle"], None]
"""Called once, when the code has been handed over."""


class NotBegun(SandboxBroken):
    """The sandbox ended between its claim and the program."""

    def __init__(self, why: str) -> None:
        """`why` is what is known of its end."""
        super().__init__(
            f"run: the sandbox ended before the program began ({why})", remedy="try again"
        )


class Handle(Protocol):
    """What a caller can do to an execution that runs; see `Attempt`."""

    def cancel(self) -> None:
        """End it: its verdict is `cancelled`. Idempotent."""

    def pause(self) -> None:
        """Stop taking in what its sandbox says. Idempotent."""

    def resume(self) -> None:
        """Undo `pause`. Idempotent."""


@dataclass(frozen=True, slots=True)
class Work:
    """What to ask of the guest, and under which limits."""

    op: str
    fields: Mapping[str, Any]
    limits: Limits
    body: bytes = b""
    stdin: bytes | None = None
    """Sent and closed at once. None: none, or (with `stdin: stream`) by the caller, later."""
    stop: Callable[[int], None] | None = None
    """Asks the program, by request number, to end; None: the sandbox is killed at a limit."""
    after: Callable[[Attempt, Outcome], Awaitable[Outcome]] | None = None
    """Awaited when it has ended and before that is told: may add a value or an error."""
    tools: Offer | None = None
    """What the code may call on our side."""


@dataclass(slots=True)
class Stream:
    """One bounded output stream."""

    kind: EventKind
    cap_bytes: int
    chunks: list[bytes] = field(default_factory=list)
    kept_bytes: int = 0
    cut_bytes: int = 0
    decoder: codecs.IncrementalDecoder | None = None

    def add(self, data: bytes) -> bytes:
        """Keep what still fits; return what was kept."""
        room = self.cap_bytes - self.kept_bytes
        if len(data) > room:
            self.cut_bytes += len(data) - room
            data = data[:room]
        if data:
            self.chunks.append(data)
            self.kept_bytes += len(data)
        return data

    def decode(self, data: bytes, *, final: bool = False) -> str:
        """Decode step by step; a character may arrive in two frames."""
        if self.decoder is None:
            self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return self.decoder.decode(data, final)

    @property
    def text(self) -> str:
        """Everything kept."""
        return b"".join(self.chunks).decode("utf-8", "replace")


class Recorder:
    """Listener of one request: bounded memory of what happened, and a future for its end."""

    expected = RUN
    """The events its request may cause."""

    def __init__(self, limits: Limits, on_event: OnEvent | None) -> None:
        """`on_event` is called on the loop, in order, and must not block."""
        self._on_event = on_event
        self._seq = 0
        self.stdout = Stream("stdout", limits.output_bytes)
        self.stderr = Stream("stderr", limits.output_bytes)
        self.results: list[Mapping[str, Any]] = []
        self._display_bytes = 0
        self._display_cut = 0
        self.error: ExecutionError | None = None
        self.value: Any = None
        self.value_refused = ""
        """Why there is no value although the program made one; the inside's words."""
        self.pid: int | None = None
        self.cause = Cause.ITSELF
        self.detail = ""
        self.done: Mapping[str, Any] = {}
        self._cut_inside: dict[str, int] = {}
        """What the guest said it had cut; `done` says it at the end, but not every run has one."""
        self.refused: GuestRefused | None = None
        self.number = 0
        self.calls: Calls | None = None
        """To the caller's tools, if it gave some."""
        self.interrupt_sent = False
        self.context: str | None = None
        self.is_ended = False
        # Apart from the flag: cancelling who waits must not look like an end.
        self.waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.started: asyncio.Future[int] | None = None
        self.refused_by_caller: Exception | None = None
        """What `on_event` raised."""
        self.on_refused: Callable[[], object] = lambda: None

    # -- frames ----------------------------------------------------------------------------

    def on_frame(self, kind: str, header: dict[str, Any], body: bytes) -> None:
        """Take one frame; content that is not what it claims is a `FrameError`."""
        if self.is_ended:
            return
        if kind == "stdout":
            self._on_output(self.stdout, body)
        elif kind == "stderr":
            self._on_output(self.stderr, body)
        elif kind == "done":
            self.done = header
            self.settle(self.cause)
        else:
            _HANDLERS[kind](self, header, body)

    def _on_output(self, stream: Stream, body: bytes) -> None:
        kept = stream.add(body)
        if self._on_event is not None and kept and (text := stream.decode(kept)):
            self._emit(stream.kind, text=text)

    def _on_display(self, header: dict[str, Any], body: bytes) -> None:
        self._display_bytes += len(body)
        if self._display_bytes > _DISPLAY_CAP_BYTES:
            self._display_cut += len(body)
            return
        bundle = strict_json(body)
        if not isinstance(bundle, dict):
            raise FrameError("display: the bundle is not an object")
        self.results.append(bundle)
        self._emit(header["kind"], data=bundle)

    def _on_error(self, header: dict[str, Any], body: bytes) -> None:
        value = strict_json(body)
        known = value if isinstance(value, dict) else {}
        words = [known.get(name) for name in ("name", "value", "traceback")]
        texts = [word for word in words if isinstance(word, str)]
        if len(texts) != len(words):
            raise FrameError("error: needs the strings name, value and traceback")
        self.error = ExecutionError(texts[0], texts[1], texts[2])
        self._emit("error", error=self.error)

    def _on_value(self, header: dict[str, Any], body: bytes) -> None:
        if body:
            self.value = strict_json(body)
            self._emit("value", value=self.value)
        else:
            self.value_refused = str(header.get("unserialisable", "the inside did not say why"))

    def _on_cut(self, header: dict[str, Any], body: bytes) -> None:
        self._cut_inside[header["stream"]] = header["bytes"]

    def _on_call(self, header: dict[str, Any], body: bytes) -> None:
        if self.calls is None:
            raise FrameError("call: this request has no tools")
        self.calls.begin(self.number, header, body)

    def _on_call_dropped(self, header: dict[str, Any], body: bytes) -> None:
        if self.calls is not None:
            self.calls.drop(header)

    def _on_started(self, header: dict[str, Any], body: bytes) -> None:
        self.pid = int(header["pid"])
        if self.started is not None and not self.started.done():
            self.started.set_result(self.pid)

    def _on_fail(self, header: dict[str, Any], body: bytes) -> None:
        self.refused = GuestRefused(str(header["code"])[:40], str(header["message"])[:2000])
        self.settle(self.cause)

    def on_lost(self, error: ChannelLost) -> None:
        """The sandbox is gone: that is an end too, and evidence decides which."""
        if self.cause is Cause.ITSELF:
            self.cause = Cause.HOSTILE if error.is_hostile else Cause.LOST
        self.settle(self.cause, str(error))

    # -- end -------------------------------------------------------------------------------

    def settle(self, cause: Cause, detail: str = "") -> None:
        """End the recording; the first call counts."""
        if self.is_ended:
            return
        self.is_ended = True
        self.cause, self.detail = cause, detail
        if self.calls is not None:
            self.calls.end()
        if self._on_event is not None:
            for stream in (self.stdout, self.stderr):
                if rest := stream.decode(b"", final=True):
                    self._emit(stream.kind, text=rest)
        if not self.waiter.done():
            self.waiter.set_result(None)
        if self.started is not None and not self.started.done():
            self.started.cancel()

    def _emit(self, kind: EventKind, **content: Any) -> None:  # noqa: ANN401 - of an Event
        if self._on_event is None:
            return
        self._seq += 1
        try:
            self._on_event(Event(self._seq, kind, **content))
        except Exception as error:  # noqa: BLE001 - the caller's own, who gets it from `wait`
            self._on_event = None
            self.refused_by_caller = error
            self.on_refused()

    def raised(self, error: ExecutionError) -> None:
        """Note an uncaught error that was found in what the program printed."""
        self.error = error
        self._emit("error", error=error)

    def returned(self, value: Any, refused: str) -> None:  # noqa: ANN401 - JSON
        """Note the value that a program left behind, or why there is none."""
        self.value, self.value_refused = value, refused
        if value is not None:
            self._emit("value", value=value)

    def tell_of_call(self, data: Mapping[str, Any]) -> None:
        """Emit that a call to a tool is over."""
        self._emit("tool_call", data=data)

    def end(self, outcome: Outcome) -> None:
        """Emit the last event."""
        self._emit("end", outcome=outcome)

    @property
    def truncated(self) -> Truncated:
        """What was cut, in the guest or here."""
        cut = self.done.get("cut", self._cut_inside)
        return Truncated(
            self.stdout.cut_bytes + int(cut.get("stdout", 0)),
            self.stderr.cut_bytes + int(cut.get("stderr", 0)),
            self._display_cut + int(cut.get("display", 0)),
        )


_HANDLERS: dict[str, Callable[[Recorder, dict[str, Any], bytes], None]] = {
    "cut": Recorder._on_cut,
    "display": Recorder._on_display,
    "error": Recorder._on_error,
    "value": Recorder._on_value,
    "call": Recorder._on_call,
    "call_dropped": Recorder._on_call_dropped,
    "started": Recorder._on_started,
    "fail": Recorder._on_fail,
}


class Attempt:
    """One piece of work under way in a live sandbox."""

    def __init__(
        self,
        live: Live,
        work: Work,
        on_event: OnEvent | None,
        recorder: Recorder | None = None,
        *,
        is_held: bool = False,
    ) -> None:
        """Hand the work over; the clocks start now. `recorder` is for work of another kind.

        What `is_held` begins with `go`, or is given up.
        """
        self.live = live
        self.work = work
        self.recorder = recorder or Recorder(work.limits, on_event)
        self._before: KernelReadings = live.readings_before()
        self._began_s = time.perf_counter()
        self._deadlines: Deadlines | None = None
        channel = live.channel
        fields = {**work.fields, "held": True} if is_held else work.fields
        self.recorder.number = channel.open(
            work.op, self.recorder, self.recorder.expected, fields, work.body
        )
        self.recorder.context = work.fields.get("context")
        if work.tools is not None:
            self.recorder.calls = Calls(work.tools, channel, self.recorder.tell_of_call)
        # Later: we may be in the middle of a read, and a limit reads first.
        self.recorder.on_refused = partial(asyncio.get_running_loop().call_soon, self.cancel)
        live.running.add(self.recorder)
        self._grace: asyncio.TimerHandle | None = None
        self._is_paused = False
        if not is_held:
            self._start_clocks()
        if work.stdin is not None:
            self._feed(work.stdin)

    def _start_clocks(self) -> None:
        self._deadlines = Deadlines(
            self.work.limits, self.live.read_cpu_s, self._before.cpu_s, self._on_breach
        )

    def go(self) -> None:
        """Let begin what is held; the clocks start now."""
        self._began_s = time.perf_counter()
        self.live.channel.go()
        self._start_clocks()

    def give_up(self) -> None:
        """Forget what is held; its sandbox is for the caller to destroy."""
        self.live.channel.forget(self.recorder.number)
        self.live.running.discard(self.recorder)

    def _feed(self, data: bytes) -> None:
        number, channel = self.recorder.number, self.live.channel
        for start in range(0, len(data), _STDIN_STEP_BYTES):
            step = data[start : start + _STDIN_STEP_BYTES]
            channel.send({"op": "stdin", "id": number}, step)
        channel.send({"op": "stdin_close", "id": number})

    def _on_breach(self, cause: Cause) -> None:
        # What has arrived counts: also a `done` that came at the same moment.
        self.live.channel.poll()
        if self.recorder.is_ended:
            return
        self.recorder.cause = cause
        if self.work.stop is None or not self.live.channel.is_open:
            self.recorder.settle(cause)
            return
        self.work.stop(self.recorder.number)
        loop = asyncio.get_running_loop()
        self._grace = loop.call_later(_GRACE_S, self._give_up)

    def _give_up(self) -> None:
        self.recorder.settle(self.recorder.cause, "it did not stop when asked")
        self.live.kill("a program did not stop at its limit")

    def cancel(self) -> None:
        """End it on its caller's wish: `wait` returns the verdict `cancelled`. Idempotent."""
        if not self.recorder.is_ended:
            self._on_breach(Cause.CANCEL)

    def pause(self) -> None:
        """Stop taking in what its sandbox says, until `resume` or its end; idempotent."""
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
            await self.recorder.waiter
        except asyncio.CancelledError:
            await self._cancelled()
            raise
        finally:
            if self._deadlines is not None:
                self._deadlines.stop()
            if self._grace is not None:
                self._grace.cancel()
            self.resume()
            self.live.channel.forget(self.recorder.number)
            self.live.running.discard(self.recorder)
        if self.recorder.calls is not None:
            await self.recorder.calls.wait_ended()
        if self.recorder.cause is Cause.LOST and self.live.channel.is_unready:
            raise NotBegun(self.recorder.detail)
        if self.recorder.refused is not None:
            raise self.recorder.refused
        if self.recorder.refused_by_caller is not None:
            raise self.recorder.refused_by_caller
        outcome = self._judge(time.perf_counter() - self._began_s)
        if self.work.after is not None:
            outcome = await self.work.after(self, outcome)
        if notes := self._aftermath():
            outcome = replace(outcome, notes=outcome.notes + notes)
        self.recorder.end(outcome)
        return outcome

    async def _cancelled(self) -> None:
        """The caller no longer waits. In a living sandbox, leave its context usable."""
        self.recorder.waiter = asyncio.get_running_loop().create_future()
        self._on_breach(Cause.CANCEL)
        if not self.recorder.is_ended:
            await self.recorder.waiter

    def _judge(self, wall_s: float) -> Outcome:
        recorder, before, now = self.recorder, self._before, self.live.readings()
        done = recorder.done
        rusage = done.get("rusage", {})
        rusage_cpu_s = (rusage.get("user_us", 0) + rusage.get("system_us", 0)) / 1e6
        cpu_s = max(now.cpu_s - before.cpu_s, rusage_cpu_s)
        is_soft = self.live.isolation.hardness.get("memory_mb") == "soft"
        evidence = Evidence(
            limits=self.work.limits,
            cause=recorder.cause,
            exit_code=done.get("exit_code"),
            signal=done.get("signal"),
            raised=bool(done.get("raised")),
            interrupted=recorder.interrupt_sent and self._was_interrupted(done),
            cpu_s=cpu_s,
            oom_kills=now.oom_kills - before.oom_kills,
            processes_refused=now.processes_refused - before.processes_refused,
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

    def _was_interrupted(self, done: Mapping[str, Any]) -> bool:
        error = self.recorder.error
        return done.get("signal") == 2 or (error is not None and error.name == "KeyboardInterrupt")

    def _aftermath(self) -> tuple[str, ...]:
        """Say what became of a value that did not arrive, and of a session's state."""
        recorder = self.recorder
        if recorder.value_refused:
            return (
                f"the result could not be returned as JSON: {recorder.value_refused[:200]}; "
                "write it to a file and collect that",
            )
        if self.work.op != "execute" or self.work.fields.get("mode") != "cell":
            return ()
        if recorder.done.get("alive"):
            is_stopped = recorder.cause is not Cause.ITSELF
            return ("the context is alive and kept its state",) if is_stopped else ()
        return ("the context has ended and its state is lost",)


def finish(
    attempt: Attempt,
    outcome: Outcome,
    language: str,
    started_at: float,
    files: Mapping[str, bytes] | None = None,
) -> Execution:
    """Put the answer together."""
    recorder, spec = attempt.recorder, attempt.live.spec
    return Execution(
        id=new_id(),
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

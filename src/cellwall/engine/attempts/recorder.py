"""Recorder: the frames of one request, in bounded memory, with a future for the request's end.

`attempt` opens the request and runs its clocks; `verdicts` decides the verdict. Whatever the guest
sends, no more than the work's limits is kept, and the first end counts.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cellwall.engine.attempts.verdicts import Cause
from cellwall.model.execution import Event, EventKind, ExecutionError
from cellwall.model.outcome import Outcome, Truncated
from cellwall.runtimes.channel.frames import FrameError, strict_json
from cellwall.runtimes.channel.replies import RUN, ChannelLost, GuestRefused
from cellwall.surface.shared.callbacks import OnEvent

if TYPE_CHECKING:
    from cellwall.engine.attempts.tool_calls import Calls
    from cellwall.model.limits import Limits

_DISPLAY_CAP_BYTES = 16 * 1024 * 1024
"""Maximum bytes of display data kept per execution; the guest's own bound is lower."""
_BUNDLE_BYTES = 256
_FORM_BYTES = 128
"""Bytes that a bundle, and each form in it, costs beside its text: an empty one is two bytes of
JSON."""
_MOST_DISPLAYS = 10_000
"""Maximum number of displays, equal to the guest's own bound."""


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
        """Keep the part that still fits; return that part."""
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
        """All kept output as text."""
        return b"".join(self.chunks).decode("utf-8", "replace")


class Recorder:
    """Listener of one request: bounded memory of its frames, and a future for its end."""

    expected = RUN
    """Events that its request may cause."""

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
        self._value: Any = None
        self._value_text = b""
        """JSON of the value as the guest sent it: as objects it may take 24 times as much
        memory."""
        self.value_refused = ""
        """Guest's reason why the program's value could not be sent."""
        self.pid: int | None = None
        self.cause = Cause.ITSELF
        self.detail = ""
        self.done: Mapping[str, Any] = {}
        self._cut_inside: dict[str, int] = {}
        """Bytes that the guest reported as cut, by stream; `done` repeats them, but not every run
        has one."""
        self.refused: GuestRefused | None = None
        self.number = 0
        self.calls: Calls | None = None
        """Calls to the caller's tools, if it gave some."""
        self.interrupt_sent = False
        self.context: str | None = None
        self.is_ended = False
        # Separate from `is_ended`: cancelling a task that waits must not look like an end.
        self.waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.started: asyncio.Future[None] | None = None
        """Future that is done when the work has started, or has ended at once."""
        self.refused_by_caller: Exception | None = None
        """Exception raised by `on_event` or `on_start`."""
        self.on_refused: Callable[[], object] = lambda: None

    def go_on_after(self, seq: int) -> None:
        """Number events from `seq + 1` on: an earlier process has numbered those before."""
        self._seq = seq

    # -- frames ----------------------------------------------------------------------------

    def on_frame(self, kind: str, header: dict[str, Any], body: bytes) -> None:
        """Handle one frame; content that does not match its kind is a `FrameError`."""
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
        # Accept texts only: a byte of JSON lists and objects may take 24 bytes of memory.
        if not isinstance(bundle, dict) or not all(isinstance(v, str) for v in bundle.values()):
            raise FrameError("display: the bundle is not an object of texts")
        self._display_bytes += _BUNDLE_BYTES + _FORM_BYTES * len(bundle)
        if self._display_bytes > _DISPLAY_CAP_BYTES or len(self.results) >= _MOST_DISPLAYS:
            self._display_cut += len(body)
            return
        self.results.append(bundle)
        self._emit(header["kind"], data=bundle)

    def _on_error(self, header: dict[str, Any], body: bytes) -> None:
        if self.error is not None:
            raise FrameError("error: it came twice")
        value = strict_json(body)
        known = value if isinstance(value, dict) else {}
        words = [known.get(name) for name in ("name", "value", "traceback")]
        texts = [word for word in words if isinstance(word, str)]
        if len(texts) != len(words):
            raise FrameError("error: needs the strings name, value and traceback")
        self.error = ExecutionError(texts[0], texts[1], texts[2])
        self._emit("error", error=self.error)

    def _on_value(self, header: dict[str, Any], body: bytes) -> None:
        if self._value_text or self.value_refused:
            raise FrameError("value: it came twice")
        if body:
            value, self._value_text = strict_json(body), body
            self._emit("value", value=value)
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
        self._tell_started()

    def _on_fail(self, header: dict[str, Any], body: bytes) -> None:
        self.refused = GuestRefused(str(header["code"])[:40], str(header["message"])[:2000])
        self.settle(self.cause)

    def on_lost(self, error: ChannelLost) -> None:
        """End the recording because the sandbox has ended; other evidence decides the verdict."""
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
        self._tell_started()

    def _tell_started(self) -> None:
        # An end is a result, too: a cancellation would look like its waiter's own cancellation.
        if self.started is not None and not self.started.done():
            self.started.set_result(None)

    def _emit(self, kind: EventKind, **content: Any) -> None:  # noqa: ANN401 - of an Event
        if self._on_event is None:
            return
        self._seq += 1
        try:
            self._on_event(Event(self._seq, kind, **content))
        except Exception as error:  # noqa: BLE001 - the caller's own; `wait` raises it
            self.refuse(error)

    def refuse(self, error: Exception) -> None:
        """End the work because a caller's callback raised; `raise_refusal` raises that error."""
        self._on_event = None
        self.refused_by_caller = error
        self.on_refused()

    def raise_refusal(self) -> None:
        """Raise the guest's refusal or a callback's exception, if there is one.

        An exception kept here, or in a local variable, would form a cycle with its traceback's
        frames.
        """
        if self.refused is not None:  # a new object: the waiter of `started` looks at this one
            raise GuestRefused(self.refused.reason, self.refused.message)
        refused, self.refused_by_caller = self.refused_by_caller, None
        try:
            if refused is not None:
                raise refused
        finally:
            del refused

    def raised(self, error: ExecutionError) -> None:
        """Record an uncaught error that was found in the program's output."""
        self.error = error
        self._emit("error", error=error)

    def returned(self, value: Any, refused: str) -> None:  # noqa: ANN401 - JSON
        """Record the value that a program left behind, or why there is none."""
        self._value, self.value_refused = value, refused
        if value is not None:
            self._emit("value", value=value)

    def drew(self, picture: bytes) -> None:
        """Record a PNG that a program left behind as a display."""
        bundle = {"text/plain": "<plot>", "image/png": base64.b64encode(picture).decode("ascii")}
        self.results.append(bundle)
        self._emit("display", data=bundle)

    def tell_of_call(self, data: Mapping[str, Any]) -> None:
        """Emit the event that a call to a tool is over."""
        self._emit("tool_call", data=data)

    def end(self, outcome: Outcome) -> None:
        """Emit the last event."""
        self._emit("end", outcome=outcome)

    @property
    def value(self) -> Any:  # noqa: ANN401 - JSON
        """Value that the program returned; if the guest sent it, parsed anew on each access."""
        return strict_json(self._value_text) if self._value_text else self._value

    @property
    def truncated(self) -> Truncated:
        """Numbers of bytes cut, in the guest or here."""
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

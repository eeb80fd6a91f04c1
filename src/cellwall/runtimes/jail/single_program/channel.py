"""The channel of a sandbox of one program, whose init only reaps: init's other work is done here.

Runs in the engine process. The jail makes it (`confinement`) after "L" was received; the engine
uses it as a `GuestChannel`. The request goes directly to the context. The answer is put together
from the context's two pipes, from its messages (`connections`) and from init's report of how it
ended. The records of an execution are init's own classes (`guest.init.execution`,
`guest.channel.pipes`), so that an answer is the same either way. The invariants: what a program
prints or says is bounded where it is read, and its end is read from the kernel: a wait status, or
/proc of a process whose threads have all been told to leave (design/0014).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cellwall.guest.channel import enclosed, progress
from cellwall.guest.channel.errors import refusal_from
from cellwall.guest.channel.handshake import IDLE
from cellwall.guest.init.execution import Execution
from cellwall.guest.process import exit_watch
from cellwall.guest.process.processes import Exit
from cellwall.jail.fast import machine_code
from cellwall.jail.inspect import host_facts
from cellwall.runtimes.channel.channel import MOST_SINGLE_BYTES, GuestChannel
from cellwall.runtimes.channel.frames import FrameError
from cellwall.runtimes.channel.replies import ChannelLost
from cellwall.runtimes.jail.single_program.connections import ContextListener
from cellwall.runtimes.jail.single_program.lazy_loop import LateLoop
from cellwall.runtimes.jail.single_program.output_pump import Output

_DISPLAY_BYTES = 8 * 1024 * 1024
"""Bytes of displays per execution; init has the same bound."""
_LOOKS_S = (0.0005,)
"""Seconds before each further look at a process that is about to end; after the last, wait for its
end. Three more looks slow eight callers down by 3 %."""
_DEAF_S = 0.02
"""Seconds without reading after every mark above `_HONEST_MARKS`, which no honest program sends."""
_HONEST_MARKS = 3
_READ_BYTES = 4096
_REFUSED = "a sandbox of one program does nothing else"


class Parts(NamedTuple):
    """The descriptors and facts that the jail hands over."""

    channel: socket.socket
    outputs: tuple[int, int]
    listener: socket.socket
    is_idle: bool
    """Whether the context has already said that it is idle."""


class _Sink:
    """Stands in for the connection to the host that init's `Execution` and pumps send to."""

    is_full = False
    """Always False: the channel stops all reading at once instead."""

    def __init__(self, tell: Callable[[dict[str, Any], bytes], None]) -> None:
        self._tell = tell

    def send(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        """Pass a message on to the listener, with the values that JSON would give it.

        The metadata of a display is dropped: no caller sees it. There is one text, and a lone
        surrogate in it is replaced because it could not be encoded again.
        """
        told = {name: value for name, value in header.items() if name != "metadata"}
        if isinstance(note := told.get("unserialisable"), str):
            told["unserialisable"] = note.encode("utf-16", "surrogatepass").decode(
                "utf-16", "replace"
            )
        self._tell(told, body)

    def wait_for_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` at once: there is always room."""
        callback()


class AloneChannel(GuestChannel):
    """The channel of a sandbox of one program; see the module."""

    takes_files = True
    most_held_bytes = MOST_SINGLE_BYTES

    def __init__(
        self,
        parts: Parts,
        init_pid: int,
        *,
        on_violation: Callable[[str], None],
        kill_context: Callable[[], None],
    ) -> None:
        """Own all parts.

        `on_violation` must kill the sandbox, and `kill_context` its program. `init_pid` is the
        host's pid of its init.
        """
        super().__init__(parts.channel, on_violation=on_violation)
        self._init_pid = init_pid
        self._kill_context = kill_context
        self._late = LateLoop(self._loop)
        self._context_listener = ContextListener(
            self._late, parts.listener, self._on_said, kill_context
        )
        self._outputs: tuple[int, ...] = parts.outputs
        self._pumps: list[Output] = []
        self._books: Execution | None = None
        self._progress = progress.Progress()
        self._paths: tuple[str, ...] = ()
        """Paths of the files that came with the program."""
        self._is_held = self._is_ending = False
        self._exit: Exit | None = None
        """How the program ended, once the kernel has said so."""
        self._heard = b""
        self._marks = 0
        self._looks = 0
        if parts.is_idle:
            self._on_idle()

    @property
    def context_pid(self) -> int:
        """The host's pid of the process that runs the program."""
        return self._context_listener.context_pid

    @context_pid.setter
    def context_pid(self, pid: int) -> None:
        self._context_listener.context_pid = pid

    # -- asking ----------------------------------------------------------------------------

    def send(self, header: Mapping[str, Any], body: bytes | memoryview = b"") -> None:
        """Send a request to the context; refuse everything but its one program."""
        op = header.get("op")
        if op == "execute" and self._books is None and not self._progress.has_begun:
            super().send(header, body)
            self._open_books(header)
        elif op == "go" and self._is_held:
            super().send(header)
            self._begin()
        elif header.get("id") in self._listeners:
            self._loop.call_soon(self._refuse, header["id"])

    def _refuse(self, number: int) -> None:
        if number in self._listeners:
            fail = {"ev": "fail", "id": number, "code": "unsupported", "message": _REFUSED}
            self._dispatch(fail, b"")

    def _open_books(self, request: Mapping[str, Any]) -> None:
        number, output_bytes = request["id"], request["output_bytes"]
        self._paths = tuple(path for path, _ in request.get("files", ()))
        sink: Any = _Sink(self._tell)  # it has only the methods that are used here
        self._books = books = Execution(sink, number, output_bytes, _DISPLAY_BYTES)
        books.progress = self._progress
        self._is_held = bool(request.get("held"))
        meters = (("stdout", books.stdout), ("stderr", books.stderr))
        for fd, (event, meter) in zip(self._outputs, meters, strict=True):
            pump = Output(self._late, sink, fd, event)
            pump.begin(number, meter)
            self._pumps.append(pump)
        if self._is_held:
            self._note_handed_over()
        else:
            self._begin()

    def _tell(self, header: dict[str, Any], body: bytes) -> None:
        if header["id"] in self._listeners:  # otherwise the execution was abandoned
            self._dispatch(header, body)

    def _begin(self) -> None:
        self._is_held = False
        self._note_handed_over()
        self._context_listener.watch()

    def _note_handed_over(self) -> None:
        """Note how far the program is; what was sent earlier counts once its context is idle."""
        if self._progress.is_ready and self._books is not None:
            self._progress.advance(progress.HANDED_OVER if self._is_held else progress.RUNNING)

    # -- hearing: init ---------------------------------------------------------------------

    def _read_once(self, until: float) -> bool:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._end(ChannelLost(f"guest channel: read failed: {error.strerror}"))
            return False
        if not data:
            self._end(ChannelLost("guest channel: closed by the guest's end"))
            return False
        self._heard += data
        try:
            while self._heard and self._lost is None and self._take_word():
                pass
        except FrameError as error:
            self._violated(str(error))
            return False
        return True

    def _take_word(self) -> bool:
        """Process the first word of `_heard`; return False while it is incomplete."""
        heard = self._heard
        if heard[:1] == machine_code.MARK:
            self._heard = heard.lstrip(machine_code.MARK)
            self._on_mark()
        elif heard[:1] == machine_code.END_TAG[:1]:
            if len(heard) < machine_code.END.size:
                return False
            self._heard = heard[machine_code.END.size :]
            self._on_end_word(heard[: machine_code.END.size])
        elif heard[:1] == enclosed.NOT_PLACED_TAG[:1] and self._books is not None:
            if len(heard) < enclosed.NOT_PLACED.size:
                return False
            self._heard = heard[enclosed.NOT_PLACED.size :]
            self._on_not_placed(heard[: enclosed.NOT_PLACED.size])
        elif IDLE.startswith(heard[: len(IDLE)]) and not self._ready.done():
            if len(heard) < len(IDLE):
                return False
            self._heard = heard[len(IDLE) :]
            self._on_idle()
        else:
            raise FrameError("init, or an idle context, said something that it never says")
        return True

    def _on_idle(self) -> None:
        self._ready.set_result({})
        self.is_unready = False
        self._progress.advance(progress.IDLE)
        self._note_handed_over()
        self._stop_waiting()

    def _on_not_placed(self, word: bytes) -> None:
        """Report the file that the context could not write as init would; it runs no program."""
        _, number, index = enclosed.NOT_PLACED.unpack(word)
        if self._books is None or index >= len(self._paths):
            raise FrameError("an idle context did not write a file that it was not given")
        error = OSError(number, os.strerror(number))
        refusal = refusal_from(error, f"file_write {self._paths[index]!r}")
        self._tell(
            {"ev": "fail", "id": self._books.id, "code": refusal.code, "message": refusal.message},
            b"",
        )
        self._books = None

    def _on_end_word(self, word: bytes) -> None:
        _, status, user_s, user_us, system_s, system_us, maxrss_kib = machine_code.END.unpack(word)
        rusage = {
            "user_us": user_s * 1_000_000 + user_us,
            "system_us": system_s * 1_000_000 + system_us,
            "maxrss_kib": maxrss_kib,
        }
        self._conclude(status, rusage)

    def _on_mark(self) -> None:
        """Look at the context: a process inside, usually itself, says that it is about to end."""
        self._marks += 1
        if self._marks > _HONEST_MARKS:
            self._loop.remove_reader(self._fd)
            self._loop.call_later(_DEAF_S, self._hear_again)
        elif self._progress.has_begun and not self._looks:
            self._look_ahead()

    def _hear_again(self) -> None:
        if self._lost is None and not self._pauses:
            self._loop.add_reader(self._fd, self._on_readable)
            self._look_ahead()

    def _look_ahead(self) -> None:
        """Conclude once the kernel shows that the context's end is certain: design/0014."""
        if self._books is None or self._lost is not None or self._pauses:
            return
        if not host_facts.sees_exit_codes():
            return  # init will say how it ended
        pid = self.context_pid
        status = exit_watch.status_of(pid, self._init_pid)
        if status is not None:
            usage = exit_watch.Usage(pid)
            rusage = {"user_us": int(usage.ru_utime * 1_000_000), "system_us": 0, "maxrss_kib": 0}
            self._conclude(status, rusage)
        elif self._looks < len(_LOOKS_S):
            self._loop.call_later(_LOOKS_S[self._looks], self._look_ahead)
            self._looks += 1

    def _conclude(self, status: int, rusage: dict[str, int]) -> None:
        """Take in the last output and messages of the context, then report how it ended."""
        if self._exit is not None:
            return  # its end was detected earlier
        if not self._progress.has_begun:
            self._end(ChannelLost("guest channel: the program's process ended before it began"))
            return
        is_killed = os.WIFSIGNALED(status)
        exit_code = None if is_killed else os.WEXITSTATUS(status)
        self._progress.advance(progress.ENDED)
        self._exit = Exit(exit_code, os.WTERMSIG(status) if is_killed else None, rusage)
        self._finish_once_heard()

    def _finish_once_heard(self) -> None:
        """Finish, or postpone it while the program said more than may be read at once.

        The `done` of such a program is sent after the rest was read.
        """
        if self._drain():
            self._finish()
        else:
            self._loop.call_later(self._late.pause_s, self._hear_the_rest)

    def _hear_the_rest(self) -> None:
        if not (self._pauses or self._progress.is_reported or self._lost is not None):
            self._finish_once_heard()

    def _finish(self) -> None:
        books, self._books = self._books, None
        if self._lost is not None or books is None:
            return
        try:
            books.finish(self._exit)
        except FrameError as error:
            self._violated(str(error))
        self._late.close()

    def _drain(self) -> bool:
        """Take in what is there; return False if more was said than may be read now."""
        is_all = True
        if self._books is not None:
            self._drain_output()
            if self._lost is None:
                is_all = self._context_listener.drain()
            if self._lost is None:
                self._drain_output()
        return is_all

    def _drain_output(self) -> None:
        for pump in self._pumps:
            pump.drain()

    # -- hearing: the context --------------------------------------------------------------

    def _on_said(self, header: dict[str, Any], body: bytes) -> None:
        """Process one frame of the context; caller code may have sent it as well."""
        self._drain_output()  # so that events keep their order
        books, event = self._books, header.get("ev")
        if books is None or self._lost is not None:
            return
        try:
            if event == "display":
                header.pop("metadata", None)  # no caller sees it
                books.show(header, body)
            elif event in ("error", "value"):
                books.tell_once(event, header, body)
            elif event == "end":
                books.conclude(header)
            else:
                self._kill_context()
        except FrameError as error:
            self._violated(str(error))

    # -- the rest of a channel -------------------------------------------------------------

    def pause(self) -> None:
        """Pause as `GuestChannel` does, and the streams too."""
        super().pause()
        self._late.pause()

    def resume(self) -> None:
        """Resume as `GuestChannel` does, and the streams too."""
        super().resume()
        if not self._pauses and self._lost is None:
            self._late.resume()
            if self._exit is not None:
                self._hear_the_rest()

    def poll(self) -> None:
        """Read what is there now, as `GuestChannel` does."""
        self._drain()
        super().poll()

    def _end(self, error: ChannelLost) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._drain()
            if self._exit is not None and not error.is_hostile:
                self._finish()  # the result is known, whatever else is lost
            self._late.close()
            self._context_listener.close()
            self._close_outputs()
            self._books = None
        super()._end(error)

    def _close_outputs(self) -> None:
        if not self._pumps:
            for fd in self._outputs:
                os.close(fd)
        for pump in self._pumps:
            pump.close()
        self._outputs, self._pumps = (), []

    def abandon(self) -> None:
        """Close the descriptors in a forked child, as `GuestChannel` does."""
        super().abandon()
        self._late.abandon()
        self._context_listener.abandon()
        self._close_outputs()

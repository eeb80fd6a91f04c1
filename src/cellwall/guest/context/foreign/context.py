"""The context process of another language: passes cells on to its interpreter, and answers back.

Forked by init as every context (`contexts.py`); `context/main.py` calls `main` here when the
context's language is not Python. It runs no caller code itself: the interpreter (`interpreter.py`)
does, as a child in this process's group with this process's stdout and stderr, so output never
passes through here.

The interpreter's messages are believed as far as init believes a context: not at all. Only its end
is evidence, and this process ends the same way, so that init sees it.
"""

from __future__ import annotations

# The C module under `signal`: the wrapper turns numbers into enum members, a page each.
import _signal  # type: ignore[import-not-found]
import base64
import json
import os
import select
import sys
from signal import SIGINT, SIGKILL
from typing import TYPE_CHECKING

from cellwall.guest import drivers
from cellwall.guest.channel.errors import Refusal
from cellwall.guest.channel.handshake import IDLE
from cellwall.guest.channel.init_link import EXIT_UNSERVED
from cellwall.guest.channel.outbox import MAX_BODY_BYTES, Outbox
from cellwall.guest.context.foreign.interpreter import DriverBroken, Interpreter, InterpreterEnded
from cellwall.guest.context.foreign.tool_relay import Relay
from cellwall.guest.display import tracebacks
from cellwall.guest.display.display import DEFAULT_DISPLAY_BYTES, Display
from cellwall.guest.display.json_value import encode_fields, encode_value
from cellwall.guest.drivers.available import EXIT_MISSING
from cellwall.guest.process import exit_watch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

    from cellwall.guest.channel.init_link import Link

_EXIT_BROKEN = 70
_MOST_FORMS = 32
_MOST_TEXT = 50_000


def main(link: Link, config: dict[str, Any]) -> NoReturn:
    """Serve one context until its interpreter ends, init hangs up, or it is killed."""
    context = ForeignContext(link, config)
    code = 1
    try:
        context.start()
        context.serve()
    except InterpreterEnded as end:
        context.leave(end.status)
    except ConnectionError:
        code = EXIT_UNSERVED
    except Refusal as refusal:
        code = EXIT_MISSING
        _complain(refusal.message)
    except DriverBroken as error:
        code = _EXIT_BROKEN
        _complain(f"context: its interpreter broke the protocol ({error}); it ends")
    except BaseException as error:  # noqa: BLE001  the last word of a process
        _complain(f"context: cannot go on\n{tracebacks.text_of(error)}")
    finally:
        context.kill()
        os._exit(code)


class ForeignContext:
    """One context, its interpreter, and the link to init."""

    def __init__(self, link: Link, config: dict[str, Any]) -> None:
        """Own the link; the interpreter is not started yet."""
        self._link = link
        self._language = str(config["language"])
        driver = drivers.find(self._language)
        assert driver is not None  # noqa: S101  `check` looked before the fork
        self._driver = driver
        self._outbox = Outbox()
        self._outbox.open(link)
        self._display = Display(
            self._outbox, int(config.get("display_bytes") or DEFAULT_DISPLAY_BYTES)
        )
        self._is_end_foreseen = bool(config.get("is_end_foreseen"))
        self._interpreter: Interpreter | None = None
        self._relay: Relay | None = None
        self._is_interrupted = False
        self._is_late = False
        """Whether an interrupt was meant for the last execution, even if it came too late."""
        self._is_raised = False
        self._is_running = False

    @property
    def interpreter(self) -> Interpreter:
        """Return the interpreter that runs the code."""
        assert self._interpreter is not None  # noqa: S101  for the type checker only
        return self._interpreter

    def start(self) -> None:
        """Start the interpreter and wait until it can take a cell. Raises Refusal."""
        _signal.signal(int(SIGINT), self._note_interrupt)
        self._interpreter = Interpreter(self._driver)
        for message in self.interpreter.listen():
            if message is not None:
                if message["ev"] == "missing":
                    raise Refusal(
                        "not_found", f"{self._language}: {message.get('what')} is missing"
                    )
                if message["ev"] != "ready":
                    raise DriverBroken(f"{message['ev']!r:.40} before `ready`")
                return

    def _note_interrupt(self, _number: int, _frame: object) -> None:
        self._is_interrupted = True

    def serve(self) -> NoReturn:
        """Report idle, take one execution, have it run; a program does not return."""
        while True:
            header, source, stdin_fd = self._wait_for_work()
            self._display.begin()
            self._is_raised = False
            if header.get("mode") == "program":
                self._run_program(header, source, stdin_fd)
            status = self._run_cell(header, source, stdin_fd)
            if stdin_fd >= 0:
                os.close(stdin_fd)
            self._post_end(status, keep_open=True)

    def _wait_for_work(self) -> tuple[dict[str, Any], bytes, int]:
        """Return one `execute`, its source and its input descriptor (-1: none).

        If the interpreter ends meanwhile, the context ends.
        """
        try:
            while True:
                self._link.say(IDLE)
                for message in self.interpreter.listen(self._link.fileno()):
                    if message is not None:
                        self._hear_late(message)
                    elif _is_readable(self._link.fileno()):
                        break
                header, source, stdin_fd = self._link.receive_work()
                if header.get("op") != "idle":
                    break
                self._is_interrupted, self._is_late = False, True
        except BaseException:
            self._link.close()
            raise
        if not header.get("held"):
            self._link.close()
        return header, source, stdin_fd

    def _hear_late(self, message: dict[str, Any]) -> None:
        """Drop a display or an error between cells: it belongs to no cell that still runs."""
        if message["ev"] not in ("display", "error"):
            raise DriverBroken(f"{message['ev']!r:.40} with nothing to answer")

    def _run_cell(self, header: dict[str, Any], source: bytes, stdin_fd: int) -> int | None:
        interpreter = self.interpreter
        self._is_running = False
        told = self._offer(header)
        kind = self._driver.late if self._is_late else "cell"
        self._is_late = False
        interpreter.ask(kind, source, stdin_fd, bool(header.get("display", True)), told)
        for message in self._listen():
            if message["ev"] == "done":
                interpreter.forget()
                self._take_back()
                self._is_raised = message.get("raised") is True
                return _status_of(message)
            self._hear(message)
        raise AssertionError("an interpreter is heard until it ends")

    def _run_program(self, header: dict[str, Any], source: bytes, stdin_fd: int) -> NoReturn:
        filename = str(header.get("filename") or "main")
        with open(filename, "wb") as file:
            file.write(source)
        options = {
            "filename": filename,
            "argv": [str(word) for word in header.get("argv") or ()],
            "arguments": header.get("arguments"),
            "says_leaving": self._is_end_foreseen,
        }
        body = encode_value(options).body
        told = self._offer(header)
        if header.get("held"):
            self._link.wait_to_go_on()
        self.interpreter.ask("program", body, stdin_fd, bool(header.get("display")), told)
        if self._is_interrupted:
            os.kill(self.interpreter.pid, SIGINT)
        for message in self._listen():
            self._is_raised = self._is_raised or message["ev"] == "error"
            self._hear(message)
        raise AssertionError("an interpreter is heard until it ends")

    def _listen(self) -> Iterator[dict[str, Any]]:
        """Yield the interpreter's messages about an execution; serve its tool calls meanwhile."""
        relay = self._relay
        for message in self.interpreter.listen(-1 if relay is None else relay.fileno()):
            if message is not None:
                yield message
            elif relay is not None:
                relay.step()

    def _offer(self, header: dict[str, Any]) -> bytes:
        """Prepare for calls to host tools; return what the interpreter is told of them, if any."""
        manifest = header.get("tools")
        if manifest is None or not self._driver.tools:
            return b""
        self._relay = Relay(self._link, manifest)
        told = {
            "functions": manifest["functions"],
            "at_once": manifest["at_once"],
            "replies": self.interpreter.path(self._relay.replies_r),
            "code": self._driver.tools.decode(),
        }
        return json.dumps(told).encode("ascii")

    def _take_back(self) -> None:
        """Close the relay of an execution that is over: no tool is called any more."""
        relay, self._relay = self._relay, None
        if relay is not None:
            relay.close()

    def _hear(self, message: dict[str, Any]) -> None:
        event = message["ev"]
        if event == "running":
            # The interpreter handles interrupts from now on; it did not see an earlier one.
            if self._is_interrupted and not self._is_running:
                os.kill(self.interpreter.pid, SIGINT)
            self._is_running = True
        elif event == "display":
            kind = "result" if message.get("kind") == "result" else "display"
            self._display.publish(_bundle_of(message), _object(message, "metadata"), kind)
        elif event == "error":
            fields = {name: _text(message, name) for name in ("name", "value", "traceback")}
            self._outbox.post({"ev": "error"}, encode_fields(fields))
        elif event == "call" and self._relay is not None:
            self._relay.begin(message)
        elif event == "leaving":
            # Earlier messages have been passed on by now.
            is_silent = not self._is_raised and not self._display.cut_bytes
            if self._is_end_foreseen and is_silent and self.interpreter.is_leaving():
                exit_watch.announce()
        elif event == "value":
            self._outbox.post(*encode_value(message.get("value")))
        else:
            raise DriverBroken(f"{event!r:.40} in the middle of a cell")

    def _post_end(self, status: int | None, *, keep_open: bool) -> None:
        end = {"ev": "end", "raised": self._is_raised, "exit_code": None, "status": status}
        cut = {"display_cut": self._display.cut_bytes}
        if not self._outbox.post({**end, **cut}, keep_open=keep_open):
            raise OSError("end of a cell: cannot reach init")

    def leave(self, status: int) -> None:
        """End as the interpreter ended; return only after a signal that this process survives."""
        self.interpreter.forget_title()
        self._interpreter = None
        if self._is_raised or self._display.cut_bytes:
            self._post_end(None, keep_open=False)
        sys.stderr.flush()
        if not os.WIFSIGNALED(status):
            os._exit(os.WEXITSTATUS(status))
        number = os.WTERMSIG(status)
        if number != SIGKILL:
            _signal.signal(number, _signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def kill(self) -> None:
        """Kill the interpreter, if it still runs."""
        if self._interpreter is not None:
            try:
                os.kill(self._interpreter.pid, SIGKILL)
            except ProcessLookupError:
                return


def _is_readable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


def _status_of(message: dict[str, Any]) -> int | None:
    status = message.get("status")
    return status if type(status) is int and 0 < status < 256 else None


def _text(message: dict[str, Any], name: str) -> str:
    value = message.get(name)
    return value[:_MOST_TEXT] if isinstance(value, str) else ""


def _object(message: dict[str, Any], name: str) -> dict[str, Any]:
    value = message.get(name)
    return value if isinstance(value, dict) else {}


def _bundle_of(message: dict[str, Any]) -> dict[str, Any]:
    """Return the forms of a message; a picture may lie in a file, where base64 is not available."""
    bundle = dict(list(_object(message, "data").items())[:_MOST_FORMS])
    for mime, path in list(_object(message, "files").items())[:_MOST_FORMS]:
        try:
            with open(str(path), "rb") as file:
                bundle[str(mime)] = base64.b64encode(file.read(MAX_BODY_BYTES)).decode("ascii")
            if message.get("remove") is True:
                os.unlink(str(path))
        except OSError as error:
            bundle.setdefault("text/plain", f"[{mime}: {error.strerror}]")
    return bundle


def _complain(text: str) -> None:
    try:
        os.write(2, f"{text[:2000]}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        return

"""The interpreter of another language, a child of a context: start it, send requests, read answers.

Used by `foreign/context.py`, in the context's process. It knows pipes and processes, not cells.
Caller code can send anything in the interpreter's place, so messages are bounded and checked here.
Anything that is not a message of the protocol is a `DriverBroken`, which ends this one context.

The interpreter is in the context's process group, so a signal to the group reaches both. It gets
paths of the context's pipes and not the pipes: it opens one for a moment, and no program that
caller code starts inherits it.
"""

from __future__ import annotations

# The C module under `signal`: the wrapper turns numbers into enum members, a page each.
import _signal  # type: ignore[import-not-found]
import contextlib
import errno
import json
import os
import select
from signal import SIGCHLD
from typing import TYPE_CHECKING, Any

from cellwall.guest.process import exit_watch
from cellwall.guest.process.programs import SIGNALS_TO_RESET, find_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cellwall.guest.drivers import Driver

_SIGCHLD = int(SIGCHLD)
_READ_BYTES = 64 * 1024
_PIPE_BYTES = 64 * 1024
"""Number of bytes that a pipe takes before it is read; pipe(7)."""
_LEAVING_S = 0.0002
"""Seconds between two checks of an exiting process, whose own part of it takes about 1 ms."""
_MOST_MESSAGE_BYTES = 16 * 1024 * 1024
"""Maximum size of one message: a bundle of pictures, which `Display` then cuts to its limit."""


class DriverBroken(Exception):
    """The interpreter sent something that no driver sends."""


class InterpreterEnded(Exception):
    """The interpreter's process has ended; `status` is the kernel's word on how."""

    def __init__(self, status: int) -> None:
        """`status` is as from waitpid(2)."""
        super().__init__(f"wait status {status}")
        self.status = status


class Interpreter:
    """One interpreter process and the two pipes towards it."""

    def __init__(self, driver: Driver) -> None:
        """Start it; the caller waits for its `ready` with `listen`. Raises Refusal, OSError."""
        self._folder = f"/proc/{os.getpid()}/fd"
        self._requests_r, self._requests_w = os.pipe()
        self._answers_r, self._answers_w = os.pipe()
        os.set_blocking(self._answers_r, False)
        self._wakeup_r, wakeup_w = os.pipe()
        os.set_blocking(self._wakeup_r, False)
        os.set_blocking(wakeup_w, False)
        _signal.set_wakeup_fd(wakeup_w, warn_on_full_buffer=False)
        _signal.signal(_SIGCHLD, _do_nothing)
        self._unread = bytearray()
        self._source_fd = self._tools_fd = -1
        self._asked, self._title = 0, ""
        self._driver = driver
        self.pid = self._spawn(driver)

    def _spawn(self, driver: Driver) -> int:
        text_fd = _kept(driver.text, _nameless_file)
        words = {"{text}": driver.text.decode(), "{path}": self.path(text_fd)}
        argv = [words.get(word, word.replace("{path}", words["{path}"])) for word in driver.argv]
        argv += [self.path(self._requests_r), self.path(self._answers_w)]
        if driver.flavour:
            argv.append(driver.flavour)
        return os.posix_spawn(
            find_program(argv[0], os.environ.get("PATH", "")),
            argv,
            os.environ,
            setsigmask=(),
            setsigdef=SIGNALS_TO_RESET,
        )

    def path(self, fd: int) -> str:
        """Return the path by which the interpreter opens a descriptor of this process."""
        return f"{self._folder}/{fd}"

    def ask(
        self, kind: str, body: bytes, stdin_fd: int, is_displayed: bool, tools: bytes = b""
    ) -> None:
        """Send one request; `stdin_fd` is -1 for none. The descriptors stay open until `forget`.

        `tools` describes host tools, for a driver that supports them.
        """
        self._source_fd = _kept(body, _pipe)
        source = self._titled(self.path(self._source_fd))
        stdin = self.path(stdin_fd) if stdin_fd >= 0 else "-"
        words = [kind, source, stdin, str(int(is_displayed))]
        if self._driver.tools:
            self._tools_fd = _kept(tools, _pipe) if tools else -1
            words.append(self.path(self._tools_fd) if tools else "-")
        os.write(self._requests_w, "\t".join(words).encode() + b"\n")

    def _titled(self, path: str) -> str:
        """Return a path of the driver's choice that leads to `path`, or `path` itself."""
        self._asked += 1
        if self._driver.title:
            for number in (f"{self._asked}", f"{self._asked}-{os.getpid()}"):
                title = self._driver.title % number
                with contextlib.suppress(OSError):  # another context has it, or there is no room
                    os.symlink(path, title)
                    self._title = title
                    return title
        return path

    def forget_title(self) -> None:
        """Remove the driver's path, if there is one."""
        if self._title:
            with contextlib.suppress(OSError):
                os.unlink(self._title)
            self._title = ""

    def is_leaving(self) -> bool:
        """Return whether the kernel soon confirms an exit that the interpreter announced."""
        return exit_watch.poll_exit_status(self.pid, self._wakeup_r, _LEAVING_S) is not None

    def forget(self) -> None:
        """Close the descriptors of a request that is done."""
        os.close(self._source_fd)
        self._source_fd = -1
        self.forget_title()
        if self._tools_fd >= 0:
            os.close(self._tools_fd)
            self._tools_fd = -1

    def listen(self, other_fd: int = -1) -> Iterator[dict[str, Any] | None]:
        """Yield its messages one by one; yield None when a signal came or `other_fd` is ready.

        Raises `InterpreterEnded` after the last message, and `DriverBroken`.
        """
        poller = select.poll()
        for fd in (self._answers_r, self._wakeup_r, other_fd):
            if fd >= 0:
                poller.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _events in poller.poll()}
            status = self._status() if self._wakeup_r in ready else None
            yield from self._messages()
            if status is not None:
                raise InterpreterEnded(status)
            if ready - {self._answers_r}:
                yield None

    def _messages(self) -> Iterator[dict[str, Any]]:
        while True:
            try:
                data = os.read(self._answers_r, _READ_BYTES)
            except BlockingIOError:
                return
            self._unread += data
            while b"\n" in data:
                line, _, rest = self._unread.partition(b"\n")
                self._unread = rest
                yield _parsed(line)
                data = bytes(rest)
            if len(self._unread) > _MOST_MESSAGE_BYTES:
                raise DriverBroken(f"a message of more than {_MOST_MESSAGE_BYTES} bytes")

    def _status(self) -> int | None:
        try:
            os.read(self._wakeup_r, 4096)
        except BlockingIOError:
            return None
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError as error:
            if error.errno != errno.ECHILD:
                raise
            return 0
        return status if pid else None


def _do_nothing(_number: int, _frame: object) -> None:
    """Do nothing; a handler has to exist for the signal to reach the wake-up descriptor."""


def _parsed(line: bytes | bytearray) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise DriverBroken("what it says is not JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("ev"), str):
        raise DriverBroken("what it says is not a message")
    return message


def _kept(data: bytes, instead: Callable[[bytes], int]) -> int:
    """Return a descriptor by whose path `data` is read; call `instead` where there is no memfd.

    A memfd is refused where its memory could not be counted (`linux/no_memory_cgroup.policy`).
    """
    try:
        fd = os.memfd_create("cell")
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        return instead(data)
    return _filled(fd, data)


def _pipe(data: bytes) -> int:
    """Return a descriptor for data that is read once.

    A pipe, if the data fits, takes no space in a work area that may be full.
    """
    if len(data) > _PIPE_BYTES:
        return _nameless_file(data)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    try:
        written = os.write(write_end, data)
    finally:
        os.close(write_end)
    if written == len(data):
        return read_end
    os.close(read_end)  # the kernel gives less room to a user with many pipes
    return _nameless_file(data)


def _nameless_file(data: bytes) -> int:
    """Return a descriptor of a file without a name; it counts as part of the work area."""
    fd = os.open("/tmp", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)  # noqa: S108 - our mount
    return _filled(fd, data)


def _filled(fd: int, data: bytes) -> int:
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(data)
    return fd

"""Workers: forked children of init for work that could take long, such as moving whole trees.

`init/main.py` owns the table and reports exits to it. A worker runs cellwall's code (`trees.py`),
never the caller's, and it never holds the channel.

A worker answers by one short report on a pipe of its own; without a report it failed, whatever its
exit status says. A worker that does not take its input in time is killed, because the host's
channel waits.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

from cellwall.guest.channel.channel import Channel
from cellwall.guest.channel.errors import CODES, Refusal, refusal_from
from cellwall.guest.channel.frames import Header
from cellwall.guest.channel.loop import Loop
from cellwall.guest.channel.pipes import Feed, Meter, Pump
from cellwall.guest.channel.streams import Stream
from cellwall.guest.process import processes
from cellwall.guest.process.processes import Exit

if TYPE_CHECKING:
    from collections.abc import Callable

    Task = Callable[[int, int], Header]
    """Called in the child with descriptors for input and output; returns the reply's fields."""

MOST_WORKERS = 16
MOST_WATCHES = 8
"""Maximum number of watches, counted apart: they last, and transfers must not wait for them."""

PATIENCE_S = 20.0
"""Seconds for which a worker may leave the host's channel paused; only hostile code stops one."""

_MOST_PENDING_BYTES = 4 * 1024 * 1024
_MOST_REPORT_BYTES = 4096  # PIPE_BUF: written at once or not at all, so it never blocks
_MOST_MESSAGE_CHARACTERS = 600
_REPORT_FD = 3


class GrantedOutput:
    """A worker's output that is sent as the host grants it; a pump's is sent at once."""

    def __init__(self, loop: Loop, channel: Channel, fd: int, number: int) -> None:
        """Own `fd`."""
        self._fd = fd
        self.stream = Stream(loop, channel, fd, number, "data")
        self.stream.on_end = lambda _error: self.close()
        self.on_end: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the output has not ended."""
        return self._fd >= 0

    def close(self) -> None:
        """Close the descriptor; output that was not granted is lost."""
        if self._fd >= 0:
            self.stream.stop()
            os.close(self._fd)
            self._fd = -1
            if self.on_end is not None:
                self.on_end()


class Worker:
    """One child at work for one request."""

    def __init__(
        self, number: int, pid: int, feed: Feed, output: Pump | GrantedOutput, report_r: int
    ) -> None:
        """Own the parent's ends of its three pipes."""
        self.id = number
        self.pid = pid
        self.feed = feed
        self.output = output
        self.report_r = report_r
        self.on_end: Callable[[bool], None] = _nothing
        self.has_exited = False
        self.is_cancelled = False


class Workers:
    """All workers at work."""

    def __init__(self, loop: Loop, channel: Channel) -> None:
        self._loop = loop
        self._channel = channel
        self._by_pid: dict[int, Worker] = {}
        self._late: Worker | None = None

    def start(
        self,
        number: int,
        task: Task,
        files: tuple[int, int] = (-1, -1),
        on_end: Callable[[bool], None] | None = None,
    ) -> None:
        """Fork a worker; its `reply` or `fail` follows.

        `files` are descriptors that it has as input and output in the place of pipes; -1: a pipe.
        `on_end` is called in init at its end, before the reply: whether it has done its task.
        """
        at_work = sum(isinstance(worker.output, Pump) for worker in self._by_pid.values())
        if at_work >= MOST_WORKERS:
            raise Refusal("busy", f"worker: {MOST_WORKERS} are at work; wait for one")
        worker = self._fork(number, task, self._pump, files)
        worker.on_end = on_end or _nothing
        assert isinstance(worker.output, Pump)  # noqa: S101  for the type checker only
        worker.output.begin(number, Meter(2**62))

    def watch(self, number: int, task: Task, window_bytes: int) -> None:
        """Fork a worker whose output comes as `data`, as fast as it is granted."""
        watches = sum(isinstance(worker.output, GrantedOutput) for worker in self._by_pid.values())
        if watches >= MOST_WATCHES:
            raise Refusal("busy", f"watch: {MOST_WATCHES} watches are open; close one")
        worker = self._fork(number, task, self._granted)
        assert isinstance(worker.output, GrantedOutput)  # noqa: S101  for the type checker only
        worker.output.stream.begin_reading(window_bytes)

    def _pump(self, fd: int, _number: int) -> Pump:
        return Pump(self._loop, self._channel, fd, "chunk")

    def _granted(self, fd: int, number: int) -> GrantedOutput:
        return GrantedOutput(self._loop, self._channel, fd, number)

    def _fork(
        self,
        number: int,
        task: Task,
        make_output: Callable[[int, int], Pump | GrantedOutput],
        files: tuple[int, int] = (-1, -1),
    ) -> Worker:
        pipes: list[int] = []
        try:
            for _ in range(3):
                pipes += os.pipe()
            pid = os.fork()
        except OSError as error:
            for fd in pipes:
                os.close(fd)
            raise refusal_from(error, "worker: start") from None
        input_r, input_w, output_r, output_w, report_r, report_w = pipes
        if pid == 0:
            own_input, own_output = files
            _become_worker(
                task,
                (
                    own_input if own_input >= 0 else input_r,
                    own_output if own_output >= 0 else output_w,
                    report_w,
                ),
            )
        for fd in (input_r, output_w, report_w):
            os.close(fd)
        output = make_output(output_r, number)
        worker = Worker(number, pid, Feed(self._loop, input_w), output, report_r)
        output.on_end = lambda: self._finish(worker)
        self._by_pid[pid] = worker
        return worker

    def grant(self, number: int, count: int) -> None:
        """Let a watch send `count` bytes more."""
        worker = self._find(number)
        if worker is not None and isinstance(worker.output, GrantedOutput):
            worker.output.stream.grant(count)

    def chunk(self, number: int, data: bytes) -> None:
        """Give a worker input; it is dropped if the worker has already ended."""
        worker = self._find(number)
        if worker is None:
            return
        worker.feed.write(data)
        if worker.feed.pending > _MOST_PENDING_BYTES and self._late is None:
            self._late = worker
            worker.feed.on_progress = lambda: self._on_progress(worker)
            self._channel.pause()
            self._loop.set_alarm(self, PATIENCE_S, lambda: self._on_stuck(worker))

    def chunk_end(self, number: int) -> None:
        """End a worker's input."""
        worker = self._find(number)
        if worker is not None:
            worker.feed.end()

    def cancel(self, number: int) -> bool:
        """Kill the worker of a request; return True if there was one."""
        worker = self._find(number)
        if worker is not None:
            worker.is_cancelled = True
            processes.signal_process(worker.pid, signal.SIGKILL)
        return worker is not None

    def cancel_all(self) -> None:
        """Kill every worker: the host that asked for them is gone."""
        for worker in list(self._by_pid.values()):
            self.cancel(worker.id)

    def on_exit(self, pid: int, _end: Exit) -> bool:
        """Handle the end of a process; return True if it was a worker."""
        worker = self._by_pid.get(pid)
        if worker is None:
            return False
        worker.has_exited = True
        worker.feed.close()
        self._forgive(worker)
        if worker.is_cancelled and isinstance(worker.output, GrantedOutput):
            worker.output.close()  # the host does not ask for the rest
        self._finish(worker)
        return True

    def _find(self, number: int) -> Worker | None:
        for worker in self._by_pid.values():
            if worker.id == number:
                return worker
        return None

    def _on_progress(self, worker: Worker) -> None:
        if worker.feed.pending <= _MOST_PENDING_BYTES // 2:
            self._forgive(worker)
        elif self._late is worker:
            self._loop.set_alarm(self, PATIENCE_S, lambda: self._on_stuck(worker))

    def _forgive(self, worker: Worker) -> None:
        if self._late is worker:
            self._late = None
            self._loop.clear_alarm(self)
            self._channel.resume()

    def _on_stuck(self, worker: Worker) -> None:
        processes.signal_process(worker.pid, signal.SIGKILL)

    def _finish(self, worker: Worker) -> None:
        # Wait for both its exit and the end of its output: the last chunks may still be on their
        # way.
        if not worker.has_exited or worker.output.is_open or worker.pid not in self._by_pid:
            return
        del self._by_pid[worker.pid]
        os.set_blocking(worker.report_r, False)
        try:
            raw = os.read(worker.report_r, _MOST_REPORT_BYTES)
        except BlockingIOError:
            raw = b""
        finally:
            os.close(worker.report_r)
        if not raw:
            worker.on_end(False)
            self._channel.send(_silence(worker))
            return
        report: dict[str, Any] = json.loads(raw)
        code = report.pop("code", None)
        if code in CODES:
            worker.on_end(False)
            self._channel.send(_fail(worker.id, code, str(report.get("message"))))
            return
        try:
            worker.on_end(True)
        except Refusal as refusal:
            self._channel.send(_fail(worker.id, refusal.code, refusal.message))
        else:
            self._channel.send({"ev": "reply", "id": worker.id, **report})


def _nothing(_is_done: bool) -> None:
    return


def _silence(worker: Worker) -> Header:
    if worker.is_cancelled:
        return _fail(worker.id, "cancelled", "worker: ended on request; what it made is incomplete")
    message = "worker: was killed before it could answer (memory, or a signal); try again"
    return _fail(worker.id, "internal", message)


def _fail(number: int, code: str, message: str) -> Header:
    return {"ev": "fail", "id": number, "code": code, "message": message}


def _become_worker(task: Task, fds: tuple[int, int, int]) -> NoReturn:
    try:
        processes.reset_signals()
        # First move them out of the way: dup2 would overwrite a source that lies among the targets.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, _REPORT_FD + 1) for fd in fds]
        for fd, target in zip(high, (0, 1, _REPORT_FD)):
            os.dup2(fd, target)
        processes.close_from(_REPORT_FD + 1)
        os.write(_REPORT_FD, json.dumps(_report(task)).encode()[:_MOST_REPORT_BYTES])
    finally:
        os._exit(0)


def _report(task: Task) -> Header:
    try:
        return task(0, 1)
    except Refusal as refusal:
        return _failure(refusal)
    except OSError as error:
        return _failure(refusal_from(error, "tree"))
    except MemoryError:
        return _failure(Refusal("no_space", "tree: out of memory; raise the memory limit"))
    except Exception as error:  # noqa: BLE001  a worker answers whatever happens
        traceback.print_exc()
        return _failure(Refusal("internal", f"tree: {type(error).__name__}: {error}"))


def _failure(refusal: Refusal) -> Header:
    return {"code": refusal.code, "message": refusal.message[:_MOST_MESSAGE_CHARACTERS]}

"""Servers forked from a process that has imported what `cellwall serve` imports, and nothing more.

Run as a program by `Mould`, once for each pytest process: importing takes longer than most tests
of a server. What it forks is an ordinary process with arguments, environment, descriptors, umask
and limits of its own; only its `/proc/PID/cmdline` and `environ` are the mould's, so a test of
these starts a server in the usual way. The invariant: the mould has one thread and has run nothing.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import IO, Any

from kit.cluster.switch import is_fronted

_LOADED = (
    "alembic.command",
    "cellwall.apps.cli.main",
    "cellwall.apps.cli.serve",
    "cellwall.apps.serve",
    "cellwall.apps.settings_loader",
    "cellwall.engine.state.durable",
    "cellwall.engine.volumes.volume_store",
    "cellwall.runtimes.docker.runtime",
    "cellwall.runtimes.gvisor.runtime",
    "cellwall.runtimes.jail.runtime",
    "cellwall.store.opening",
    "cellwall.store.postgres.database",
    "cellwall.store.sqlite.database",
    "sqlalchemy.dialects.sqlite.pysqlite",
)
_OF_GATEWAYS = ("cellwall.apps.cluster.gateway", "cellwall.apps.cluster.node")
_REQUEST_BYTES = 1 << 17


class Forked:
    """A process of a mould, as `subprocess.Popen` shows one of its own."""

    def __init__(self, mould: Mould, pid: int, stdout: IO[str] | None = None) -> None:
        self._mould = mould
        self._pidfd = os.pidfd_open(pid)  # the mould does not reap it before it is asked to
        weakref.finalize(self, os.close, self._pidfd)
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended, once it has."""
        found = self._ended_within(timeout)
        if found is None:
            raise subprocess.TimeoutExpired(["serve"], timeout or 0)
        return found

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it is known to have ended."""
        if self.returncode is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def _ended_within(self, seconds: float | None) -> int | None:
        with self._mould.lock:
            known = self.returncode
        if known is not None:
            return known
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        if not poller.poll(None if seconds is None else seconds * 1000):
            return None
        with self._mould.lock:
            if self.returncode is None:
                self.returncode = self._mould.reaped(self.pid)
        return self.returncode


class Mould:
    """The process that forks, from the side of the tests."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=os.path.dirname(os.path.dirname(os.path.dirname(__file__))),
            )
        atexit.register(self._close, os.getpid())

    def start(self, argv: Sequence[str], environ: Mapping[str, str], stderr: int) -> Forked:
        """Fork a process that runs what an interpreter would run with `argv`."""
        reading, writing = os.pipe()
        try:
            pid = self._forked(argv, environ, [writing, stderr])
        finally:
            os.close(writing)
        return Forked(self, pid, open(reading, encoding="utf-8"))

    def run(
        self, argv: Sequence[str], environ: Mapping[str, str], seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """Run such a process to its end, which has to come within `seconds`."""
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            made = Forked(self, self._forked(argv, environ, [stdout.fileno(), stderr.fileno()]))
            try:
                status = made.wait(seconds)
            except subprocess.TimeoutExpired:
                made.kill()
                made.wait()
                raise
            texts = [os.pread(each.fileno(), 1 << 26, 0).decode() for each in (stdout, stderr)]
        return subprocess.CompletedProcess([*argv], status, *texts)

    def _forked(
        self, argv: Sequence[str], environ: Mapping[str, str], descriptors: list[int]
    ) -> int:
        mask = os.umask(0)
        os.umask(mask)
        told = {
            "argv": list(argv),
            "environ": dict(environ),
            "cwd": os.getcwd(),
            "umask": mask,
            "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        return self._asked(told, descriptors)

    def reaped(self, pid: int) -> int:
        """Return the exit status of a process that has ended, negative for a signal."""
        return self._asked({"reap": pid}, [])

    def _asked(self, told: dict[str, Any], descriptors: list[int]) -> int:
        with self.lock:
            socket.send_fds(self._control, [json.dumps(told).encode()], descriptors)
            answer = self._control.recv(64)
        assert answer, "the mould of the servers has ended"
        return int(answer)

    def _close(self, owner: int) -> None:
        if os.getpid() == owner:  # not in what a test forks, which may still hold the socket
            self._control.shutdown(socket.SHUT_RDWR)
            self._control.close()
            self._process.wait()


@functools.cache
def the_mould() -> Mould:
    """Return this process's only one."""
    return Mould()


def _serve(control: socket.socket) -> None:
    """Fork and reap as asked for, until the tests are gone."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 2)
        if not message:
            return
        told = json.loads(message)
        if "reap" in told:
            _, status = os.waitpid(told["reap"], 0)
            control.send(b"%d" % os.waitstatus_to_exitcode(status))
            continue
        pid = os.fork()
        if not pid:
            control.close()
            _become(told, descriptors)
        for fd in descriptors:
            os.close(fd)
        control.send(b"%d" % pid)


def _become(told: dict[str, Any], descriptors: list[int]) -> None:
    """Turn into the process that was asked for; ends as its interpreter would."""
    for fd, target in zip(descriptors, (1, 2), strict=True):
        os.dup2(fd, target)
        os.close(fd)
    os.environ.clear()
    os.environ.update(told["environ"])
    os.chdir(told["cwd"])
    os.umask(told["umask"])
    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(told["descriptors"]))
    sys.argv = told["argv"]
    script = sys.argv[0]
    if script == "-m":
        module = importlib.import_module(sys.argv.pop(1))
        sys.argv[0] = str(module.__file__)
        raise SystemExit(module.main())
    sys.path[0] = os.path.dirname(script)
    runpy.run_path(script, run_name="__main__")
    raise SystemExit(0)


def _main() -> None:
    for name in (*_LOADED, *(_OF_GATEWAYS if is_fronted() else ())):
        importlib.import_module(name)
    assert threading.active_count() == 1
    with socket.socket(fileno=int(sys.argv[1])) as control:
        os.set_inheritable(control.fileno(), False)
        _serve(control)


if __name__ == "__main__":
    _main()

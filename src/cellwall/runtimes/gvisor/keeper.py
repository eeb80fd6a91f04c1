"""Keeper: the engine's handle on one running `runsc`: start, kill, end. See `launch`.

It is not a sandbox: it knows neither limits nor the guest. `Keepers` starts one keeper ahead of its
use: an interpreter and its namespaces take a fifth of a cold start. The invariant: once
`wait_ended` returns, the pid namespace of `runsc` and all its processes is gone, if the keeper
ended by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cellwall.model.errors import HostUnsupported
from cellwall.runtimes.shared.guest_bundle import build_bundle

_BUNDLE = (
    "cellwall.linux.seccomp",
    "cellwall.linux.syscalls",
    "cellwall.runtimes.gvisor.trees",
    "cellwall.runtimes.gvisor.work_area",
    "cellwall.runtimes.gvisor.launch",
)
_ENTRY = "cellwall.runtimes.gvisor.launch:main"
_SAID_BYTES = 4096
_PAUSE_S = 0.05
"""Seconds between a start and the keeper for the next one: the program that was waited for goes
first."""


def launcher(state_dir: Path) -> Path:
    """Return the bundle that `Keeper` starts; written once."""
    return build_bundle(state_dir, _BUNDLE, _ENTRY)


class Keeper:
    """One keeper process and its leash, a pipe. Lives on the event loop it was made on."""

    def __init__(self, bundle: Path, place: str) -> None:
        """Start the process; `runsc` will keep its state in `place`. Raises HostUnsupported."""
        self._said = os.memfd_create("cellwall-runsc", os.MFD_CLOEXEC)
        leash_r, self._leash_w = os.pipe2(os.O_CLOEXEC)
        order_r, self._order_w = os.pipe2(os.O_CLOEXEC)
        self._channel, theirs = socket.socketpair()
        words = [sys.executable, "-I", "-S", "-E", str(bundle), str(order_r), str(leash_r), place]
        try:
            self._child = _start(words, theirs.fileno(), self._said, (order_r, leash_r))
        except OSError as error:
            for fd in (self._leash_w, self._order_w, self._said):
                os.close(fd)
            self._channel.close()
            raise HostUnsupported(
                "processes",
                f"gVisor: start {words[0]}: {error.strerror}",
                remedy="is this host short of memory or processes?",
                errno=error.errno,
            ) from error
        finally:
            os.close(order_r)
            os.close(leash_r)
            theirs.close()
        loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(self._child.pid)
        self._ended: asyncio.Future[int] = loop.create_future()
        self._on_end: list[Callable[[], None]] = []
        loop.add_reader(self._pidfd, self._on_readable)

    @property
    def pid(self) -> int:
        """Process id of the keeper; `runsc` and all other processes are below it."""
        return self._child.pid

    @property
    def has_ended(self) -> bool:
        """Whether the keeper has ended, asked from the kernel before the event loop learns it."""
        return self._ended.done() or self._child.poll() is not None

    def begin(self, order: dict[str, Any], views: Sequence[int] = ()) -> socket.socket:
        """Have the keeper start `runsc` by `order`. A keeper that has died is noticed by its end.

        `views`: the detached mounts of volumes, or the two files of a saved sandbox; the caller
        keeps its descriptors. Returns the engine's end of the first process's descriptor 0; the
        caller owns it.
        """
        if views:
            with contextlib.suppress(BrokenPipeError):
                socket.send_fds(self._channel, [b"v"], views)
        with contextlib.suppress(BrokenPipeError), os.fdopen(self._order_w, "wb") as pipe:
            self._order_w = -1
            pipe.write(json.dumps(order).encode())
        return socket.socket(fileno=self._channel.detach())

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the keeper has ended; now, if it has."""
        if self._ended.done():
            callback()
        else:
            self._on_end.append(callback)

    def forget_end(self) -> None:
        """Call nothing when the keeper ends: another one takes its place."""
        self._on_end.clear()

    def kill(self) -> None:
        """Release the leash: the keeper kills the pid namespace. Idempotent."""
        if self._order_w >= 0:
            os.close(self._order_w)
            self._order_w = -1
        if self._leash_w >= 0:
            with contextlib.suppress(OSError):
                os.write(self._leash_w, b"k")  # closing alone has no effect if a fork has a copy
            os.close(self._leash_w)
            self._leash_w = -1

    def kill_hard(self) -> None:
        """Kill the keeper itself, and its child with it; for a keeper that was stopped."""
        if not self._ended.done():
            self._child.kill()

    async def wait_ended(self) -> int:
        """Wait for the keeper's end and return its exit status."""
        return await asyncio.shield(self._ended)

    def said(self) -> str:
        """Return what `runsc`, or the boot inside, wrote to its standard error so far."""
        if self._said < 0:
            return ""
        size = os.fstat(self._said).st_size
        data = os.pread(self._said, _SAID_BYTES, max(0, size - _SAID_BYTES))
        return data.decode(errors="replace").strip()

    def _on_readable(self) -> None:
        self._release()
        status = self._child.wait()
        if not self._ended.done():
            self._ended.set_result(status)
        callbacks, self._on_end = self._on_end, []
        for callback in callbacks:
            callback()

    def _release(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self.kill()

    def close(self) -> None:
        """Close the channel and the record of standard error."""
        self._channel.close()
        if self._said >= 0:
            os.close(self._said)
            self._said = -1

    def abandon(self) -> None:
        """Close the descriptors without ending the keeper; for a forked child."""
        for fd in (self._leash_w, self._order_w, self._pidfd, self._said):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._channel.close()
        self._leash_w = self._order_w = self._pidfd = self._said = -1


class Keepers:
    """Keepers of one runtime, one of them ready for the next start."""

    def __init__(self, bundle: Path, place: str, idle_s: float) -> None:
        """Start none; a ready keeper that is not taken for `idle_s` seconds is ended."""
        self._bundle = bundle
        self._place = place
        self._idle_s = idle_s
        self._next: Keeper | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._leaving: set[Keeper] = set()

    def take(self) -> Keeper:
        """Return a keeper that has not begun. Raises HostUnsupported."""
        found = self._pop()
        if found is not None and not found.has_ended:
            return found
        if found is not None:
            found.close()
        return Keeper(self._bundle, self._place)

    def make_ready_soon(self) -> None:
        """Start the next keeper, unless one is ready, after the current caller has been served."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_PAUSE_S, self._make_ready)

    def settle(self) -> None:
        """Start the next keeper now if it would be started soon."""
        if self._timer is not None:
            self._timer.cancel()
            self._make_ready()

    def _make_ready(self) -> None:
        self._timer = None
        ready = self._pop()
        with contextlib.suppress(HostUnsupported):  # the start that needs it raises the same error
            self._next = ready or Keeper(self._bundle, self._place)
            self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._let_go)

    def _pop(self) -> Keeper | None:
        """Take the ready keeper, if there is one, and stop its idle timer."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        found, self._next = self._next, None
        return found

    def _let_go(self) -> None:
        """End the ready keeper; `_on_gone` runs when it has ended."""
        found = self._pop()
        if found is not None:
            self._leaving.add(found)
            found.on_end(lambda: self._on_gone(found))
            found.kill()

    def _on_gone(self, keeper: Keeper) -> None:
        keeper.close()
        self._leaving.discard(keeper)

    async def aclose(self) -> None:
        """End the ready keeper and wait for all ended ones."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._let_go()
        await asyncio.gather(*(each.wait_ended() for each in self._leaving))

    def abandon(self) -> None:
        """Close the descriptors without ending any keeper; for a forked child."""
        for each in (self._next, *self._leaving):
            if each is not None:
                each.abandon()
        self._next = None
        self._leaving.clear()


def _start(
    words: Sequence[str], stdin: int, said: int, kept: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words,
        stdin=stdin,
        stdout=said,
        stderr=said,
        pass_fds=kept,
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        cwd="/",
    )

"""Freezing: pause and resume of sandboxes by cgroups, on threads of their own.

Used by the jail and by gVisor. One `Freezing` for each sandbox; the threads are a runtime's. They
are not those that start and remove sandboxes, because a process that does not stop makes a pause
wait for seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING

from cellwall.linux import own_module
from cellwall.linux.syscalls import page_out
from cellwall.model.errors import HostUnsupported, SandboxBroken
from cellwall.runtimes.base import Finding

if TYPE_CHECKING:
    from cellwall.linux.cgroups.engine_tree import EngineGroups
    from cellwall.linux.cgroups.freezer import Freezer
    from cellwall.linux.cgroups.hierarchies import Layout
    from cellwall.linux.cgroups.sandbox_groups import Groups


class ThawGuard:
    """The engine's end of the process that thaws what the engine leaves frozen."""

    def __init__(self) -> None:
        """Start nothing before the first group."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def add(self, freezer: Freezer) -> None:
        """Have a group thawed when the engine ends. Raises HostUnsupported."""
        try:
            self._tell("+", freezer)
        except OSError as error:
            raise HostUnsupported(
                "processes",
                f"pause: start the process that thaws after the engine: {error.strerror}",
                remedy="is this host short of memory or processes?",
                errno=error.errno,
            ) from error

    def drop(self, freezer: Freezer) -> None:
        """Forget a group that has ended."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._tell("-", freezer)

    def _tell(self, sign: str, freezer: Freezer) -> None:
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                process = self._process = self._start()
            assert process.stdin is not None  # noqa: S101 - for the type checker: it is a pipe
            process.stdin.write(f"{sign}{freezer.version} {freezer.path}\n".encode())

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            own_module.command("cellwall.linux.cgroups.thaw_guard:main"),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            cwd="/",
            start_new_session=True,
        )

    def end(self) -> None:
        """End the process and wait for that."""
        self.abandon()
        if self._process is not None:
            self._process.wait()
            self._process = None

    def abandon(self) -> None:
        """Close this process's end of the pipe; in a forked child, nothing ends."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()


class FreezerThreads:
    """The threads of one runtime on which sandboxes are frozen and thawed; none before the first.

    A resume does not queue behind pauses.
    """

    def __init__(self) -> None:
        """Start nothing."""
        self.guard = ThawGuard()

    @cached_property
    def pausing(self) -> ThreadPoolExecutor:
        """The threads that freeze."""
        return ThreadPoolExecutor(2, thread_name_prefix="cellwall-freeze")

    @cached_property
    def resuming(self) -> ThreadPoolExecutor:
        """The thread that thaws."""
        return ThreadPoolExecutor(1, thread_name_prefix="cellwall-thaw")

    async def aclose(self) -> None:
        """End the threads and the guard; no sandbox may be left."""
        await asyncio.to_thread(self.guard.end)
        for name in ("pausing", "resuming"):
            if name in vars(self):
                vars(self).pop(name).shutdown(wait=False)


def finding(layout: Layout) -> Finding:
    """Return whether sandboxes can be paused here, and give their memory back meanwhile."""
    where, areas = layout.freezing, page_out.swap_areas()
    if where is None:
        remedy = "mount cgroup2 and delegate a group to this user"
        return Finding("pause", "CAUTION", "no cgroup can be made that freezes processes", remedy)
    swap = f"swap: {', '.join(areas)}" if areas else "no swap, so no memory comes back"
    detail = f"frozen by cgroup v{where.version} below {where.base}; {swap}"
    if where.version == 1:
        remedy = "mount cgroup2, where what is frozen ends with its engine by itself"
        return Finding("pause", "CAUTION", detail, remedy)
    return Finding(
        "pause", "PASS", detail, "" if areas else "zramctl --find --size 1G; mkswap; swapon"
    )


class Freezing:
    """Pause and resume of one sandbox."""

    def __init__(self, tree: EngineGroups, threads: FreezerThreads, groups: Groups) -> None:
        self._tree = tree
        self._threads = threads
        self._groups = groups
        self._under_way: set[asyncio.Future[None]] = set()
        self._is_ended = False

    def check(self) -> None:
        """Raise HostUnsupported if processes cannot be frozen here."""
        self._tree.check_freezing()

    async def pause(self) -> None:
        """Freeze its processes; return when they stand still."""
        await self._do(self._threads.pausing, self._freeze)

    async def resume(self) -> None:
        """Let its processes go on."""
        await self._do(self._threads.resuming, self._thaw)

    async def _do(self, threads: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        if self._is_ended:
            raise SandboxBroken("pause: the sandbox has ended")
        doing = asyncio.get_running_loop().run_in_executor(threads, work)
        self._under_way.add(doing)
        doing.add_done_callback(self._under_way.discard)
        await asyncio.shield(doing)

    def _freeze(self) -> None:
        freezer = self._tree.add_freezer(self._groups)
        if freezer.version == 1:
            self._threads.guard.add(freezer)
        freezer.freeze(self._groups.members)

    def _thaw(self) -> None:
        if self._groups.freezer is not None:
            self._groups.freezer.thaw()
        self._groups.allow_swap(allowed=False)

    async def page_out(self) -> None:
        """Write the memory of its processes to swap."""
        await self._do(self._threads.pausing, self._page_out)

    def _page_out(self) -> None:
        if not page_out.swap_areas():
            return
        self._groups.allow_swap(allowed=True)
        for pid in self._groups.members():
            with contextlib.suppress(OSError):  # it has ended, or may not be advised
                page_out.page_out(pid)

    async def end(self) -> None:
        """Wait for what is under way and begin nothing more; the sandbox has been killed."""
        self._is_ended = True
        if self._under_way:
            await asyncio.wait(self._under_way)
        if self._groups.freezer is not None:
            self._threads.guard.drop(self._groups.freezer)

"""Process sandbox: one live sandbox of the `process` runtime, with a watchdog over its processes.

Made by `runtime`, used by the engine through `runtimes.base`. For limits that the kernel does not
hold here (memory of a tree, processes, disk) the watchdog sums up the use and kills above the
limit. The invariant: counters only rise, and a breach is recorded before the kill, so that the
verdict finds its evidence.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cellwall.linux.removal import remove_tree
from cellwall.model.errors import UsageError
from cellwall.model.outcome import Isolation, IsolationLevel
from cellwall.runtimes.base import KernelReadings, SandboxSpec
from cellwall.runtimes.channel.channel import GuestChannel
from cellwall.runtimes.channel.replies import Listener
from cellwall.runtimes.process.boot import descendants, end_tree
from cellwall.runtimes.process.rules import PathRules
from cellwall.runtimes.shared.shedding import Shedding

if TYPE_CHECKING:
    from cellwall.model.limits import Limits

_END_S = 5.0
_TICK_S = 0.05
_IDLE_TICK_S = 1.0
_DISK_EVERY_S = 0.5
_OUR_PROCESSES = 3
"""Number of own processes: guardian, init and the warm context. `limits.processes` counts the
others and the context."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_HARDNESS = {
    "wall_s": "soft",
    "cpu_s": "soft",
    "cpus": "soft",
    "memory_mb": "soft",
    "processes": "soft",
    "disk_mb": "soft",
    "inodes": "soft",
    "file_mb": "hard",
    "output_kb": "hard",
    "open_files": "hard",
}


def _nothing() -> None:
    """Do nothing: a refusal is counted when it is detected."""


class GuardedChannel(GuestChannel):
    """A channel that passes only requests that the path rules allow."""

    rules: PathRules
    on_work: Callable[[], None]

    def open(
        self,
        op: str,
        listener: Listener,
        expected: frozenset[str],
        fields: Mapping[str, Any],
        body: bytes = b"",
    ) -> int:
        """Check the request, wake the watchdog, pass it on."""
        self.rules.check_request(op, fields)
        self.on_work()
        return super().open(op, listener, expected, fields, body)


def _process_use(pid: int) -> tuple[float, int, int]:
    """Return (CPU seconds with reaped children, private bytes, threads) of one process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            words = stream.read().rpartition(b")")[2].split()
        # After the first thread has ended, only other threads show the memory.
        threads = [str(pid)] if words[17] == b"1" else os.listdir(f"/proc/{pid}/task")
        pages = max(_private_pages(pid, thread) for thread in threads)
    except OSError:
        return 0.0, 0, 0
    ticks = sum(int(word) for word in words[11:15])
    return ticks / _TICKS_PER_S, pages * _PAGE_BYTES, int(words[17])


def _private_pages(pid: int, thread: str) -> int:
    """Return the resident pages of no file and no shared memory (proc_pid_statm(5))."""
    try:
        with open(f"/proc/{pid}/task/{thread}/statm", "rb") as stream:
            words = stream.read().split()
    except FileNotFoundError:
        return 0  # the thread has ended
    return int(words[1]) - int(words[2])


def _tree_size(path: str, most_files: int) -> tuple[int, int]:
    """Return (bytes, files) below `path`; stops counting above `most_files`."""
    total, files, queue = 0, 0, [path]
    while queue and files <= most_files:
        try:
            with os.scandir(queue.pop()) as entries:
                for entry in entries:
                    files += 1
                    if entry.is_dir(follow_symlinks=False):
                        queue.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue  # removed meanwhile, or made unreadable: not counted
    return total, files


class ProcessSandbox:
    """A live sandbox: guardian, init and their descendants."""

    def __init__(
        self, spec: SandboxSpec, directory: str, child: subprocess.Popen[bytes], leash_w: int
    ) -> None:
        """Own the child, the leash and the directory from now on."""
        self._loop = asyncio.get_running_loop()
        self._spec = spec
        self._limits = spec.limits
        self._directory = directory
        self._child = child
        self._leash_w = leash_w
        self._pidfd = os.pidfd_open(child.pid)
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._pidfd, self._on_ended)
        self._highest = KernelReadings()
        self._tick: asyncio.TimerHandle | None = None
        self._pause_s = _TICK_S
        self._disk_checked_at = 0.0
        self._closing: asyncio.Future[None] | None = None
        self._hogs = Shedding(
            "shed", partial(self._count, oom_kills=1), partial(self._breach, oom_kills=1)
        )
        self._crowds = Shedding("thin", _nothing, partial(self._breach, processes_refused=1))
        self.channel: GuardedChannel

    @property
    def isolation(self) -> Isolation:
        """Isolation level `process`, with the limits that are soft."""
        return Isolation("process", IsolationLevel.PROCESS, "", dict(_HARDNESS))

    @property
    def posture(self) -> Mapping[str, Any]:
        """Empty: nothing is confined, so there are no facts to read back."""
        return {}

    def fits(self, spec: SandboxSpec) -> bool:
        """Report whether all but the limits is equal: every limit here can change from outside."""
        mine = replace(
            self._spec, sandbox_id=spec.sandbox_id, limits=spec.limits, is_awaited=spec.is_awaited
        )
        return mine == spec

    async def apply_limits(self, limits: Limits) -> None:
        """Set rlimits and CPUs of every process of the tree."""
        self.apply_limits_nowait(limits)

    def apply_limits_nowait(self, limits: Limits) -> None:
        """Do what `apply_limits` does; nothing here waits."""
        check_cpus(limits)
        self._limits = limits
        for pid in (self._child.pid, *descendants(self._child.pid)):
            with contextlib.suppress(ProcessLookupError):
                for name, value in rlimits(limits).items():
                    number = getattr(resource, name)
                    hard = resource.prlimit(pid, number)[1]
                    soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
                    resource.prlimit(pid, number, (soft, hard))
                os.sched_setaffinity(pid, choose_cpus(limits))

    # -- watching --------------------------------------------------------------------------

    def on_work(self) -> None:
        """Watch at the shortest interval from now on, because work begins."""
        self._pause_s = _TICK_S
        if self._tick is not None:
            self._tick.cancel()
        self._tick = self._loop.call_later(_TICK_S, self._watch)

    @property
    def fresh(self) -> KernelReadings:
        """Counters after the start of the interpreter."""
        return self.readings()

    def readings(self) -> KernelReadings:
        """Return the sums of the tree's counters in /proc; never lower than before."""
        pids = descendants(self._child.pid)
        uses = [_process_use(pid) for pid in pids]
        cpu_s, memory, threads = (
            (sum(column) for column in zip(*uses, strict=True))
            if uses
            else (
                0.0,
                0,
                0,
            )
        )
        known = self._highest
        self._highest = replace(
            known,
            cpu_s=max(known.cpu_s, float(cpu_s)),
            memory_bytes=int(memory),
            memory_peak_bytes=max(known.memory_peak_bytes, int(memory)),
            processes_peak=max(known.processes_peak or 0, int(threads)),
        )
        return self._highest

    def _watch(self) -> None:
        self._tick = None
        before = self._highest.cpu_s
        now = self.readings()
        threads = sum(_process_use(pid)[2] for pid in descendants(self._child.pid))
        if now.memory_bytes > self._limits.memory_bytes:
            excess = now.memory_bytes - self._limits.memory_bytes
            self._hogs.over(self.channel, max(excess, self._limits.memory_bytes // 4))
            self._look_again(is_busy=True)
        elif threads > self._limits.processes + _OUR_PROCESSES:
            # before the request: the end is reported with the answer
            self._count(processes_refused=1)
            self._crowds.over(self.channel, self._limits.processes // 2)
            self._look_again(is_busy=True)
        elif self._is_disk_over():
            self._breach(disk_full=True)
        else:
            self._look_again(is_busy=now.cpu_s > before)

    def _look_again(self, *, is_busy: bool) -> None:
        if self._leash_w < 0:
            return  # the sandbox was given up just now
        self._pause_s = _TICK_S if is_busy else min(self._pause_s * 2, _IDLE_TICK_S)
        self._tick = self._loop.call_later(self._pause_s, self._watch)

    def _is_disk_over(self) -> bool:
        now = self._loop.time()
        if now - self._disk_checked_at < _DISK_EVERY_S:
            return False
        self._disk_checked_at = now
        size, files = _tree_size(self._directory, self._limits.inodes)
        return size > self._limits.disk_mb << 20 or files > self._limits.inodes

    def _count(
        self, *, oom_kills: int = 0, processes_refused: int = 0, disk_full: bool = False
    ) -> None:
        self._highest = replace(
            self._highest,
            oom_kills=self._highest.oom_kills + oom_kills,
            processes_refused=self._highest.processes_refused + processes_refused,
            disk_full=self._highest.disk_full or disk_full,
        )

    def _breach(
        self, *, oom_kills: int = 0, processes_refused: int = 0, disk_full: bool = False
    ) -> None:
        self._count(oom_kills=oom_kills, processes_refused=processes_refused, disk_full=disk_full)
        self.kill()

    # -- ending ----------------------------------------------------------------------------

    def kill(self) -> None:
        """Release the leash: the guardian kills the tree; idempotent."""
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        if self._leash_w >= 0:
            with contextlib.suppress(OSError):
                os.write(self._leash_w, b"k")  # closing alone has no effect if a fork has a copy
            os.close(self._leash_w)
            self._leash_w = -1

    def _on_ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._child.wait()
        self.kill()
        self.channel.poll()
        self.channel.close("the sandbox's processes have ended")
        if not self._ended.done():
            self._ended.set_result(None)

    async def wait_ended(self) -> None:
        """Return when the guardian, which ends last, has ended."""
        await asyncio.shield(self._ended)

    async def aclose(self) -> None:
        """Kill, wait, remove the directory; idempotent."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self.kill()
        try:
            await asyncio.wait_for(self.wait_ended(), _END_S)
        except TimeoutError:
            # The guardian hangs (stopped by the program, for one): do its work from here.
            await asyncio.to_thread(end_tree, self._child.pid)
            self._child.kill()
            await self.wait_ended()
        await asyncio.to_thread(remove_tree, self._directory)

    def abandon(self) -> None:
        """Close descriptors only; for a forked child of the embedder."""
        for fd in (self._leash_w, self._pidfd):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)


def check_cpus(limits: Limits) -> None:
    """Raise `UsageError` on a share of CPUs that affinity cannot express."""
    if limits.cpus != int(limits.cpus):
        raise UsageError(
            f"process runtime: limits.cpus={limits.cpus:g} cannot be held",
            remedy="give a whole number, or use a runtime with cgroups (isolation='namespace')",
        )


def choose_cpus(limits: Limits) -> set[int]:
    """Return as many of this process's CPUs as the limit says."""
    ours = sorted(os.sched_getaffinity(0))
    count = min(len(ours), max(1, int(limits.cpus)))
    first = time.monotonic_ns() // 1000 % len(ours)  # spread over the machine without keeping state
    return {ours[(first + i) % len(ours)] for i in range(count)}


def rlimits(limits: Limits) -> dict[str, int]:
    """Return the soft resource limits by name."""
    # Twice the limit: the watchdog decides at the limit, this only stops faster growth.
    return {
        "RLIMIT_DATA": 2 * limits.memory_bytes + (256 << 20),
        "RLIMIT_FSIZE": limits.file_mb << 20,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_CORE": 0,
    }

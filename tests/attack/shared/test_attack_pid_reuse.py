"""N17: the pid of something that has ended belongs to somebody else, and nobody else is hit.

Chance needs as many forks as there are pids to get there; here the kernel is told which pid comes
next (`ns_last_pid` in the sandbox's pid namespace, `set_tid` of clone3 on the host), so that reuse
is certain and immediate. The control: that number does reach the new owner.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall import AsyncSandbox, Verdict
from conftest import Require
from kit.arena import Arena, compiled, descendants

pytestmark = [pytest.mark.attack, pytest.mark.root]

_NEXT = 'mount -t proc proc /proc && echo "$0" > /proc/sys/kernel/ns_last_pid'


def _host_pid(sandbox: AsyncSandbox) -> int:
    pid: int = sandbox.live.runtime_sandbox.pid  # type: ignore[attr-defined]
    return pid


def _give_next(sandbox: AsyncSandbox, pid: int) -> None:
    """Have the next process of a sandbox be `pid`; from the host, nothing inside may do this."""
    enter = ["nsenter", "--target", str(_host_pid(sandbox)), "--pid", "unshare", "--mount"]
    subprocess.run([*enter, "sh", "-c", _NEXT, str(pid - 1)], check=True, timeout=10)


@pytest.fixture(autouse=True)
def _can_choose(require: Require) -> None:
    path = Path("/proc/sys/kernel/ns_last_pid")
    require("pid choice", path.exists(), "a kernel with CONFIG_CHECKPOINT_RESTORE")


async def _end_of_command(sandbox: AsyncSandbox) -> int:
    command = await sandbox.commands.start(["true"])
    await command.wait()
    assert command.pid is not None
    await _reuse(sandbox, command.pid)
    await command.kill()
    return command.pid


async def _end_of_context(sandbox: AsyncSandbox) -> int:
    said = await sandbox.run("import os\nprint(os.getpid(), flush=True)\nos._exit(0)")
    await _reuse(sandbox, int(said.stdout))
    await sandbox.interrupt()
    return int(said.stdout)


async def _reuse(sandbox: AsyncSandbox, pid: int) -> None:
    _give_next(sandbox, pid)
    successor = await sandbox.commands.start(["sleep", "60"])
    assert successor.pid == pid


@pytest.mark.parametrize(
    "end",
    [pytest.param(_end_of_command, id="command"), pytest.param(_end_of_context, id="context")],
)
def test_signal_to_what_has_ended_hits_nobody_inside(arena: Arena, end: Any) -> None:
    async def attack() -> None:
        async with arena.sandbox() as sandbox:
            pid = await end(sandbox)
            (successor,) = await sandbox.commands.list()
            # The agent takes one request after the other: it has seen the signal by now.
            assert (await sandbox.run("print('fine')")).stdout == "fine\n"
            assert successor.is_running
            await sandbox.run(f"import os\nos.kill({pid}, 15)")  # the control
            assert (await successor.wait()).outcome.signal == signal.SIGTERM

    with arena.leaving_nothing():
        arena.do(attack())


_SUCCESSORS = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
/* One child with each of the pids named, as soon as it is free; then how each was ended. */
static pid_t born(pid_t wanted) {
    struct clone_args how;
    struct timespec pause = {0, 1000000};
    memset(&how, 0, sizeof how);
    how.exit_signal = SIGCHLD;
    how.set_tid = (unsigned long)&wanted;
    how.set_tid_size = 1;
    for (int tries = 0; tries < 2000; tries++) {
        pid_t pid = (pid_t)syscall(SYS_clone3, &how, sizeof how);
        if (pid >= 0 || errno != EEXIST) return pid;
        nanosleep(&pause, 0);
    }
    return -1;
}
int main(int count, char **words) {
    for (int i = 1; i < count; i++) {
        pid_t pid = born(atoi(words[i]));
        if (pid == 0) for (;;) pause();
        if (pid < 0) { perror("clone3"); return 1; }
    }
    puts("up");
    fflush(stdout);
    for (int status; wait(&status) > 0;) printf("%d\n", WTERMSIG(status));
    return 0;
}
"""


@contextlib.contextmanager
def _successors(program: Path, pids: list[int]) -> Iterator[subprocess.Popen[str]]:
    """Processes of these pids, as children of one that reports their ends."""
    argv = [str(program), *map(str, pids)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as made:
        try:
            assert made.stdout is not None
            assert made.stdout.readline() == "up\n"
            yield made
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(made.pid, signal.SIGKILL)


def test_end_of_a_sandbox_hits_nobody_who_has_its_pids_on_the_host(
    arena: Arena, tmp_path: Path
) -> None:
    compiled(_SUCCESSORS, tmp_path)

    async def attack(stack: contextlib.ExitStack) -> str:
        async with arena.sandbox() as sandbox:
            init = _host_pid(sandbox)
            pids = [init, *descendants(init)]
            assert len(pids) == 2
            os.kill(init, signal.SIGKILL)
            # The event loop stands still meanwhile: the engine finds out when all is reused.
            successors = stack.enter_context(_successors(tmp_path / "probe", pids))
            assert (await sandbox.run("1")).verdict is Verdict.SANDBOX_ERROR
        await arena.engine.wait_settled()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)  # the control: these numbers are theirs
        return successors.communicate(timeout=10)[0]

    with contextlib.ExitStack() as stack:
        assert arena.do(attack(stack)).split() == ["15", "15"]

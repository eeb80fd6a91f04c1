"""Executor of a plan: opens what must be opened first, then executes step by step.

Called by `boot` (stage A) and, prepared in `forkserver`, by `sandbox_init` (stage C). Decides
nothing; the first failing step ends it, and its SyscallError names the step.
"""

from __future__ import annotations

import os
from typing import List, Optional, Sequence, Tuple

from cellwall.jail.plan.steps import (
    Attach,
    Bind,
    BootId,
    Copy,
    Cover,
    Device,
    Directory,
    Enter,
    File,
    FilesAs,
    Layer,
    Mount,
    Pivot,
    Remount,
    Setting,
    Step,
    Symlink,
)
from cellwall.linux.syscalls.libc import Prepared, do_all

_SIMPLE = (Directory, Symlink, Mount, Cover, Remount, FilesAs, Enter, Attach, Pivot)


def open_sources(steps: Sequence[Step]) -> List[Tuple[Step, Optional[int]]]:
    """Open every host source while the host's tree is still visible."""
    return [
        (step, step.prepare() if isinstance(step, (Bind, Layer, Copy, Device)) else None)
        for step in steps
    ]


def build(opened: Sequence[Tuple[Step, Optional[int]]], root: str) -> None:
    """Execute steps below `root`; close each source after its use."""
    for step, source_fd in opened:
        if isinstance(step, (Bind, Layer, Copy, Device)):
            if source_fd is None:
                raise ValueError(f"{step.describe()}: source was not opened")
            step.execute_from(root, source_fd)
            os.close(source_fd)
        else:
            step.execute(root)


def prepare(steps: Sequence[Step], free_fd: int) -> Tuple[Prepared, ...]:
    """Turn steps that need no host source into calls that a fork only has to make.

    `free_fd` is the lowest free descriptor at that time; a call that gets another one fails.
    """
    calls: List[Prepared] = []
    for step in steps:
        if isinstance(step, _SIMPLE):
            calls += step.prepared("")
        elif isinstance(step, (File, BootId, Setting)):
            calls += step.prepared("", free_fd)
        else:
            raise TypeError(f"{step.describe()}: a fork cannot do this step")
    return tuple(calls)


def walk(calls: Sequence[Prepared]) -> None:
    """Make the calls that `prepare` prepared."""
    do_all(tuple(calls))

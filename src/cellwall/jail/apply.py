"""Walks a plan: opens what must be opened first, then executes step by step.

Called by `boot` (stage A) and, prepared in `forkserver`, by `inside` (stage C). Decides nothing;
the first failing step ends it, and its SyscallError names the step.
"""

from __future__ import annotations

import os
from typing import Callable, List, Optional, Sequence, Tuple, Union

from cellwall.jail.linux.libc import Prepared, do_all
from cellwall.jail.steps import Bind, Cover, Device, Directory, Mount, Remount, Step

Run = Union[Tuple[Prepared, ...], Callable[[str], None]]
"""Consecutive mounts as one run of prepared calls, or one step's `execute`."""


def open_sources(steps: Sequence[Step]) -> List[Tuple[Step, Optional[int]]]:
    """Open every host source while the host's tree is still in view."""
    return [(step, step.prepare() if isinstance(step, (Bind, Device)) else None) for step in steps]


def build(opened: Sequence[Tuple[Step, Optional[int]]], root: str) -> None:
    """Execute prepared steps below `root`, closing each source once used."""
    for step, source_fd in opened:
        if isinstance(step, (Bind, Device)):
            if source_fd is None:
                raise ValueError(f"{step.describe()}: source was not opened")
            step.execute_from(root, source_fd)
            os.close(source_fd)
        else:
            step.execute(root)


def prepare(steps: Sequence[Step]) -> Tuple[Run, ...]:
    """Turn steps that need no host source into what a fork does with the fewest new objects."""
    runs: List[Run] = []
    calls: List[Prepared] = []
    for step in steps:
        if isinstance(step, (Bind, Device)):
            raise TypeError(f"{step.describe()}: a host source cannot be reached from inside")
        if isinstance(step, (Mount, Cover, Remount, Directory)):
            calls += step.prepared("")
            continue
        if calls:
            runs.append(tuple(calls))
            calls = []
        runs.append(step.execute)
    if calls:
        runs.append(tuple(calls))
    return tuple(runs)


def walk(runs: Sequence[Run]) -> None:
    """Do what `prepare` prepared."""
    for run in runs:
        if isinstance(run, tuple):
            do_all(run)
        else:
            run("")

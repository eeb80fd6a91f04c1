"""Walks a plan: opens what must be opened first, then executes step by step.

Called by `boot` (stage A) and `inside` (stage C). Decides nothing; the first failing step ends it,
and its SyscallError names the step.
"""

from __future__ import annotations

import os
from typing import List, Optional, Sequence, Tuple

from cellwall.jail.steps import Bind, Device, Step


def open_sources(steps: Sequence[Step]) -> List[Tuple[Step, Optional[int]]]:
    """Open every host source while the host's tree is still in view."""
    opened: List[Tuple[Step, Optional[int]]] = []
    for step in steps:
        opened.append((step, step.prepare() if isinstance(step, (Bind, Device)) else None))
    return opened


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


def walk(steps: Sequence[Step]) -> None:
    """Execute steps that need no host source, inside."""
    for step in steps:
        if isinstance(step, (Bind, Device)):
            raise TypeError(f"{step.describe()}: a host source cannot be reached from inside")
        step.execute("")

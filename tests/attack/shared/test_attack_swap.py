"""I13: memory that grows slowly. What does not fit is never moved into the host's swap.

Reclaim has time to swap when a program grows slowly, and a sandbox that swaps has more memory than
its limit and takes the host's disk besides. The control: the same program, after the host has
allowed swap in the cgroup of that one sandbox. Only the last test needs a host with swap.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from cellwall import AsyncSandbox, Execution, Verdict
from conftest import Require
from kit.arena import Arena, descendants
from kit.jail.control_groups import control_groups

pytestmark = [pytest.mark.attack, pytest.mark.root]

_SLOWLY = """
import os, time
held = []
while len(held) < {mib}:
    held.append(os.urandom(1 << 20))
    print(len(held), flush=True)
    time.sleep(0.002)
print("REACHED", flush=True)
"""
_SWAP_OFF = {
    "memory.swap.max": "0",
    "memory.memsw.limit_in_bytes": str(64 << 20),
    "memory.swappiness": "0",
}
_SWAP_ON = {
    "memory.swap.max": "max",
    "memory.memsw.limit_in_bytes": str(1 << 30),
    "memory.swappiness": "100",
}


def _memory_groups() -> list[Path]:
    groups = [Path(path) for path in control_groups(os.getpid())]
    limits = ("memory.max", "memory.limit_in_bytes")
    return [group for group in groups if any((group / name).exists() for name in limits)]


@pytest.fixture(autouse=True)
def _has_memory_groups(arena: Arena, require: Require) -> None:
    require("memory cgroups", bool(_memory_groups()), "run `cellwall doctor`")


def _memory_group(sandbox: AsyncSandbox) -> Path:
    """The live sandbox's memory cgroup, as the kernel lists it."""
    pid = str(sandbox.live.runtime_sandbox.pid)  # type: ignore[attr-defined]
    own = [g for g in _memory_groups() if pid in (g / "cgroup.procs").read_text().split()]
    (found,) = own
    return found


def _set(group: Path, values: dict[str, str]) -> None:
    for name, value in values.items():
        if (group / name).exists():
            (group / name).write_text(value)


def _swapped_kib(sandbox: AsyncSandbox) -> int:
    init = sandbox.live.runtime_sandbox.pid  # type: ignore[attr-defined]
    found = 0
    for pid in (init, *descendants(init)):
        with contextlib.suppress(OSError):
            # One that is just dying has no memory any more, and no such line.
            _, _, rest = Path(f"/proc/{pid}/status").read_text().partition("VmSwap:")
            found += int(rest.split()[0]) if rest else 0
    return found


async def _grow_slowly(
    arena: Arena, mib: int, swap: dict[str, str] | None = None
) -> tuple[Execution, int]:
    """Grow in a sandbox of 64 MiB; its end, and the most that was ever swapped, in KiB."""
    async with arena.sandbox(limits={"memory_mb": 64}) as sandbox:
        _set(_memory_group(sandbox), swap or {})
        most = 0

        def look(_text: str) -> None:
            nonlocal most
            most = max(most, _swapped_kib(sandbox))

        ended = await sandbox.run(_SLOWLY.format(mib=mib), timeout=20, on_stdout=look)
        return ended, most


@pytest.mark.parametrize("case", ["I13"])
def test_memory_that_grows_slowly_is_ended_by_the_memory_limit(arena: Arena, case: str) -> None:
    with arena.leaving_nothing():
        ended, swapped_kib = arena.do(_grow_slowly(arena, 160))
    assert (ended.verdict, "REACHED" in ended.stdout) == (Verdict.MEMORY, False), ended
    assert 32 < len(ended.stdout.split()) < 64
    assert swapped_kib == 0
    reached, _ = arena.do(_grow_slowly(arena, 32))
    assert (reached.verdict, "REACHED" in reached.stdout) == (Verdict.OK, True), reached


@pytest.mark.parametrize("case", ["I13"])
def test_swap_of_the_host_is_off_for_a_sandbox(arena: Arena, case: str) -> None:
    """The settings, as the kernel holds them: they have to be right before swap is turned on."""

    async def settings() -> dict[str, str]:
        async with arena.sandbox(limits={"memory_mb": 64}) as sandbox:
            group = _memory_group(sandbox)
            return {
                path.name: path.read_text().strip()
                for path in group.iterdir()
                if path.name in _SWAP_OFF
            }

    found = arena.do(settings())
    assert found
    assert found == {name: _SWAP_OFF[name] for name in found}


@pytest.mark.parametrize("case", ["I13"])
def test_swap_is_not_used_where_there_is_some(arena: Arena, case: str) -> None:
    swaps = Path("/proc/swaps").read_text().splitlines()[1:]
    room_kib = sum(int(line.split()[2]) - int(line.split()[3]) for line in swaps)
    if room_kib <= 160 << 10:
        # Not a capability of ours, and not CI's to make: the limit itself is tested above.
        pytest.skip("no swap of 160 MiB is free: fallocate, mkswap, swapon")
    ended, swapped_kib = arena.do(_grow_slowly(arena, 160))
    assert (ended.verdict, swapped_kib) == (Verdict.MEMORY, 0), ended
    # The control: the same program where the guard is taken away goes on, into swap.
    reached, swapped_kib = arena.do(_grow_slowly(arena, 160, _SWAP_ON))
    assert (reached.verdict, swapped_kib > 0) == (Verdict.OK, True), reached

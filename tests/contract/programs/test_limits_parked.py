"""Limits that callers ask for again have parked sandboxes, which hold them like any other."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from cellwall.apps.engines import wait_parked
from cellwall.engine.engine import Engine
from cellwall.engine.policy.settings import EngineSettings
from cellwall.model.outcome import Verdict
from conftest import Require

_MEMORY_MB = 96
_SEEN = """
import os, resource, sys
runtime, memory_kib = sys.argv[1:]
if runtime == "jail":  # gVisor shows the machine's
    assert open("/proc/meminfo").readline().split()[1] == memory_kib
print(os.statvfs("/home/user").f_blocks * os.statvfs("/home/user").f_frsize >> 20)
print(resource.getrlimit(resource.RLIMIT_FSIZE)[0] >> 20)
"""
_GREEDY = f"kept = bytearray({2 * _MEMORY_MB} << 20)"


@pytest.mark.parametrize("runtime", ["jail", "gvisor"])
def test_fifth_program_with_the_same_limits_has_a_parked_sandbox_that_holds_them(
    runtime: str, require: Require
) -> None:
    if runtime == "gvisor":
        require("gvisor", shutil.which("runsc") is not None, "run: apt-get install runsc")
    limits = {"memory_mb": _MEMORY_MB, "disk_mb": 10, "file_mb": 5, "processes": 20}

    async def scenario() -> None:
        engine = Engine(settings=EngineSettings(pool_min=1, pool_max=2))
        try:
            seen = []
            await engine.run("pass", runtime=runtime)
            await wait_parked(engine)
            for parked in (*[0] * 4, 1, 2):
                args = [runtime, str(_MEMORY_MB << 10)]
                ran = await engine.run(_SEEN, args=args, limits=limits, runtime=runtime)
                seen.append(ran.stdout)
                assert engine.pool.statistics().claims_parked == parked
                await wait_parked(engine)
            assert seen == ["10\n5\n"] * 6
            greedy = await engine.run(_GREEDY, limits=limits, runtime=runtime)
            assert greedy.verdict is Verdict.MEMORY
            assert engine.pool.statistics().claims_parked == 3
        finally:
            await engine.aclose()

    asyncio.run(scenario())

"""The `process` runtime keeps the contract; it isolates nothing, and says so."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cellwall.engine.engine import Engine
from cellwall.engine.policy.settings import EngineSettings
from cellwall.model.outcome import Verdict
from cellwall.runtimes.process.sandbox import ProcessSandbox
from cellwall.testing.bare import BareTemplates
from cellwall.testing.contract import RuntimeContract


class TestProcessRuntime(RuntimeContract):
    runtime_name = "process"
    isolation = "process"
    deviations: ClassVar[dict[str, str]] = {
        "test_each_sandbox_has_a_boot_id_of_its_own": "the host's is seen: it isolates nothing",
    }


@pytest.mark.parametrize(
    ("breach", "verdict"),
    [
        ({"oom_kills": 1}, Verdict.MEMORY),
        ({"processes_refused": 1}, Verdict.PROCESSES),
        ({"disk_full": True}, Verdict.DISK),
        ({}, Verdict.SANDBOX_ERROR),
    ],
    ids=["memory", "processes", "disk", "control"],
)
def test_cell_begun_under_a_kill_names_the_limit(
    tmp_path: Path, breach: dict[str, Any], verdict: Verdict
) -> None:
    async def work() -> None:
        engine = Engine(
            tmp_path / "state",
            EngineSettings(allow_process=True),
            templates=BareTemplates(tmp_path / "env"),
        )
        try:
            sandbox = await engine.create_sandbox(runtime="process", isolation="process")
            assert (await sandbox.run("a = 1")).verdict is Verdict.OK
            kernel = sandbox.live.runtime_sandbox
            assert isinstance(kernel, ProcessSandbox)
            kernel._breach(**breach)
            assert (await sandbox.run("import time; time.sleep(60)")).verdict is verdict
        finally:
            await engine.aclose()

    asyncio.run(work())

"""docs/add-a-runtime.md: one adapter and one line in the registry make a runtime."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cellwall.engine.engine import Engine
from cellwall.engine.policy.settings import EngineSettings
from cellwall.runtimes import registry
from cellwall.testing.bare import BareTemplates
from kit.places import ROOT

SNIPPETS = ROOT / "docs/snippets/runtimes"


def test_toy_runtime_serves_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SNIPPETS))
    monkeypatch.setitem(registry.FACTORIES, "toy", "toy_runtime:ToyRuntime")

    async def main() -> None:
        settings = EngineSettings(pool_min=0, pool_max=0)
        templates = BareTemplates(tmp_path / "env")
        engine = Engine(tmp_path / "state", settings, templates=templates)
        try:
            code = "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"
            ran = await engine.run(code, runtime="toy", isolation="process")
            assert ran.stdout == "19\n"
            assert ran.outcome.isolation.runtime == "toy"
            assert ran.outcome.isolation.level.label == "process"
        finally:
            await engine.aclose()

    asyncio.run(main())

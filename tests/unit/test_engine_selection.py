"""Never a weaker runtime than asked for; `process` only on the operator's word."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cellwall.engine.selection import Runtimes, parse_level
from cellwall.engine.settings import EngineSettings
from cellwall.model.errors import HostUnsupported, UsageError
from cellwall.runtimes.base import Runtime


def choose(tmp_path: Path, isolation: str, name: str | None, *, allowed: bool) -> Runtime:
    async def main() -> Runtime:
        runtimes = Runtimes(tmp_path, EngineSettings(allow_process=allowed))
        try:
            return await runtimes.choose(isolation, name)
        finally:
            await runtimes.aclose()

    return asyncio.run(main())


def test_level_no_runtime_offers_is_refused_not_lowered(tmp_path: Path) -> None:
    with pytest.raises(HostUnsupported, match="vm"):
        choose(tmp_path, "vm", None, allowed=True)


def test_process_is_refused_unless_switched_on(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="CELLWALL_ALLOW_PROCESS"):
        choose(tmp_path, "process", "process", allowed=False)


def test_process_serves_when_switched_on_and_named(tmp_path: Path) -> None:
    assert choose(tmp_path, "process", "process", allowed=True).name == "process"


def test_named_runtime_below_the_level_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="namespace"):
        choose(tmp_path, "namespace", "process", allowed=True)


def test_unknown_level_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="namespace"):
        parse_level("container")


def test_settings_come_from_the_environment() -> None:
    assert EngineSettings.from_environment({}).allow_process is False
    assert EngineSettings.from_environment({"CELLWALL_ALLOW_PROCESS": "1"}).allow_process is True
    assert EngineSettings.from_environment({"CELLWALL_POOL_SIZE": "0"}).pool_max == 0
    with pytest.raises(UsageError):
        EngineSettings.from_environment({"CELLWALL_POOL_SIZE": "-1"})

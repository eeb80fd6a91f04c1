"""Never a weaker runtime than asked for; `process` only on the operator's word."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from cellwall.engine import selection
from cellwall.engine.selection import Runtimes
from cellwall.engine.settings import EngineSettings
from cellwall.model.errors import HostUnsupported, UsageError
from cellwall.model.outcome import IsolationLevel
from cellwall.runtimes import registry
from cellwall.runtimes.base import Finding, Runtime


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
        IsolationLevel.called("container")


def test_settings_come_from_the_environment() -> None:
    assert EngineSettings.from_environment({}).allow_process is False
    assert EngineSettings.from_environment({"CELLWALL_ALLOW_PROCESS": "1"}).allow_process is True
    assert EngineSettings.from_environment({"CELLWALL_POOL_SIZE": "0"}).pool_max == 0
    with pytest.raises(UsageError):
        EngineSettings.from_environment({"CELLWALL_POOL_SIZE": "-1"})


class Wavering:
    """A runtime that is there or not, as told."""

    name = "wavering"
    level = IsolationLevel.NAMESPACE
    faults: ClassVar[list[Finding]] = []
    probes = 0

    def __init__(self, state_dir: Path) -> None:
        type(self).probes = 0

    async def probe(self) -> list[Finding]:
        type(self).probes += 1
        return list(self.faults)

    async def aclose(self) -> None:
        return


@pytest.fixture
def wavering(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Wavering]]:
    known = {name: registry.FACTORIES.pop(name) for name in list(registry.FACTORIES)}
    monkeypatch.setitem(registry.FACTORIES, "wavering", f"{__name__}:Wavering")
    monkeypatch.setattr(Wavering, "faults", [])
    yield Wavering
    registry.FACTORIES.clear()
    registry.FACTORIES.update(known)


def test_runtime_that_broke_serves_nobody_until_asked_again(
    tmp_path: Path, wavering: type[Wavering]
) -> None:
    async def main() -> None:
        runtimes = Runtimes(tmp_path, EngineSettings())
        chosen = await runtimes.choose("namespace", None)
        assert await runtimes.choose("namespace", None) is chosen
        assert wavering.probes == 1
        wavering.faults = [Finding("ground", "FAIL", "gone", "bring it back")]
        runtimes.take_out(chosen)
        for _ in range(2):
            with pytest.raises(HostUnsupported, match="bring it back"):
                await runtimes.choose("namespace", None)
        assert (wavering.probes, runtimes.taken_out) == (2, 1)

    asyncio.run(main())


def test_runtime_that_came_back_is_found_again(
    tmp_path: Path, wavering: type[Wavering], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_FAULTS_KEPT_S", 0.0)
    wavering.faults = [Finding("ground", "FAIL", "gone", "bring it back")]

    async def main() -> None:
        runtimes = Runtimes(tmp_path, EngineSettings())
        with pytest.raises(HostUnsupported):
            await runtimes.choose("namespace", "wavering")
        wavering.faults = []
        assert (await runtimes.choose("namespace", "wavering")).name == "wavering"

    asyncio.run(main())


def test_operator_decides_which_runtimes_serve(tmp_path: Path) -> None:
    async def main() -> None:
        runtimes = Runtimes(tmp_path, EngineSettings(runtimes=("docker+runsc",)))
        with pytest.raises(UsageError, match="not allowed here"):
            await runtimes.choose("namespace", "jail")
        assert runtimes.allowed() == ["docker+runsc"]

    asyncio.run(main())
    for text in ("jail,podmann", ","):
        with pytest.raises(UsageError, match="runtimes"):
            EngineSettings.from_environment({"CELLWALL_RUNTIMES": text})


def test_operators_least_level_lifts_every_request(tmp_path: Path) -> None:
    async def main() -> None:
        settings = EngineSettings(least_isolation="vm", runtimes=("jail", "docker"))
        runtimes = Runtimes(tmp_path, settings)
        with pytest.raises(HostUnsupported, match="isolation 'vm'"):
            await runtimes.choose("namespace", None)
        with pytest.raises(UsageError, match="is the least here"):
            await runtimes.choose("namespace", "jail")

    asyncio.run(main())
    with pytest.raises(UsageError, match="not a level"):
        EngineSettings.from_environment({"CELLWALL_LEAST_ISOLATION": "strong"})

"""Never a weaker runtime than asked for; `process` only on the operator's word."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from cellwall.engine.policy import selection
from cellwall.engine.policy.levels import Floor, IsolationRequest, Trust, demand
from cellwall.engine.policy.selection import Runtimes
from cellwall.engine.policy.settings import EngineSettings
from cellwall.model.errors import HostUnsupported, UsageError
from cellwall.model.outcome import IsolationLevel
from cellwall.runtimes import registry
from cellwall.runtimes.base import Finding, Runtime


def choose(tmp_path: Path, isolation: str, name: str | None, *, allowed: bool) -> Runtime:
    async def main() -> Runtime:
        runtimes = Runtimes(tmp_path, EngineSettings(allow_process=allowed))
        try:
            return await runtimes.choose(IsolationRequest(isolation, name))
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


@pytest.mark.parametrize("hibernate_s", [0.5, 604_801.0, float("nan")])
def test_operator_chooses_what_a_caller_may(hibernate_s: float) -> None:
    """A sandbox that is kept has the choice as its own, and the next server checks that."""
    assert EngineSettings(hibernate_s=600.0).hibernate_s == 600.0
    with pytest.raises(UsageError, match="settings: hibernate_s"):
        EngineSettings(hibernate_s=hibernate_s)


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
        chosen = await runtimes.choose(IsolationRequest("namespace", None))
        assert await runtimes.choose(IsolationRequest("namespace", None)) is chosen
        assert wavering.probes == 1
        wavering.faults = [Finding("ground", "FAIL", "gone", "bring it back")]
        runtimes.take_out(chosen)
        for _ in range(2):
            with pytest.raises(HostUnsupported, match="bring it back"):
                await runtimes.choose(IsolationRequest("namespace", None))
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
            await runtimes.choose(IsolationRequest("namespace", "wavering"))
        wavering.faults = []
        assert (await runtimes.choose(IsolationRequest("namespace", "wavering"))).name == "wavering"

    asyncio.run(main())


def test_operator_decides_which_runtimes_serve(tmp_path: Path) -> None:
    async def main() -> None:
        runtimes = Runtimes(tmp_path, EngineSettings(runtimes=("docker+runsc",)))
        with pytest.raises(UsageError, match="not allowed here"):
            await runtimes.choose(IsolationRequest("namespace", "jail"))
        assert runtimes.allowed() == ["docker+runsc"]

    asyncio.run(main())
    for text in ("jail,podmann", ","):
        with pytest.raises(UsageError, match="runtimes"):
            EngineSettings.from_environment({"CELLWALL_RUNTIMES": text})


def test_operators_floor_refuses_what_names_less_and_is_the_default(tmp_path: Path) -> None:
    async def main() -> None:
        settings = EngineSettings(least_isolation="vm", runtimes=("jail", "docker"))
        runtimes = Runtimes(tmp_path, settings)
        with pytest.raises(HostUnsupported, match="isolation 'vm'"):
            await runtimes.choose(IsolationRequest())
        with pytest.raises(UsageError, match="'namespace' is below 'vm', the least here"):
            await runtimes.choose(IsolationRequest("namespace"))
        with pytest.raises(UsageError, match="'vm' is the least here"):
            await runtimes.choose(IsolationRequest(None, "jail"))

    asyncio.run(main())
    for name in ("CELLWALL_LEAST_ISOLATION", "CELLWALL_DEFAULT_ISOLATION"):
        with pytest.raises(UsageError, match="not a level"):
            EngineSettings.from_environment({name: "strong"})


SMALL = Floor("kernel", ("gvisor", "docker+runsc"), "for tier 'small'")


@pytest.mark.parametrize(
    ("asked", "level"),
    [
        (IsolationRequest(), "namespace"),
        (IsolationRequest("process"), "process"),
        (IsolationRequest("vm"), "vm"),
        (IsolationRequest(floor=SMALL), "kernel"),
        (IsolationRequest("vm", floor=SMALL), "vm"),
        (IsolationRequest(None, "gvisor", floor=SMALL), "kernel"),
        (IsolationRequest(trust="untrusted"), "namespace"),
        (IsolationRequest(trust="trusted"), "process"),
    ],
)
def test_what_is_named_is_met_and_what_is_not_takes_default_and_floor(
    asked: IsolationRequest, level: str
) -> None:
    assert demand(asked, EngineSettings()).level.label == level


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (IsolationRequest("namespace", floor=SMALL), "below 'kernel', the least for tier 'small'"),
        (
            IsolationRequest(trust="trusted", floor=SMALL),
            "trust 'trusted' means isolation 'process' is below",
        ),
        (IsolationRequest(None, "jail", floor=SMALL), "'jail' is not allowed for tier 'small'"),
        (IsolationRequest("kernel", trust="semi"), "trust: .* isolation is given as well"),
        (IsolationRequest(None, "jail", "semi"), "trust: .* runtime is given as well"),
        (IsolationRequest(trust="some"), "'some' is not known"),
    ],
)
def test_what_contradicts_is_refused_with_its_reason(asked: IsolationRequest, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        demand(asked, EngineSettings())
    assert caught.value.remedy


def test_tier_has_no_runtime_that_the_operator_does_not() -> None:
    settings = EngineSettings(runtimes=("jail", "gvisor"))
    floor = Floor(runtimes=("process", "gvisor", "docker"))
    assert demand(IsolationRequest(floor=floor), settings).runtimes == ("gvisor",)


def test_trust_means_what_the_operator_says() -> None:
    told = {"CELLWALL_TRUST": "untrusted=kernel, trusted=namespace"}
    settings = EngineSettings.from_environment(told)
    levels = {
        word: demand(IsolationRequest(trust=word), settings).level.label for word in settings.trust
    }
    assert levels == {"untrusted": "kernel", "semi": "namespace", "trusted": "namespace"}
    told["CELLWALL_TRUST"] += ":open"
    assert EngineSettings.from_environment(told).trust["trusted"] == Trust("namespace", "open")
    with pytest.raises(UsageError, match="network 'wide' is not known"):
        Trust("kernel", "wide")
    for text in ("someone=kernel", "untrusted=strong", "untrusted", "semi=kernel:wide"):
        with pytest.raises(UsageError):
            EngineSettings.from_environment({"CELLWALL_TRUST": text})

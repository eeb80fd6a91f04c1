"""Inspect's own conformance checks for sandbox providers, run on ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator

import pytest
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.events import SandboxEnvironmentProxy, SandboxTimeoutError

from cellwall.integrations.inspect_ai import CellwallSandboxConfig, CellwallSandboxEnvironment

Check = Callable[[CellwallSandboxEnvironment], Coroutine[None, None, None]]

_DEVIATIONS = {
    "test_exec_as_user": "nobody becomes root inside, so nobody can add users",
}

CHECKS = [
    pytest.param(
        getattr(self_check, name),
        id=name,
        marks=[pytest.mark.xfail(reason=_DEVIATIONS[name])] if name in _DEVIATIONS else [],
    )
    for name in self_check.__all__
]


async def checked(check: Check) -> None:
    config = CellwallSandboxConfig(limits={"memory_mb": 1024})
    made = await CellwallSandboxEnvironment.sample_init("checks", config, {})
    try:
        await check(made["default"].as_type(CellwallSandboxEnvironment))
    finally:
        await CellwallSandboxEnvironment.sample_cleanup("checks", config, made, False)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop, and so one engine, for all of them."""
    with asyncio.Runner() as made:
        yield made


@pytest.mark.parametrize("check", CHECKS)
def test_provider_passes_the_check(check: Check, runner: asyncio.Runner) -> None:
    runner.run(checked(check))


async def told_before_the_end(environment: CellwallSandboxEnvironment) -> None:
    proxy = SandboxEnvironmentProxy(environment)  # as Inspect's tools have it
    script = "echo part; echo trouble >&2; sleep 30"
    with pytest.raises(SandboxTimeoutError) as late:
        await proxy.exec(["bash", "-c", script], timeout=1)
    assert late.value.truncated_output == "part\ntrouble\n"
    with pytest.raises(SandboxTimeoutError) as silent:
        await proxy.exec(["sleep", "30"], timeout=1)
    assert silent.value.truncated_output is None


async def ends_have_statuses(environment: CellwallSandboxEnvironment) -> None:
    for script, status in (("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)):
        assert (await environment.exec(["bash", "-c", script])).returncode == status


@pytest.mark.parametrize("check", [told_before_the_end, ends_have_statuses])
def test_provider_does_more_than_the_checks_ask(check: Check, runner: asyncio.Runner) -> None:
    runner.run(checked(check))

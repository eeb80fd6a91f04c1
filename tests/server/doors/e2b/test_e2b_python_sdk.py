"""The unmodified Python SDK against the control plane of the E2B door."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from typing import Any

import pytest
from e2b import (
    AsyncSandbox,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxLifecycle,
    SandboxNotFoundException,
    SandboxQuery,
    SandboxState,
    Template,
)
from e2b.exceptions import AuthenticationException, BuildException, RateLimitException

from kit.server.e2b_doors import E2BServer
from kit.servers import ADMIN, BOB
from kit.waiting import wait_until

ALL = "0.0.0.0/0"


@pytest.fixture
def options(e2b: E2BServer) -> dict[str, Any]:
    return e2b.sdk()


@pytest.fixture
def sandbox(options: dict[str, Any]) -> Sandbox:
    return Sandbox.create(timeout=120, metadata={"a x": "b&c=d"}, **options)


def seconds_left(sandbox: Sandbox) -> float:
    return (sandbox.get_info().end_at - datetime.datetime.now(datetime.UTC)).total_seconds()


def test_a_sandbox_is_created_told_of_and_killed(sandbox: Sandbox) -> None:
    found = sandbox.get_info()
    assert found.sandbox_id == sandbox.sandbox_id
    assert found.metadata == {"a x": "b&c=d"}
    assert found.state == SandboxState.RUNNING
    assert found.template_id == "base"
    assert sandbox.is_running()
    assert sandbox.kill()
    assert not sandbox.is_running()
    assert not sandbox.kill()
    with pytest.raises(SandboxNotFoundException):
        sandbox.get_info()


def test_a_list_is_filtered_by_metadata_and_state(
    sandbox: Sandbox, options: dict[str, Any]
) -> None:
    def ids(**query: Any) -> list[str]:
        pages, found = Sandbox.list(query=SandboxQuery(**query), limit=1, **options), []
        while pages.has_next:
            found += [each.sandbox_id for each in pages.next_items()]
        return found

    assert sandbox.sandbox_id in ids(metadata={"a x": "b&c=d"}, state=[SandboxState.RUNNING])
    assert sandbox.sandbox_id not in ids(metadata={"a x": "b"})
    assert sandbox.sandbox_id not in ids(state=[SandboxState.PAUSED])
    sandbox.pause()
    assert sandbox.sandbox_id in ids(state=[SandboxState.PAUSED], metadata={"a x": "b&c=d"})


def test_a_timeout_is_set_and_a_connection_prolongs(
    sandbox: Sandbox, options: dict[str, Any]
) -> None:
    sandbox.set_timeout(60)
    assert 50 < seconds_left(sandbox) <= 60
    other = Sandbox.connect(sandbox.sandbox_id, timeout=200, **options)
    assert other.is_running()
    assert 190 < seconds_left(sandbox) <= 200


def test_a_pause_is_told_once_and_ends_with_a_connection(
    sandbox: Sandbox, options: dict[str, Any]
) -> None:
    assert sandbox.pause()
    assert not sandbox.pause()
    assert not sandbox.is_running()
    assert Sandbox.connect(sandbox.sandbox_id, **options).is_running()


def test_a_timeout_pauses_where_the_lifecycle_says_so(options: dict[str, Any]) -> None:
    sandbox = Sandbox.create(timeout=1, lifecycle={"on_timeout": "pause"}, **options)
    wait_until(lambda: sandbox.get_info().state == SandboxState.PAUSED, "it is paused")
    assert Sandbox.connect(sandbox.sandbox_id, **options).is_running()


def test_a_pause_can_keep_the_files_alone(sandbox: Sandbox, options: dict[str, Any]) -> None:
    """Its processes are gone then, which stay in a pause that keeps the memory."""
    sandbox.files.write("/home/user/note", "kept")
    command = sandbox.commands.run("sleep 1000", background=True)
    sandbox.pause()
    Sandbox.connect(sandbox.sandbox_id, **options)
    assert [each.pid for each in sandbox.commands.list()] == [command.pid]  # the control
    assert sandbox.pause(mode="filesystem")
    assert not sandbox.pause(keep_memory=False)
    assert not sandbox.is_running()
    assert sandbox.get_info().state == SandboxState.PAUSED
    found = sandbox.connect(timeout=200)
    assert found.sandbox_id == sandbox.sandbox_id
    assert found.files.read("/home/user/note") == "kept"
    assert found.commands.list() == []
    assert "sleep" not in found.commands.run("ps -eo args").stdout
    assert 190 < seconds_left(sandbox) <= 200


def test_a_timeout_of_0_ends_a_sandbox_or_pauses_it(options: dict[str, Any]) -> None:
    ends = Sandbox.create(timeout=60, **options)
    pauses = Sandbox.create(timeout=60, lifecycle={"on_timeout": "pause"}, **options)
    command = pauses.commands.run("sleep 1000", background=True)
    for each in (ends, pauses):
        each.set_timeout(0)
    with pytest.raises(SandboxNotFoundException):
        ends.get_info()
    wait_until(lambda: pauses.get_info().state == SandboxState.PAUSED, "it is paused")
    found = Sandbox.connect(pauses.sandbox_id, **options)
    assert [each.pid for each in found.commands.list()] == [command.pid]


def test_a_timeout_pauses_with_the_files_alone_if_the_lifecycle_says_so(
    options: dict[str, Any],
) -> None:
    lifecycle: SandboxLifecycle = {"on_timeout": {"action": "pause", "mode": "filesystem"}}
    sandbox = Sandbox.create(timeout=3, lifecycle=lifecycle, **options)
    sandbox.files.write("/home/user/note", "kept")
    sandbox.commands.run("sleep 1000", background=True)
    for _ in range(2):  # the lifecycle stays
        wait_until(lambda: sandbox.get_info().state == SandboxState.PAUSED, "it is paused")
        found = Sandbox.connect(sandbox.sandbox_id, timeout=3, **options)
        assert found.commands.list() == []
        assert found.files.read("/home/user/note") == "kept"
    assert sandbox.get_info().metadata == {}


def test_a_paused_sandbox_is_booted_anew_if_a_connection_says_so(
    sandbox: Sandbox, options: dict[str, Any]
) -> None:
    sandbox.files.write("/home/user/note", "kept")
    sandbox.commands.run("sleep 1000", background=True)
    Sandbox.connect(sandbox.sandbox_id, on_resume="reboot", **options)
    assert len(sandbox.commands.list()) == 1  # it runs: there is nothing to resume
    sandbox.pause()
    found = Sandbox.connect(sandbox.sandbox_id, on_resume="reboot", **options)
    assert found.files.read("/home/user/note") == "kept"
    assert found.commands.list() == []


def test_metrics_are_numbers(sandbox: Sandbox) -> None:
    [found] = sandbox.get_metrics()
    assert found.mem_total > found.mem_used > 0
    past = datetime.datetime.now() - datetime.timedelta(hours=1)
    assert sandbox.get_metrics(start=past - datetime.timedelta(hours=1), end=past) == []


def test_the_network_is_replaced(sandbox: Sandbox) -> None:
    sandbox.update_network({"allow_internet_access": False})
    assert sandbox.get_info().allow_internet_access is False
    sandbox.update_network({"allow_out": ["a.example"], "deny_out": [ALL]})
    assert sandbox.get_info().network == {
        "allow_out": ["a.example"],
        "deny_out": [ALL],
        "allow_public_traffic": False,
    }
    sandbox.update_network({"allow_out": ["8.8.8.8"], "deny_out": ["8.8.8.8/31"]})
    assert sandbox.get_info().network == {
        "deny_out": ["8.8.8.9/32", "::/0"],
        "allow_public_traffic": False,
    }
    sandbox.update_network({})
    assert sandbox.get_info().allow_internet_access is True


def test_forks_and_snapshots_are_sandboxes(sandbox: Sandbox, options: dict[str, Any]) -> None:
    [fork] = sandbox.fork()
    assert isinstance(fork, Sandbox)
    assert fork.sandbox_id != sandbox.sandbox_id
    name = f"sdk-{time.time_ns() % 10**9}"
    snapshot = sandbox.create_snapshot(name=name)
    assert snapshot.names == [name]
    mine = Sandbox.list_snapshots(sandbox.sandbox_id, **options).next_items()
    assert [each.snapshot_id for each in mine] == [snapshot.snapshot_id]
    assert Sandbox.create(snapshot.snapshot_id, **options).is_running()
    assert Sandbox.delete_snapshot(snapshot.snapshot_id, **options)
    assert not Sandbox.delete_snapshot(snapshot.snapshot_id, **options)


def test_templates_are_asked_for_by_name(options: dict[str, Any]) -> None:
    assert Template.exists("base", **options)
    assert not Template.exists("none-such", **options)


REFUSALS: list[tuple[Callable[[dict[str, Any]], object], type[Exception], str]] = [
    (lambda o: Sandbox.create("none-such", **o), SandboxException, "404: template 'none-such'"),
    (
        lambda o: Sandbox.create(network={"allow_public_traffic": True}, **o),
        SandboxException,
        "400: network.allowPublicTraffic",
    ),
    (
        lambda o: Sandbox.create(network={"deny_out": ["a.example"]}, **o),
        SandboxException,
        "400: denyOut",
    ),
    (
        lambda o: Template.build(Template().from_image("x"), "n", **o),
        BuildException,
        "403: key: its scope is run, manage is needed to build templates",
    ),
    (lambda o: Sandbox.connect("a" * 26, **o), SandboxNotFoundException, "not found"),
    (lambda o: Sandbox.create(**{**o, "api_key": "e2b_00"}), AuthenticationException, "key"),
]


@pytest.mark.parametrize(("call", "kind", "message"), REFUSALS)
def test_a_refusal_tells_the_user_why(
    options: dict[str, Any],
    call: Callable[[dict[str, Any]], object],
    kind: type[Exception],
    message: str,
) -> None:
    with pytest.raises(kind) as raised:
        call(options)
    assert message in str(raised.value)
    assert not isinstance(raised.value, RateLimitException)


def test_another_tenants_sandbox_is_not_found(e2b: E2BServer, sandbox: Sandbox) -> None:
    options = e2b.sdk(BOB)
    with pytest.raises(NotFoundException):
        Sandbox.connect(sandbox.sandbox_id, **options)
    assert not Sandbox.kill(sandbox.sandbox_id, **options)
    assert sandbox.is_running()


async def _awaited(options: dict[str, Any]) -> None:
    sandbox = await AsyncSandbox.create(timeout=60, idempotency_key="once-upon-a", **options)
    again = await AsyncSandbox.create(timeout=60, idempotency_key="once-upon-a", **options)
    assert again.sandbox_id == sandbox.sandbox_id
    assert await sandbox.is_running()
    assert await sandbox.kill()


def test_the_asynchronous_client_is_served_as_well(options: dict[str, Any]) -> None:
    import asyncio

    asyncio.run(_awaited(options))


def test_three_variables_are_all_that_an_unmodified_client_needs(
    e2b: E2BServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in e2b.variables().items():
        monkeypatch.setenv(name, value)
    with Sandbox.create() as sandbox:
        assert sandbox.is_running()


def test_sandboxes_are_parked_ahead_but_none_with_a_callers_variables(
    e2b: E2BServer, options: dict[str, Any]
) -> None:
    operator = e2b.server.client(ADMIN)

    def parked() -> int:
        return int(operator.get("/stats").json()["server"]["pool"]["claims_parked"])

    def comes_parked(**more: Any) -> bool:
        before = parked()
        made = Sandbox.create(**more, **options)
        after = parked()
        made.kill()
        return after == before + 1

    wait_until(comes_parked, "a sandbox that was parked")
    assert not any(comes_parked(envs={"KEY": "secret"}) for _ in range(3))

"""Losses: a node of a fleet dies, is cut off or stands still, in every way that a machine can.

Runs in the environment of `suite-ray`, as pid of a fresh network namespace; `test_fleet_losses`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from cellwall.fleet.driver.placing import WINDOW
from cellwall.fleet.driver.sandbox import FleetSandbox
from cellwall.model.errors import NodeLost, NodeUnreachable
from kit.fleet.driving import Driver, check, driver, run_through
from kit.fleet.house import House, Node, born, house

COUNT = int(os.environ.get("CELLWALL_TEST_FLEET_PROGRAMS", "240"))
TOLD_S = 15.0
AT_ONCE = 4


@pytest.fixture(scope="module")
def around() -> Iterator[House]:
    os.environ["CELLWALL_ALLOW_PROCESS"] = "1"
    with house(nodes=3) as made:
        yield made


@pytest.fixture(scope="module")
def all_of_it(around: House) -> Iterator[Driver]:
    with driver(around, at_once=AT_ONCE) as made:
        yield made


@pytest.fixture
def cluster(all_of_it: Driver) -> Driver:
    for node in all_of_it.house.nodes:
        node.revive()
    all_of_it.wait_ready(3)
    return all_of_it


@pytest.fixture
def victim(cluster: Driver) -> Node:
    return cluster.house.nodes[-1]


async def told(sandbox: FleetSandbox) -> None:
    """Ask until its node is back, or lost."""
    deadline = time.monotonic() + TOLD_S
    while time.monotonic() < deadline:
        with contextlib.suppress(NodeUnreachable):
            await sandbox.run("x")


def kill(pid: int, number: signal.Signals) -> None:
    os.kill(pid, number)


def resume(pid: int, began: str) -> None:
    if born(pid) == began:
        kill(pid, signal.SIGCONT)


def test_a_killed_engine_is_told_soon_and_the_rest_goes_on(cluster: Driver, victim: Node) -> None:
    name = cluster.name_of(victim)
    actor = victim.actor()
    found = run_through(cluster, victim, lambda: kill(actor, signal.SIGKILL), count=COUNT)
    check(found, WINDOW * AT_ONCE)
    assert found.lost, "the control: programs were under way there"
    assert max(found.lost.values()) < TOLD_S
    assert found.witnessed > 0
    assert found.alive_when_told == []
    (facts,) = (each for each in cluster.fleet.nodes() if each.name == name)
    assert facts.state == "lost"
    assert "its process has ended" in facts.why
    # `check` allowed what it runs together and what it had not yet told: its ledger says what of it
    # had begun. Some of that leave no file: an interpreter was starting.


def test_with_retry_nothing_is_lost(cluster: Driver, victim: Node) -> None:
    actor = victim.actor()
    found = run_through(
        cluster, victim, lambda: kill(actor, signal.SIGKILL), count=COUNT, on_lost="retry"
    )
    assert found.lost == {}
    assert found.others == []
    assert set(found.answers.values()) == {1}


def test_a_link_that_is_down_for_moments_loses_nothing(cluster: Driver, victim: Node) -> None:
    name = cluster.name_of(victim)

    def blink() -> None:
        victim.cut()
        time.sleep(2)
        victim.heal()

    found = run_through(cluster, victim, blink, count=COUNT)
    check(found, 0)
    assert name == cluster.name_of(victim)


def test_an_engine_that_stands_still_for_moments_loses_nothing(
    cluster: Driver, victim: Node
) -> None:
    actor = victim.actor()

    def blink() -> None:
        kill(actor, signal.SIGSTOP)
        time.sleep(4)
        kill(actor, signal.SIGCONT)

    check(run_through(cluster, victim, blink, count=COUNT), 0)
    assert actor == victim.actor()


def test_an_engine_that_is_stopped_is_ended_by_its_guard(cluster: Driver, victim: Node) -> None:
    actor = victim.actor()
    began = born(actor)
    again = threading.Timer(20, resume, (actor, began))

    def stop() -> None:
        kill(actor, signal.SIGSTOP)
        again.start()

    found = run_through(cluster, victim, stop, count=COUNT)
    again.cancel()
    check(found, WINDOW * AT_ONCE)
    assert found.lost
    assert max(found.lost.values()) < TOLD_S
    assert found.alive_when_told == []
    assert born(actor) != began


@pytest.mark.parametrize("way", ["cut", "mute", "deafen"])
def test_a_node_that_is_cut_off_ends_before_its_loss_is_told(
    cluster: Driver, victim: Node, way: str
) -> None:
    """Also where it is heard and hears nothing, or hears and is not heard."""
    actor = victim.actor()
    began = born(actor)
    try:
        found = run_through(cluster, victim, getattr(victim, way), count=COUNT)
        check(found, WINDOW * AT_ONCE)
        assert found.lost
        assert max(found.lost.values()) < TOLD_S
        assert found.witnessed > 0
        assert found.alive_when_told == []
        assert born(actor) != began, "the node ended, though nothing could tell it to"
    finally:
        (victim.heal if way == "cut" else victim.unmute)()


def test_sessions_go_on_where_their_node_is_and_are_lost_with_it(
    cluster: Driver, victim: Node
) -> None:
    name = cluster.name_of(victim)

    async def work() -> None:
        made = [await cluster.fleet.sandbox() for _ in range(6)]
        for number, each in enumerate(made):
            await each.run(f"x = {number}")
        there = [each for each in made if each.node == name]
        others = [each for each in made if each.node != name]
        assert there, [each.node for each in made]
        assert others, [each.node for each in made]
        actor = victim.actor()
        kill(actor, signal.SIGKILL)
        with pytest.raises(NodeLost):
            await told(there[0])
        for number, each in enumerate(made):
            if each in others:
                assert (await each.run("x")).text == str(number)
            else:
                with pytest.raises(NodeLost):
                    await each.files.read("any")
            await each.close()

    cluster.loop.do(work())


def test_every_process_of_a_node_is_killed(cluster: Driver, victim: Node) -> None:
    """The last one: Ray's own agent there is gone, too."""
    found = run_through(cluster, victim, victim.kill_all, count=COUNT)
    check(found, WINDOW * AT_ONCE)
    assert found.lost
    assert max(found.lost.values()) < TOLD_S
    assert found.alive_when_told == []
    victim.start()
    cluster.wait_ready(3)

"""Whose turn it is: order, bounds and refusals of the fair queue. No event loop, no clock."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Mapping

import pytest

from cellwall.engine.scheduling.admission import NOTHING, Cost, Machine, Overcommit
from cellwall.engine.scheduling.fair_queue import FairQueue, Place, Waiting
from cellwall.engine.scheduling.quotas import Quotas, Tenants
from cellwall.model.errors import CapacityError, QuotaExceeded, UsageError

COST = Cost(512, 100, 256, 1.0)
PLENTY = Cost(1 << 20, 1 << 20, 1 << 20)


class Scene:
    """A queue and the order in which it gave out its places."""

    def __init__(
        self,
        places: int = 1,
        most_queued: int = 1000,
        capacity: Cost = PLENTY,
        tiers: Mapping[str, Quotas] | None = None,
        overcommit: Overcommit | None = None,
    ) -> None:
        self.now = 0.0
        self.machine = Machine(capacity)
        tenants = Tenants(tiers, {name: name for name in tiers or ()}, lambda: self.now)
        self.queue = FairQueue(
            places, most_queued, self.machine, tenants, overcommit, lambda: self.now
        )
        self.order: list[str] = []
        self.places: list[Place] = []

    def turn(self, name: str) -> Callable[[Place], None]:
        def on_turn(place: Place) -> None:
            self.order.append(name)
            self.places.append(place)

        return on_turn

    def ask(self, tenant: str, number: int = 0, cost: Cost = COST) -> Waiting:
        return self.queue.ask(tenant, cost, self.turn(f"{tenant}{number}"))

    def end_first(self) -> None:
        self.places.pop(0).release()

    def end_all(self) -> None:
        while self.places:
            self.end_first()
        assert (self.queue.running, self.queue.queued) == (0, 0)
        assert self.machine.promised == NOTHING


def test_place_is_given_at_once_and_comes_back_once() -> None:
    scene = Scene(places=2)
    waiting = scene.ask("a")
    assert scene.order == ["a0"]
    assert (waiting.position, scene.queue.running) == (0, 1)
    place = scene.places[0]
    scene.end_all()
    place.release()
    assert scene.queue.running == 0
    assert not waiting.cancel()


def test_one_tenant_is_served_in_its_order() -> None:
    scene = Scene()
    for number in range(6):
        scene.ask("a", number)
    scene.end_all()
    assert scene.order == [f"a{number}" for number in range(6)]


def test_tenants_take_turns() -> None:
    scene = Scene()
    for tenant, count in (("a", 4), ("b", 2), ("c", 1)):
        for number in range(count):
            scene.ask(tenant, number)
    scene.end_all()
    assert scene.order == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]


def test_late_tenant_is_next_behind_ten_thousand() -> None:
    scene = Scene(places=4, most_queued=20_000)
    for number in range(10_004):
        scene.ask("many", number)
    assert scene.ask("one").position == 2
    scene.end_first()
    scene.end_first()
    assert "one0" in scene.order


def test_past_use_is_no_debt_and_absence_no_credit() -> None:
    scene = Scene()
    for number in range(100):
        scene.ask("a", number)
        scene.end_first()
    scene.order.clear()
    scene.ask("a")  # holds the place
    for number in range(3):
        scene.ask("b", number)
        scene.ask("a", number + 1)
    scene.end_all()
    assert sorted(scene.order[1:3]) == ["a1", "b0"]
    assert sorted(scene.order[3:5]) == ["a2", "b1"]


def test_one_at_a_time_does_not_starve_the_others() -> None:
    """Who comes back right after its turn has no better place than who waits."""
    scene = Scene()
    for number in range(10):
        scene.ask("many", number)
    for number in range(5):
        scene.ask("quick", number)
        scene.end_first()
        scene.end_first()
    assert scene.order.count("quick0") == 1
    assert len([each for each in scene.order if each.startswith("many")]) >= 5


def test_turns_weigh_what_they_cost() -> None:
    scene = Scene()
    scene.ask("start")
    for number in range(8):
        scene.ask("big", number, Cost(2048, 1, 1, 1))
        scene.ask("small", number)
    for _ in range(10):
        scene.end_first()
    assert 6 <= len([each for each in scene.order if each.startswith("small")]) <= 8


def test_cancelled_items_are_never_called_and_leave_no_trace() -> None:
    scene = Scene()
    scene.ask("a")
    items = [scene.ask("a", number + 1) for number in range(500)]
    for each in items[:450]:
        assert each.cancel()
        assert not each.cancel()
    assert scene.queue.queued == 50
    assert len(scene.queue._lines["a"].items) <= 2 * 50 + 64
    assert items[450].position == 1
    scene.end_all()
    assert scene.order[1] == "a451"


def test_refusal_of_a_quota_says_which_and_where_it_would_have_been() -> None:
    scene = Scene(tiers={"a": Quotas(queued=2)})
    for number in range(3):
        scene.ask("a", number)
    with pytest.raises(QuotaExceeded, match=r"quota queued: 2 of 2.*number 3") as caught:
        scene.ask("a", 3)
    assert (caught.value.quota, caught.value.position) == ("queued", 3)
    assert caught.value.retry_after_s >= 1
    assert "tier" in (caught.value.remedy or "")
    assert scene.queue.queued == 2
    scene.ask("b")
    scene.end_all()
    assert "a3" not in scene.order


def test_full_queue_refuses_the_many_and_takes_a_few_of_everybody() -> None:
    scene = Scene(most_queued=50)
    for number in range(51):
        scene.ask("many", number)
    with pytest.raises(CapacityError, match=r"50 programs wait already, .* number 51") as caught:
        scene.ask("many", 51)
    assert caught.value.position == 51
    assert not isinstance(caught.value, QuotaExceeded)
    for number in range(16):
        scene.ask("few", number)
    with pytest.raises(CapacityError):
        scene.ask("few", 16)


def test_advice_follows_how_long_runs_take() -> None:
    scene = Scene(most_queued=20)
    for number in range(21):
        scene.ask("a", number)
    for _ in range(60):
        scene.now += 2.0
        scene.end_first()
        scene.ask("a", 99)
    with pytest.raises(CapacityError) as caught:
        scene.ask("a", 99)
    assert 30 < caught.value.retry_after_s <= 60


def test_restored_items_are_never_refused() -> None:
    scene = Scene(most_queued=1, capacity=Cost(1024, 100, 0), tiers={"a": Quotas(queued=1)})
    for number in range(40):
        scene.queue.restore("a", COST, scene.turn(f"a{number}"))
    scene.queue.restore("a", Cost(10**6, 10**6, 0, 1), scene.turn("too big by now"))
    scene.end_all()
    assert scene.order == [f"a{number}" for number in range(40)] + ["too big by now"]


# -- quotas and the machine ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "quotas",
    [Quotas(running=2), Quotas(memory_mb=1024), Quotas(cpus=2.0), Quotas(file_mb=512)],
)
def test_tenant_at_its_quota_waits_and_others_do_not(quotas: Quotas) -> None:
    scene = Scene(places=10, tiers={"a": quotas})
    for number in range(4):
        scene.ask("a", number)
        scene.ask("b", number)
    assert scene.order == ["a0", "b0", "a1", "b1", "b2", "b3"]
    scene.end_all()
    assert scene.order[6:] == ["a2", "a3"]


def test_promises_never_exceed_the_machine() -> None:
    scene = Scene(places=100, capacity=Cost(2048, 10_000))
    for number in range(20):
        scene.ask("a", number, Cost(600, 1))
        assert scene.machine.promised.memory_mb <= 2048
    assert len(scene.order) == 3
    while scene.places:
        scene.end_first()
        assert scene.machine.promised.memory_mb <= 2048
    assert len(scene.order) == 20


@pytest.mark.parametrize(
    ("name", "cost"), [("memory_mb", Cost(2049, 1)), ("processes", Cost(1, 51))]
)
def test_what_can_never_fit_is_wrong_use(name: str, cost: Cost) -> None:
    scene = Scene(capacity=Cost(2048, 50))
    for call in (scene.ask, scene.queue.hold):
        with pytest.raises(UsageError, match=f"{name} .* can never fit") as caught:
            call("a", cost=cost) if call == scene.ask else scene.queue.hold("a", cost)
        assert name in (caught.value.remedy or "")
    assert scene.order == []


def test_what_never_fits_a_quota_is_wrong_use() -> None:
    scene = Scene(tiers={"a": Quotas(memory_mb=511)})
    with pytest.raises(UsageError, match="quota memory_mb: 512 can never fit, it is 511"):
        scene.ask("a")


def test_big_one_is_passed_over_and_then_waited_for() -> None:
    """Small ones use what is free, but not for ever."""
    scene = Scene(places=100, capacity=Cost(1024, 10_000))
    scene.ask("small", 0)
    scene.ask("big", 0, Cost(1024, 1))
    for number in range(200):
        scene.ask("small", number + 1)
    turns = 0
    while "big0" not in scene.order:
        scene.end_first()
        turns += 1
    assert 60 < turns < 80


def test_what_sandboxes_hold_is_not_waited_for() -> None:
    scene = Scene(places=100, capacity=Cost(1024, 10_000))
    promise = scene.queue.hold("c", COST)
    scene.ask("small", 0)
    scene.ask("big", 0, Cost(1024, 1))
    for number in range(200):
        scene.ask("small", number + 1)
    for _ in range(201):
        scene.end_first()
    assert "big0" not in scene.order
    assert len(scene.order) == 201
    promise.release()
    assert scene.order[-1] == "big0"


def test_sandboxes_are_promised_at_once_or_refused() -> None:
    scene = Scene(capacity=Cost(1024, 1000))
    first = scene.queue.hold("a", COST)
    scene.queue.hold("b", COST)
    with pytest.raises(CapacityError, match="the server's memory_mb are promised") as caught:
        scene.queue.hold("a", COST)
    assert caught.value.retry_after_s > 0
    first.release()
    first.release()
    scene.queue.hold("a", COST)
    assert scene.machine.promised.memory_mb == 1024


def test_overcommitted_sandboxes_cost_at_least_what_idle_ones_use() -> None:
    scene = Scene(capacity=Cost(1600, 10**6), overcommit=Overcommit(memory=1000, processes=10))
    for _ in range(100):
        scene.queue.hold("a", COST)
    with pytest.raises(CapacityError):
        scene.queue.hold("a", COST)
    assert scene.machine.promised.memory_mb == 1600


def test_parked_sandboxes_are_counted_and_give_way() -> None:
    machine = Machine(Cost(1024, 100), lambda: Cost(256, 10))
    assert machine.lacks(Cost(768, 1)) is None
    machine.take(Cost(512, 1))
    assert machine.lacks(Cost(512, 1)) == "memory_mb"
    machine.give_back(Cost(512, 1))
    assert machine.lacks(Cost(1024, 100)) is None


@pytest.mark.parametrize(
    ("quotas", "name"),
    [(Quotas(sandboxes=2), "sandboxes"), (Quotas(memory_mb=1100), "memory_mb"),
     (Quotas(cpus=2.5), "cpus"), (Quotas(file_mb=600), "file_mb")],
)  # fmt: skip
def test_sandbox_above_a_quota_is_refused_by_name(quotas: Quotas, name: str) -> None:
    scene = Scene(tiers={"a": quotas})
    held = [scene.queue.hold("a", COST) for _ in range(2)]
    with pytest.raises(QuotaExceeded, match=f"quota {name}: ") as caught:
        scene.queue.hold("a", COST)
    assert caught.value.quota == name
    scene.queue.hold("b", COST)
    held[0].release()
    scene.queue.hold("a", COST)


def test_creation_rate_is_a_bucket() -> None:
    scene = Scene(tiers={"a": Quotas(creates_per_min=3)})
    for _ in range(3):
        scene.queue.hold("a", COST).release()
    with pytest.raises(QuotaExceeded, match="creates_per_min") as caught:
        scene.queue.hold("a", COST)
    assert caught.value.retry_after_s == pytest.approx(20)
    scene.now += caught.value.retry_after_s
    scene.queue.hold("a", COST).release()
    with pytest.raises(QuotaExceeded):
        scene.queue.hold("a", COST)


def test_idle_hour_saves_up_no_more_than_a_minute() -> None:
    scene = Scene(tiers={"a": Quotas(creates_per_min=3)})
    scene.queue.hold("a", COST).release()
    scene.now += 3600
    for _ in range(3):
        scene.queue.hold("a", COST).release()
    with pytest.raises(QuotaExceeded, match="creates_per_min"):
        scene.queue.hold("a", COST)


def test_output_above_its_quota_keeps_new_work_out_for_a_while() -> None:
    scene = Scene(tiers={"a": Quotas(output_mb=1)})
    scene.ask("a")
    scene.end_all()
    scene.queue.tenants.spend_output("a", 2 << 20)
    with pytest.raises(QuotaExceeded, match="quota output_mb") as caught:
        scene.ask("a")
    assert caught.value.retry_after_s == pytest.approx(600, rel=0.01)
    scene.ask("b")
    scene.now += caught.value.retry_after_s
    scene.ask("a")


# -- callbacks and waiting ------------------------------------------------------------------------


def test_callback_may_ask_and_release() -> None:
    scene = Scene()
    seen: list[int] = []

    def chained(place: Place) -> None:
        seen.append(len(seen))
        if len(seen) < 1000:
            scene.queue.ask("a", COST, chained)
        place.release()

    scene.queue.ask("a", COST, chained)
    assert len(seen) == 1000
    scene.end_all()


def test_callback_that_raises_costs_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()

    def broken(_place: Place) -> None:
        raise RuntimeError("odd")

    scene.queue.ask("a", COST, broken)
    assert "could not be told" in caplog.text
    scene.ask("a", 1)
    scene.end_all()
    assert scene.order == ["a1"]


def test_waiting_callers_get_places_in_order_and_give_them_back() -> None:
    async def scene() -> list[int]:
        queue = Scene(most_queued=2).queue
        order: list[int] = []
        gate = asyncio.Event()

        async def work(number: int) -> None:
            async with queue.place("a", COST):
                order.append(number)
                await gate.wait()

        tasks = [asyncio.ensure_future(work(n)) for n in range(3)]
        await asyncio.sleep(0)
        assert (queue.running, queue.queued) == (1, 2)
        tasks[1].cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert queue.queued == 1
        gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (queue.running, queue.queued) == (0, 0)
        async with queue.place("a", COST):
            pass
        return order

    assert asyncio.run(scene()) == [0, 2]


def test_caller_cancelled_in_the_moment_of_its_turn_gives_the_place_back() -> None:
    async def scene() -> int:
        queue = Scene().queue
        held: list[Place] = []
        queue.ask("a", COST, held.append)

        async def work() -> None:
            async with queue.place("a", COST):
                raise AssertionError("it was cancelled")

        task = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        held[0].release()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return queue.running

    assert asyncio.run(scene()) == 0


def test_waiting_item_costs_at_most_400_bytes() -> None:
    scene = Scene(most_queued=50_000, tiers={"a": Quotas(queued=50_000)})
    scene.ask("a")

    def on_turn(_place: Place) -> None:
        raise AssertionError("nothing ends here")

    gc.collect()
    tracemalloc.start()
    kept = [scene.queue.ask("a", Cost(512, 100, 256, 1.0), on_turn) for _ in range(20_000)]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept) == scene.queue.queued == 20_000
    assert size / 20_000 <= 400


def test_promise_that_is_expected_holds_nothing_before_it_is_taken() -> None:
    scene = Scene(capacity=Cost(600, 1000, 1000), tiers={"a": Quotas(sandboxes=1)})
    first, second = (scene.queue.expect("a", COST) for _ in range(2))
    assert scene.machine.promised == NOTHING
    first.take_again()
    assert scene.machine.promised == COST
    with pytest.raises(QuotaExceeded):
        second.take_again()
    first.release()
    second.take_again()
    second.release()
    assert scene.machine.promised == NOTHING
    with pytest.raises(UsageError, match="can never fit"):
        scene.queue.expect("a", Cost(601, 1, 1)).take_again()

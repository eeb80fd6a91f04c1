"""A lease ends in time, whatever arrives and whatever does not."""

from __future__ import annotations

from cellwall.fleet.node.lease import Lease


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def lease() -> tuple[Lease, Clock]:
    clock = Clock()
    return Lease(10, clock), clock


def test_it_ends_by_itself() -> None:
    made, clock = lease()
    assert made.ends_at == 110
    clock.now_s = 110
    assert made.left_s <= 0


def test_a_ping_renews_it_from_the_answer_that_its_driver_has() -> None:
    made, clock = lease()
    clock.now_s = 103
    made.answer(1, 0)
    assert made.ends_at == 110, "the driver may not have this answer"
    clock.now_s = 104
    made.answer(2, 1)
    assert made.ends_at == 113


def test_pings_whose_answers_do_not_arrive_renew_nothing() -> None:
    made, clock = lease()
    made.answer(1, 0)
    made.answer(2, 1)
    for number in range(3, 200):
        clock.now_s += 1
        made.answer(number, 1)
    assert made.ends_at == 110


def test_an_old_answer_does_not_shorten_it() -> None:
    made, clock = lease()
    for number in range(1, 6):
        clock.now_s += 1
        made.answer(number, number - 1)
    before = made.ends_at
    made.answer(6, 2)
    assert made.ends_at == before


def test_it_never_outlives_what_the_driver_knows() -> None:
    """The driver hears an answer after it was sent: its own end comes later, always."""
    made, clock = lease()
    heard_at, heard = clock.now_s, 0
    for number in range(1, 50):
        clock.now_s += 1
        made.answer(number, heard)
        if number % 3:  # one answer in three is lost
            heard, heard_at = number, clock.now_s + 0.25
        assert made.ends_at <= heard_at + 10

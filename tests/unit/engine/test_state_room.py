"""Sessions that are written down never exceed their room, whoever writes at the same time."""

from __future__ import annotations

import threading

from cellwall.engine.state.room import Room


def test_shares_stay_below_their_bounds_and_the_rooms() -> None:
    room = Room(100)
    first, second = room.begin(60), room.begin(80)
    assert (first.take(60), first.take(1)) == (True, False)
    assert (second.take(41), second.take(40), room.used_bytes) == (False, True, 100)
    first.give_back()
    first.give_back()
    assert (room.used_bytes, second.take(41), second.take(40)) == (40, False, True)


def test_threads_together_take_no_more_than_there_is() -> None:
    room = Room(10_000)
    taken: list[int] = []

    def work() -> None:
        share = room.begin(10_000)
        taken.append(sum(share.take(1) for _ in range(5_000)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sum(taken) == room.used_bytes == 10_000

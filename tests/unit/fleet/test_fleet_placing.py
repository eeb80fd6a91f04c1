"""Which node gets the next program."""

from __future__ import annotations

from collections.abc import Sequence

from cellwall.fleet.driver.placing import Room, choose


def first(rooms: Sequence[Room], count: int) -> list[Room]:
    return list(rooms[:count])


def room(name: str, load: int, *, is_near: bool = False) -> Room:
    return Room(name, load, 4, is_near)


def chosen(*rooms: Room) -> str | None:
    found = choose(rooms, first)
    return None if found is None else found.name


def test_the_driver_s_own_machine_comes_first_while_it_has_places() -> None:
    assert chosen(room("far", 0), room("near", 3, is_near=True)) == "near"
    assert chosen(room("far", 0), room("near", 4, is_near=True)) == "far"


def test_of_two_the_less_loaded_one() -> None:
    assert chosen(room("a", 3), room("b", 2), room("c", 0)) == "b"


def test_load_is_a_share_of_places() -> None:
    assert chosen(room("small", 3), Room("large", 8, 64, False)) == "large"


def test_a_full_node_gets_nothing() -> None:
    assert chosen(room("a", 12), room("b", 11)) == "b"
    assert chosen(room("a", 12), room("b", 13, is_near=True)) is None
    assert chosen() is None

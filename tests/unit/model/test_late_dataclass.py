"""Dataclasses whose methods are written late are those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from dataclasses import field
from typing import TYPE_CHECKING, Any

import pytest

from cellwall.model.late_dataclass import dataclass as late_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable


def _of(decorator: Any) -> dict[str, Any]:
    """Define classes of each kind; both decorators get the same source."""

    class Base:
        def total(self) -> int:
            return 1

    @decorator(frozen=True, slots=True)
    class Frozen(Base):
        """Said."""

        number: int
        text: str = "a"
        items: list[int] = field(default_factory=list, hash=False)
        secret: str = field(default="s", repr=False)
        other: int = field(default=0, compare=False)

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ValueError(self.number)

    @decorator(slots=True)
    class Changing:
        """Said."""

        number: int
        made: dict[str, int] = field(default_factory=dict)
        hidden: int = field(default=3, init=False)

    @decorator(slots=True, eq=False)
    class Itself:
        number: int = 0

    @decorator(frozen=True, slots=True)
    class Worded:
        number: int = 0

        def __str__(self) -> str:
            return f"number {self.number}"

        def __repr__(self) -> str:
            return f"<{self.number}>"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Worded)

        def __hash__(self) -> int:
            return 7

    @decorator(frozen=True, slots=True)
    class Named:
        number: int
        word: str = field(default="", kw_only=True)

    @decorator(frozen=True, slots=True)
    class Derived(Frozen):
        more: int = 9

    @decorator(frozen=True, slots=True)
    class Empty:
        """Said."""

    return {cls.__name__: cls for cls in (Frozen, Changing, Itself, Worded, Named, Derived, Empty)}


LATE: dict[str, Any]
USUAL: dict[str, Any]
LATE, USUAL = _of(late_dataclass), _of(dataclasses.dataclass)
NAMES = sorted(USUAL)


def _made_as(classes: dict[str, Any], name: str, number: int = 5) -> Any:
    return classes[name]() if name == "Empty" else classes[name](number)


def _same(text: object) -> str:
    return str(text).replace("_of.<locals>.", "")


@pytest.mark.parametrize("name", NAMES)
def test_a_late_class_takes_the_same_arguments(name: str) -> None:
    late, usual = inspect.signature(LATE[name]), inspect.signature(USUAL[name])
    assert str(late) == str(usual)
    assert [p.kind for p in late.parameters.values()] == [p.kind for p in usual.parameters.values()]


@pytest.mark.parametrize("name", NAMES)
def test_a_late_class_has_the_same_fields_and_names(name: str) -> None:
    late, usual = LATE[name], USUAL[name]
    assert [f.name for f in dataclasses.fields(late)] == [f.name for f in dataclasses.fields(usual)]
    assert late.__slots__ == usual.__slots__
    assert late.__match_args__ == usual.__match_args__
    assert set(dir(late)) == set(dir(usual))
    if name != "Derived":  # which the standard library made
        assert late.__doc__ == (usual.__doc__ if usual.__doc__ == "Said." else None)


@pytest.mark.parametrize("name", NAMES)
def test_a_late_objects_text_equality_and_hash_are_the_same(name: str) -> None:
    late, usual = _made_as(LATE, name), _made_as(USUAL, name)
    assert _same(repr(late)).split(" at ")[0] == _same(repr(usual)).split(" at ")[0]
    for number in (5, 6):
        equal = _made_as(USUAL, name) == _made_as(USUAL, name, number)
        assert (late == _made_as(LATE, name, number)) is equal
    assert late != usual or name == "Worded"
    assert (LATE[name].__hash__ is None) is (USUAL[name].__hash__ is None)
    if name in ("Frozen", "Derived", "Named", "Empty", "Worded"):
        assert hash(late) == hash(usual)


@pytest.mark.parametrize("name", ["Frozen", "Derived", "Named", "Worded"])
def test_a_late_frozen_object_refuses_changes_in_the_same_words(name: str) -> None:
    changes: list[Callable[[Any], None]] = [
        lambda made: setattr(made, "number", 1),
        lambda made: delattr(made, "number"),
    ]
    for change in changes:
        said = []
        for classes in (LATE, USUAL):
            with pytest.raises(dataclasses.FrozenInstanceError) as caught:
                change(_made_as(classes, name))
            said.append(str(caught.value))
        assert said[0] == said[1]


def test_an_undecorated_child_of_a_late_class_may_have_more() -> None:
    child = type("Child", (LATE["Frozen"],), {})(1)
    child.further = 2
    assert child.further == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        child.number = 3


@pytest.mark.parametrize("name", ["Frozen", "Changing", "Itself", "Named", "Worded"])
def test_copies_of_a_late_object_have_its_values(name: str) -> None:
    late = _made_as(LATE, name)
    for again in (copy.copy(late), copy.deepcopy(late)):
        assert type(again) is LATE[name]
        assert dataclasses.asdict(again) == dataclasses.asdict(late)
    assert dataclasses.replace(late, number=8).number == 8


def test_a_late_class_calls_post_init_and_makes_values_anew() -> None:
    with pytest.raises(ValueError, match="-1"):
        LATE["Frozen"](-1)
    assert LATE["Frozen"](1).items is not LATE["Frozen"](1).items
    given: list[int] = []
    assert LATE["Frozen"](1, items=given).items is given


@pytest.mark.parametrize("name", ["Frozen", "Changing"])
def test_wrong_arguments_of_a_late_class_are_told_the_same(name: str) -> None:
    arguments: tuple[object, ...]
    for arguments in ((), (1, "a", [], "s", 0, 6), (1,)):
        named = {"unknown": 1} if arguments == (1,) else {}
        said = []
        for classes in (LATE, USUAL):
            with pytest.raises(TypeError) as caught:
                classes[name](*arguments, **named)
            said.append(_same(caught.value))
        assert said[0] == said[1]


def test_methods_are_written_when_they_are_looked_up() -> None:
    @late_dataclass(frozen=True, slots=True)
    class Fresh:
        number: int

    kinds = {type(vars(Fresh)[name]).__name__ for name in ("__init__", "__repr__", "__eq__")}
    assert kinds == {"_Late"}
    Fresh(1)
    assert inspect.isfunction(vars(Fresh)["__init__"])
    assert not inspect.isfunction(vars(Fresh)["__repr__"])


def test_a_late_class_without_slots_is_refused() -> None:
    with pytest.raises(TypeError, match="only classes with slots"):
        late_dataclass(slots=False)


def test_a_class_of_the_standard_library_may_be_derived_from_a_late_one() -> None:
    def theirs() -> type:
        return type("Theirs", (LATE["Named"],), {"__annotations__": {"more": int}, "more": 1})

    made: Any = dataclasses.dataclass(frozen=True)(theirs())
    assert (made(1).number, made(1).more) == (1, 1)
    with pytest.raises(TypeError, match="cannot inherit non-frozen"):
        dataclasses.dataclass()(theirs())

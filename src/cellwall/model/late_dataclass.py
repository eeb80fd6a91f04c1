"""Dataclasses whose methods are written when they are first used.

A process that answers once defines some eighty of them and makes objects of half; the standard
library compiles up to six methods for each, which was a sixth of such a process. Here a method is
compiled when it is first looked up. Fields, order of arguments, equality, hashes, texts, copies and
errors are those of the standard library; a class without a docstring is given none. Imported by
what a first answer defines; elsewhere the standard library's own decorator does. The invariant:
this module decides nothing about a class, and only puts off.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import Field, dataclass

__all__ = ["dataclass"]


class _Absent:
    """What stands in a signature for a value that is made anew for each object."""

    def __repr__(self) -> str:
        return "<factory>"


_ABSENT = _Absent()


class _Late:
    """A method of a class that takes its own place when it is first looked up."""

    __slots__ = ("_home", "_is_frozen", "_name")

    def __init__(self, home: type, name: str, *, is_frozen: bool) -> None:
        self._home = home
        self._name = name
        self._is_frozen = is_frozen

    def __get__(self, instance: object, owner: type | None = None) -> Any:  # noqa: ANN401
        method = _written(self._home, self._name, is_frozen=self._is_frozen)
        setattr(self._home, self._name, method)  # two threads write the same twice
        return method.__get__(instance, owner)


def _written(home: type, name: str, *, is_frozen: bool) -> Any:  # noqa: ANN401
    """Return one method for a class, as the standard library would write it."""
    fields = dataclasses.fields(home)
    if name == "__init__" and all(field.init and not field.kw_only for field in fields):
        return _init(home, fields, is_frozen=is_frozen)
    body: dict[str, Any] = {
        "__doc__": "-",  # else one would be made of the signature
        "__module__": home.__module__,
        "__qualname__": home.__qualname__,
        "__annotations__": {field.name: field.type for field in fields},
        **{field.name: field for field in fields},
    }
    if hasattr(home, "__post_init__"):
        body["__post_init__"] = None  # the method written calls that of its object
    twin: type = dataclasses.dataclass(
        init=name == "__init__",
        repr=name == "__repr__",
        eq=name in ("__eq__", "__hash__"),
        frozen=is_frozen and name in ("__init__", "__hash__"),
        slots=True,
    )(type(home.__name__, (), body))
    return vars(twin)[name]


def _init(home: type, fields: tuple[Field[Any], ...], *, is_frozen: bool) -> Any:  # noqa: ANN401
    """Return the usual `__init__`: every field may be given, by its place or its name.

    The standard library would compile two further methods beside that of a frozen class.
    """
    known: dict[str, Any] = {"__name__": home.__module__, "_put": object.__setattr__}
    words, lines = ["self"], []
    for field in fields:
        name, word, value = field.name, field.name, field.name
        if field.default_factory is not dataclasses.MISSING:
            known["_absent"], known[f"_make_{name}"] = _ABSENT, field.default_factory
            word, value = f"{name}=_absent", f"_make_{name}() if {name} is _absent else {name}"
        elif field.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = field.default
            word = f"{name}=_default_{name}"
        words.append(word)
        lines.append(f"_put(self, {name!r}, {value})" if is_frozen else f"self.{name} = {value}")
    if hasattr(home, "__post_init__"):
        lines.append("self.__post_init__()")
    lines = lines or ["pass"]
    # Only names of fields are put into this text, which the class's own source has as names.
    exec(f"def __init__({', '.join(words)}):\n " + "\n ".join(lines), known)  # noqa: S102
    made = known["__init__"]
    made.__qualname__ = f"{home.__qualname__}.__init__"
    made.__annotations__ = {**{field.name: field.type for field in fields}, "return": None}
    return made


if not TYPE_CHECKING:

    def dataclass(*, slots: bool, frozen: bool = False, eq: bool = True) -> Callable[[type], type]:
        """Make a class a dataclass, as `dataclasses.dataclass` does; only these options exist."""
        if not slots:
            raise TypeError("late_dataclass: only classes with slots; use dataclasses.dataclass")

        def made(cls: type) -> type:
            if any(hasattr(base, "__dataclass_fields__") for base in cls.__mro__[1:]):
                return dataclasses.dataclass(slots=True, frozen=frozen, eq=eq)(cls)
            own = set(vars(cls))
            said, cls.__doc__ = cls.__doc__, "-"  # else one would be made of the signature
            home = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
            home.__doc__ = said
            late = ["__init__", "__repr__"]
            if eq:
                late += ["__eq__", "__hash__"] if frozen else ["__eq__"]
            for name in late:
                if name not in own:
                    setattr(home, name, _Late(home, name, is_frozen=frozen))
            if eq and not frozen and "__hash__" not in own:
                home.__hash__ = None
            return _frozen(home) if frozen else home

        return made


def _frozen(home: Any) -> type:  # noqa: ANN401
    """Have its objects refuse changes, and their copies and pickles be made in spite of that."""

    def __setattr__(self: Any, name: str, value: object) -> None:  # noqa: ANN401
        if type(self) is home or name in home.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(home, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:  # noqa: ANN401
        if type(self) is home or name in home.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(home, self).__delattr__(name)

    home.__setattr__ = __setattr__
    home.__delattr__ = __delattr__
    home.__getstate__ = _state
    home.__setstate__ = _restored
    home.__dataclass_params__.frozen = True  # what a class derived from it has to be, too
    return home  # type: ignore[no-any-return]


def _state(self: Any) -> list[Any]:  # noqa: ANN401
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _restored(self: Any, state: list[Any]) -> None:  # noqa: ANN401
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)

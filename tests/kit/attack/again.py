"""An attack once more, in other arenas: the same function, with some of its cases.

Not a copy of a test's text. The invariant: a case that is named and is not there is an error, and
what differs in an arena is a strict xfail with its reason, so that a difference that goes away is
noticed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import pytest

Test = Callable[..., None]


def again(
    test: Test,
    cases: Sequence[str],
    places: Sequence[str],
    fixture: str = "arena",
    through: Sequence[str] = ("tried",),
) -> Test:
    """Return the test for other `places`, parameters of `fixture`; no cases: all of them.

    `through`: further fixtures by which a test may be asking for that one.
    """
    assert isinstance(test, FunctionType)
    made = FunctionType(
        test.__code__, test.__globals__, test.__name__, test.__defaults__, test.__closure__
    )
    made.__doc__, made.__annotations__ = test.__doc__, test.__annotations__
    marks = [
        _cut(mark, cases) if cases and mark.name == "parametrize" else mark
        for mark in getattr(test, "pytestmark", [])
    ]
    if {fixture, *through} & set(inspect.signature(test).parameters):
        where = pytest.mark.parametrize(fixture, places, indirect=True, scope="module")
        marks.append(where.mark)
    marks.append(pytest.mark.again.mark)
    setattr(made, "pytestmark", marks)  # noqa: B010 - pytest's, which functions do not declare
    return made


def _cut(mark: pytest.Mark, wanted: Sequence[str]) -> pytest.Mark:
    kept = [case for case in mark.args[1] if str(getattr(case, "id", case)) in wanted]
    assert len(kept) == len(wanted), f"{mark.args[0]}: {wanted} are not all there"
    return pytest.mark.parametrize(mark.args[0], kept).mark


def deviation(
    request: pytest.FixtureRequest,
    known: Mapping[str, Mapping[str, str]],
    fixture: str = "arena",
) -> None:
    """Mark the test that is about to run, if `known` has a reason for it in its place."""
    spec: Any = getattr(request.node, "callspec", None)
    if spec is None or fixture not in spec.params:
        return
    place = spec.params[fixture]
    case = spec.id.removeprefix(f"{place}-").removesuffix(f"-{place}")
    test, reasons = request.node.originalname, known[place]
    reason = reasons.get(test) or reasons.get(f"{test}[{case}]")
    if reason is not None:
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))

"""A program only moves on, and an end before it began is no result."""

from __future__ import annotations

from itertools import product

import pytest

from cellwall.guest.channel import progress
from cellwall.guest.channel.progress import Progress

STATES = range(progress.REPORTED + 1)


@pytest.mark.parametrize(("now", "wanted"), list(product(STATES, STATES)))
def test_a_program_only_moves_on(now: int, wanted: int) -> None:
    program = Progress(now)
    if wanted > now:
        program.advance(wanted)
        assert program.state == wanted
    else:
        with pytest.raises(RuntimeError, match="cannot become"):
            program.advance(wanted)
        assert program.state == now


def test_nothing_has_begun_before_the_leave_to_begin() -> None:
    begun = [Progress(state).has_begun for state in STATES]
    assert begun == [False, False, False, True, True, True]


def test_a_context_can_take_work_once_it_has_been_idle() -> None:
    assert [Progress(state).is_ready for state in STATES] == [False] + [True] * 5

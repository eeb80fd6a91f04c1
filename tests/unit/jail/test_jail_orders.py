"""What a worker is asked for: read as it was written, and remembered within bounds."""

from __future__ import annotations

import json

import pytest

from cellwall.jail.plan import plan
from cellwall.jail.processes import clone_request
from cellwall.linux import seccomp

FACTS = plan.HostFacts((), ("usr",), (), (), (), (), ("processor: 0\n",), "6", "#1", 40, 4)
SHAPE = plan.Shape(
    cpus=1, memory_mb=512, disk_mb=256, inodes=16384, processes=100, file_mb=64, open_files=256
)
GUEST = {"home": "/home/user", "contexts": ["main"]}


@pytest.fixture
def known() -> clone_request.CloneRequests:
    """What a worker remembers that was asked for nothing yet."""
    program = seccomp.compile_policy(seccomp.load_policy(), "x86_64")
    return clone_request.CloneRequests(FACTS, program, 40)


def test_an_order_is_read_as_it_was_written(known: clone_request.CloneRequests) -> None:
    data = clone_request.encoded(SHAPE, 7, GUEST | {"home": "h\u00e9 } {"}, "exec", is_told=True)
    uid, request = known.read(data)
    assert (uid, request.start, request.is_told) == (7, "exec", True)
    assert request.guest == GUEST | {"home": "h\u00e9 } {"}
    decided = plan.sandbox_plan(FACTS, SHAPE).lockdown
    assert len(request.ready.lockdown.files) > len(decided.read_exec)


def test_only_the_uid_is_new_in_the_next_one(known: clone_request.CloneRequests) -> None:
    _, first = known.read(clone_request.encoded(SHAPE, 1, GUEST, "fork"))
    uid, second = known.read(clone_request.encoded(SHAPE, 2, GUEST, "fork"))
    assert (uid, second is first) == (2, True)


def test_limits_of_one_do_not_reach_another(known: clone_request.CloneRequests) -> None:
    _, small = known.read(clone_request.encoded(SHAPE, 1, GUEST, "fork"))
    _, large = known.read(clone_request.encoded(SHAPE._replace(memory_mb=4096), 1, GUEST, "fork"))
    _, told = known.read(clone_request.encoded(SHAPE, 1, GUEST, "fork", is_told=True))
    sizes = [json.dumps([each.step for each in request.ready.runs]) for request in (small, large)]
    assert sizes[0] == sizes[1]  # the same steps,
    assert small.ready.runs != large.ready.runs  # with other arguments
    assert small.ready is told.ready
    assert (small.is_told, told.is_told) == (False, True)


def test_what_callers_choose_is_forgotten_again(known: clone_request.CloneRequests) -> None:
    """A plan is 100 KiB, and limits are the caller's choice."""
    for memory_mb in range(64, 64 + 4 * clone_request._REMEMBERED):
        known.read(clone_request.encoded(SHAPE._replace(memory_mb=memory_mb), 1, GUEST, "fork"))
        assert len(known._known) <= clone_request._REMEMBERED
        assert len(known._plans) <= clone_request._REMEMBERED
    first, again = (known.read(clone_request.encoded(SHAPE, 1, GUEST, "fork"))[1] for _ in range(2))
    assert first is again


@pytest.mark.parametrize("data", [b"", b"{}", b"x {}", b'1 {"shape": {}}', b"1 null"])
def test_what_is_no_order_is_none(known: clone_request.CloneRequests, data: bytes) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        known.read(data)

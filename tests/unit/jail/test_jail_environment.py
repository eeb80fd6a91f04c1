"""A caller's environment on its way: read as it was sent, and nothing behind it."""

from __future__ import annotations

import os
import socket

import pytest

from cellwall.jail.protocol import environment


@pytest.fixture
def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


@pytest.mark.parametrize(
    "wanted", [{}, {"A": "", "B": "h\u00e9 } {\n"}, {"LARGE": "x" * (environment.MOST_BYTES - 13)}]
)
def test_it_is_read_whole_and_alone_before_anybody_waits_for_it(
    pair: tuple[socket.socket, socket.socket], wanted: dict[str, str]
) -> None:
    ours, theirs = pair
    environment.send(ours, environment.packed(wanted))
    ours.send(b"behind it")
    assert environment.read(theirs.fileno()) == wanted
    assert os.read(theirs.fileno(), 100) == b"behind it"
    ours.close()
    theirs.close()


def test_one_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="are more than"):
        environment.packed({"LARGE": "x" * environment.MOST_BYTES})


def test_a_host_that_goes_half_way_is_an_end(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ours.send(environment.packed({"A": "1"})[:-1])
    ours.close()
    with pytest.raises(EOFError):
        environment.read(theirs.fileno())
    theirs.close()


def test_without_room_it_is_an_error_and_no_wait(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with pytest.raises(BlockingIOError):
        environment.send(ours, environment.packed({"LARGE": "x" * 60_000}))
    ours.close()
    theirs.close()

"""Descriptors and control messages: nothing arrives that was not sent, nothing stays open."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator

import pytest

from cellwall.jail.protocol import fds
from kit.jail.forked import answer

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends of a control socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield ours, theirs
    ours.close()
    theirs.close()


def _open() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd")}


def test_a_message_arrives_with_its_descriptors(pair: Pair) -> None:
    read_end, write_end = os.pipe()
    fds.send_message(pair[0], {"word": "é"}, [write_end])
    message, received = fds.receive_message(pair[1])
    os.close(write_end)
    os.write(received[0], b"through")
    assert (message, os.read(read_end, 10)) == ({"word": "é"}, b"through")
    fds.close_all([read_end, *received])


def test_a_prepared_message_carries_what_its_numbers_are_by_then(pair: Pair) -> None:
    """A fork-server's answer is made once, with the cell where the kernel puts each pidfd."""
    number = ctypes.c_int(-1)
    prepared = fds.prepare(b"{}", number)
    for word in (b"first", b"second"):
        read_end, number.value = os.pipe()
        fds.send_prepared(pair[0], prepared)
        os.close(number.value)
        message, received = fds.receive_message(pair[1])
        os.write(received[0], word)
        assert (message, len(received), os.read(read_end, 10)) == ({}, 1, word)
        fds.close_all([read_end, *received])


def test_data_that_is_no_json_arrives_as_it_is(pair: Pair) -> None:
    fds.send(pair[0], b"7 {", [])
    assert fds.receive(pair[1]) == (b"7 {", [])


def test_a_message_that_is_no_object_is_refused_and_its_descriptors_closed(pair: Pair) -> None:
    before = _open()
    fds.send(pair[0], b"[1]", [0])
    with pytest.raises(ValueError, match="not a JSON object"):
        fds.receive_message(pair[1])
    assert _open() == before


def test_received_descriptors_do_not_survive_an_exec(pair: Pair) -> None:
    fds.send_message(pair[0], {}, [0])
    _, received = fds.receive_message(pair[1])
    assert [os.get_inheritable(fd) for fd in received] == [False]
    fds.close_all(received)


def test_the_end_of_the_peer_is_an_event(pair: Pair) -> None:
    pair[0].close()
    with pytest.raises(fds.ControlClosed):
        fds.receive_message(pair[1])
    with pytest.raises(fds.ControlClosed):
        fds.send_message(pair[1], {})


def test_too_large_a_message_is_refused_and_its_descriptors_closed(pair: Pair) -> None:
    before = _open()
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, (0).to_bytes(4, "little"))]
    pair[0].sendmsg([b'"' + b"x" * 70_000 + b'"'], ancillary)
    with pytest.raises(ValueError, match="larger than both ends agreed on"):
        fds.receive_message(pair[1])
    assert _open() == before


def test_too_many_descriptors_are_refused_and_closed(pair: Pair) -> None:
    before = _open()
    many = b"".join((0).to_bytes(4, "little") for _ in range(fds._MAX_FDS + 1))
    pair[0].sendmsg([b"{}"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, many)])
    with pytest.raises(ValueError, match="larger than both ends agreed on"):
        fds.receive_message(pair[1])
    assert _open() == before


def test_keep_only_closes_the_rest_wherever_it_lies() -> None:
    def work() -> list[int]:
        ours = {fd for fd in _open() if _is_open(fd)}
        kept = os.dup2(0, 200)
        extra = [os.dup2(0, number) for number in (199, 201, 999)]
        fds.keep_only({*ours, kept})
        return [fd for fd in (kept, *extra) if _is_open(fd)]

    assert answer(work) == [200]


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_a_document_is_read_from_its_beginning() -> None:
    fd = fds.as_document('{"a": 1}')
    with os.fdopen(fd, "rb") as file:
        assert file.read() == b'{"a": 1}'


def test_a_document_that_is_sent_cannot_be_inherited_or_changed() -> None:
    fd = fds.as_sent_document('{"a": 1}')
    with os.fdopen(fd, "r+b", buffering=0) as file:
        assert not os.get_inheritable(fd)
        assert file.read() == b'{"a": 1}'
        with pytest.raises(PermissionError):
            file.write(b"2")

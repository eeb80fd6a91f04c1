"""The Connect codec of the E2B daemon: envelopes, codes, and both forms of messages.

The bytes are compared with those of the SDK's own protobuf library; hostile bytes get an error of
the protocol, and nothing else.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from e2b.envd.filesystem import filesystem_pb
from e2b.envd.process import process_pb
from hypothesis import given
from hypothesis import strategies as st

from cellwall.apps.doors.e2b.daemon.connect import binary_form, connect_codec, json_form, messages
from cellwall.apps.doors.e2b.daemon.connect.connect_codec import ConnectError
from cellwall.apps.doors.e2b.daemon.connect.schema import (
    MOST_ITEMS,
    Field,
    Malformed,
    Message,
    Value,
)

_CAP = 1000
REQUESTS = [
    messages.START,
    messages.SELECT,
    messages.UPDATE,
    messages.SEND_INPUT,
    messages.SEND_SIGNAL,
    messages.STREAM_INPUT,
    messages.PATH,
    messages.LIST_DIR,
    messages.MOVE,
    messages.WATCH,
    messages.WATCHER,
]

# -- messages ----------------------------------------------------------------------------------

_START = process_pb.StartRequest(
    process=process_pb.ProcessConfig(
        cmd="/bin/bash", args=["-l", "-c", "ä"], envs={"A": "b", "Ü": ""}, cwd="/tmp"
    ),
    pty=process_pb.PTY(size=process_pb.PTY.Size(cols=80, rows=24)),
    tag="t",
    stdin=False,
)
_STARTED: Value = {
    "process": {
        "cmd": "/bin/bash",
        "args": ["-l", "-c", "ä"],
        "envs": {"A": "b", "Ü": ""},
        "cwd": "/tmp",
    },
    "pty": {"size": {"cols": 80, "rows": 24}},
    "tag": "t",
    "stdin": False,
}


def test_both_forms_of_the_sdks_own_library_are_read() -> None:
    assert binary_form.decoded(messages.START, _START.to_binary()) == _STARTED
    assert json_form.decoded(messages.START, _START.to_json().encode()) == _STARTED


@pytest.mark.parametrize(
    ("message", "kind", "value"),
    [
        (messages.EVENT, process_pb.StartResponse, {"event": {"start": {"pid": 7}}}),
        (messages.EVENT, process_pb.StartResponse, {"event": {"data": {"stdout": b"\xff\x00"}}}),
        (
            messages.EVENT,
            process_pb.StartResponse,
            {"event": {"end": {"exit_code": -1, "exited": False, "status": "s", "error": "e"}}},
        ),
        (messages.EVENT, process_pb.StartResponse, {"event": {"keepalive": {}}}),
        (
            messages.PROCESSES,
            process_pb.ListResponse,
            {"processes": [{"config": {"cmd": "a", "args": ["b"]}, "pid": 1, "tag": "t"}]},
        ),
        (
            messages.ENTRY,
            filesystem_pb.StatResponse,
            {
                "entry": {
                    "name": "a",
                    "type": messages.DIRECTORY,
                    "path": "/a",
                    "size": 2**40,
                    "mode": 0o755,
                    "modified_time": 1763680752.25,
                    "symlink_target": "/b",
                }
            },
        ),
        (messages.WATCHED, filesystem_pb.WatchDirResponse, {"start": {}}),
        (
            messages.CHANGES,
            filesystem_pb.GetWatcherEventsResponse,
            {"events": [{"name": "x", "type": messages.WRITE}]},
        ),
    ],
)
def test_what_is_written_is_what_the_sdks_own_library_reads(
    message: Message, kind: Any, value: Value
) -> None:
    shown = json_form.encoded(message, value)
    assert kind.from_binary(binary_form.encoded(message, value)) == kind.from_json(shown.decode())
    assert binary_form.decoded(message, binary_form.encoded(message, value)) == value
    assert shown.isascii()


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"[]",
        b'"x"',
        b"NaN",
        b'{"process": 1}',
        b'{"process": {"cmd": 1}}',
        b'{"process": {"args": "x"}}',
        b'{"process": {"envs": ["x"]}}',
        b'{"process": {"envs": {"a": 1}}}',
        b'{"process": {"cmd": "\\ud800"}}',
        b'{"stdin": "yes"}',
        b'{"pty": {"size": {"rows": -1}}}',
        b'{"pty": {"size": {"rows": 4294967296}}}',
        b'{"pty": {"size": {"rows": 1.5}}}',
        b'{"pty": {"size": {"rows": true}}}',
        b'{"pty": {"size": {"rows": "\xc2\xb2"}}}',
        b'{"process":' * 50_000 + b"1" + b"}" * 50_000,
        b"[" * 100_000,
        b'{"pty": {"size": {"rows": ' + b"9" * 5000 + b"}}}",
        b"\xff\xfe",
    ],
)
def test_json_that_is_no_message_is_refused(text: bytes) -> None:
    with pytest.raises(Malformed):
        json_form.decoded(messages.START, text)


def test_json_reads_numbers_names_and_bytes_in_every_form_that_protobuf_allows() -> None:
    given = b'{"process":{"pid":"7"},"signal":9,"input":null,"later":{"a":1}}'
    assert json_form.decoded(messages.SEND_SIGNAL, given) == {"process": {"pid": 7}, "signal": 9}
    named = b'{"signal":"SIGNAL_SIGTERM"}'
    assert json_form.decoded(messages.SEND_SIGNAL, named) == {"signal": 15}
    for text in ("_-8", "_-8=", "/+8="):
        found = json_form.decoded(messages.SEND_INPUT, b'{"input":{"pty":"%s"}}' % text.encode())
        assert found == {"input": {"pty": b"\xff\xef"}}, text
    assert json_form.decoded(messages.WATCH, b'{"include_entry":true}') == {"include_entry": True}


@pytest.mark.parametrize("text", ["a", "a===b", "ä", "a b=", "ab\ncd"])
def test_bytes_that_are_not_base64_are_refused(text: str) -> None:
    data = json.dumps({"input": {"stdin": text}}).encode()
    with pytest.raises(Malformed, match="base64"):
        json_form.decoded(messages.SEND_INPUT, data)


def test_two_of_what_excludes_each_other_are_refused_in_json() -> None:
    with pytest.raises(Malformed, match="only one"):
        json_form.decoded(messages.SELECT, b'{"process":{"pid":1,"tag":"x"}}')


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",  # a field without its length
        b"\x0a\x05abc",  # a length that is not there
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a length of 2**64 - 1
        b"\xff" * 11,  # a tag without an end
        b"\x0b",  # a group
        b"\x0f",  # a wire type that there is none of
        b"\x08\x01",  # a number where a message is
        b"\x1a\x02\xff\xfe",  # no UTF-8
        b"\x0a\x02\x0a\x05",  # a length that leaves its message
    ],
)
def test_binary_that_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        binary_form.decoded(messages.START, data)


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("part", [b"\x12\0", b"\x1a\0", b"\x32\0"], ids=["args", "envs", "unknown"])
def test_the_fields_of_a_binary_message_are_counted(part: bytes, more: int) -> None:
    inner = part * (MOST_ITEMS - 1 + more)  # the field that they are in is one, too
    outer = Message("outer", {"process": Field(1, "bytes")})
    data = binary_form.encoded(outer, {"process": inner})
    if more:
        with pytest.raises(Malformed, match="more than"):
            binary_form.decoded(messages.START, data)
    else:
        assert set(binary_form.decoded(messages.START, data)) == {"process"}


@pytest.mark.parametrize("more", [0, 1])
def test_the_items_of_a_list_and_of_a_map_are_counted(more: int) -> None:
    count = MOST_ITEMS + more
    for given_items in ({"args": [""] * count}, {"envs": {str(at): "" for at in range(count)}}):
        text = json.dumps({"process": given_items}).encode()
        if more:
            with pytest.raises(Malformed, match="more than"):
                json_form.decoded(messages.START, text)
        else:
            assert json_form.decoded(messages.START, text) == {"process": given_items}


@given(st.sampled_from(REQUESTS), st.binary(max_size=200))
def test_any_bytes_are_a_message_or_malformed(message: Message, data: bytes) -> None:
    for form in (binary_form, json_form):
        try:
            value = form.decoded(message, data)
        except Malformed:
            continue
        assert form.decoded(message, form.encoded(message, value)) == value


_TEXTS = st.text(st.sampled_from("aB1=_-/+ü\0"), max_size=6)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=4,
)
_NAMES = st.sampled_from(["process", "pid", "tag", "input", "stdin", "pty", "size", "envs", "args"])


@given(st.sampled_from(REQUESTS), st.dictionaries(_NAMES, st.dictionaries(_NAMES, _JSON) | _JSON))
def test_any_json_is_a_message_or_malformed(message: Message, found: dict[str, Any]) -> None:
    try:
        value = json_form.decoded(message, json.dumps(found).encode())
    except Malformed:
        return
    assert json_form.decoded(message, json_form.encoded(message, value)) == value
    assert binary_form.decoded(message, binary_form.encoded(message, value)) is not None


# -- envelopes ---------------------------------------------------------------------------------


def _messages(pieces: list[bytes]) -> list[bytes]:
    async def given() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def collected() -> list[bytes]:
        return [data async for data in connect_codec.messages(given(), _CAP)]

    return asyncio.run(collected())


@given(st.lists(st.binary(max_size=50), max_size=6), st.integers(1, 20))
def test_messages_are_found_however_the_bytes_are_cut(sent: list[bytes], size: int) -> None:
    data = b"".join(map(connect_codec.envelope, sent))
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert _messages(pieces) == sent
    assert _messages([*pieces, connect_codec.end_of_stream()]) == sent


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\0", "invalid_argument"),
        (b"\0\0\0\0\x05abc", "invalid_argument"),
        (b"\x01\0\0\0\0", "unimplemented"),
        (b"\x04\0\0\0\0", "invalid_argument"),
        (b"\xff", "unimplemented"),
        (b"\x80\0\0\0\0", "invalid_argument"),
        (b"\0" + (_CAP + 1).to_bytes(4, "big"), "resource_exhausted"),
        (b"\0\xff\xff\xff\xff", "resource_exhausted"),
        (b"\x02\0\0\0\x02{}x", "invalid_argument"),
        (b"\x02\0\0\0\x02{}" + b"\0\0\0\0\0", "invalid_argument"),
    ],
)
def test_wrong_envelopes_are_refused_by_a_code(data: bytes, code: str) -> None:
    with pytest.raises(ConnectError) as caught:
        _messages([data])
    assert caught.value.code == code
    with pytest.raises(ConnectError):
        _messages([data[at : at + 1] for at in range(len(data))])


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_any_stream_has_messages_or_an_error_of_the_protocol(pieces: list[bytes]) -> None:
    try:
        found = _messages(pieces)
    except ConnectError as error:
        found, code = [], error.code
    else:
        code = "unknown"
    assert code in connect_codec.STATUS
    assert sum(map(len, found)) <= sum(map(len, pieces))


def test_an_envelope_of_the_largest_size_is_taken() -> None:
    assert _messages([connect_codec.envelope(b"x" * _CAP)]) == [b"x" * _CAP]


def test_a_reader_learns_how_many_bytes_wait() -> None:
    held: list[int] = []

    async def given() -> AsyncIterator[bytes]:
        yield b"\0\0\0\0\x02a"
        yield b"b"

    async def collected() -> None:
        async for _ in connect_codec.messages(given(), _CAP, held.append):
            pass

    asyncio.run(collected())
    assert held == [6, 7]


# -- headers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_type", "is_stream", "media"),
    [
        ("application/json", False, "application/json"),
        ("Application/JSON; charset=UTF-8", False, "application/json"),
        ("application/proto", False, "application/proto"),
        ("application/connect+json", True, "application/connect+json"),
        ("application/connect+proto", True, "application/connect+proto"),
        ("application/connect+json", False, None),
        ("application/json", True, None),
        ("application/json; charset=latin-1", False, None),
        ("application/grpc", True, None),
        ("", False, None),
    ],
)
def test_a_content_type_has_one_codec_or_none(
    given_type: str, is_stream: bool, media: str | None
) -> None:
    found = connect_codec.codec_of(given_type, is_stream=is_stream)
    assert (None if found is None else found.media) == media


@pytest.mark.parametrize(("given_ms", "seconds"), [("", None), ("0", None), ("1500", 1.5)])
def test_a_time_limit_is_read_as_seconds(given_ms: str, seconds: float | None) -> None:
    assert connect_codec.timeout_s({"connect-timeout-ms": given_ms}) == seconds


@pytest.mark.parametrize("given_ms", ["-1", "1.5", "x", "1" * 11, "²"])
def test_a_time_limit_that_is_none_is_refused(given_ms: str) -> None:
    with pytest.raises(ConnectError, match="connect-timeout-ms"):
        connect_codec.timeout_s({"connect-timeout-ms": given_ms})


@pytest.mark.parametrize(
    ("given_s", "seconds"),
    [("50", 50.0), ("0", 90.0), ("", 90.0), ("x", 90.0), ("9" * 10, 86_400.0), ("²", 90.0)],
)
def test_signs_of_life_come_as_often_as_is_asked(given_s: str, seconds: float) -> None:
    assert connect_codec.keepalive_s({"keepalive-ping-interval": given_s}) == seconds


def test_compressed_requests_are_refused() -> None:
    unary, stream = {"content-encoding": "gzip"}, {"connect-content-encoding": "gzip"}
    assert connect_codec.refused_encoding(unary, is_stream=False) is not None
    assert connect_codec.refused_encoding(stream, is_stream=True) is not None
    assert connect_codec.refused_encoding({"content-encoding": "identity"}, is_stream=False) is None


def test_the_last_envelope_says_how_it_ended() -> None:
    assert connect_codec.end_of_stream() == b"\x02\0\0\0\x02{}"
    failed = connect_codec.end_of_stream(ConnectError("not_found", "no ü"))
    assert failed[0] == 2
    assert json.loads(failed[5:]) == {"error": {"code": "not_found", "message": "no ü"}}

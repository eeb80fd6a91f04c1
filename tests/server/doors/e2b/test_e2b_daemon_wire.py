"""The daemon and the interpreter on the wire: both codecs, and bytes that no client sends."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from e2b.envd.filesystem import filesystem_pb
from e2b.envd.process import process_pb

from cellwall.apps.doors.e2b.daemon.connect.connect_codec import envelope
from kit.server.e2b_doors import E2BServer, created
from kit.waiting import wait_until

START = "/process.Process/Start"
STREAM = "application/connect+json"
UNARY = [
    "process.Process/List",
    "process.Process/SendInput",
    "process.Process/SendSignal",
    "process.Process/CloseStdin",
    "process.Process/Update",
    "filesystem.Filesystem/Stat",
    "filesystem.Filesystem/ListDir",
    "filesystem.Filesystem/MakeDir",
    "filesystem.Filesystem/Move",
    "filesystem.Filesystem/Remove",
    "filesystem.Filesystem/CreateWatcher",
    "filesystem.Filesystem/GetWatcherEvents",
    "filesystem.Filesystem/RemoveWatcher",
]
STREAMS = [
    "process.Process/Start",
    "process.Process/Connect",
    "process.Process/StreamInput",
    "filesystem.Filesystem/WatchDir",
]
OTHERS = [
    ("GET", "/files?path=x"),
    ("POST", "/files?path=x"),
    ("POST", "/execute"),
    ("GET", "/contexts"),
    ("POST", "/contexts"),
    ("POST", "/contexts/python/restart"),
    ("DELETE", "/contexts/python"),
]


@pytest.fixture(scope="module")
def made(e2b: E2BServer) -> Iterator[dict[str, str]]:
    control = e2b.client()
    found = created(control)
    yield found
    control.delete(f"/sandboxes/{found['sandboxID']}")


@pytest.fixture(scope="module")
def daemon(e2b: E2BServer, made: dict[str, str]) -> httpx.Client:
    return _client(e2b, made["sandboxID"], made["envdAccessToken"])


def _client(e2b: E2BServer, sandbox_id: str, token: str) -> httpx.Client:
    headers = {"E2b-Sandbox-Id": sandbox_id, "E2b-Sandbox-Port": "49983", "X-Access-Token": token}
    return e2b.client(None, **headers)


def _frames(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    while data:
        size = int.from_bytes(data[1:5], "big")
        found.append((data[0], data[5 : 5 + size]))
        data = data[5 + size :]
    return found


def _stream(daemon: httpx.Client, path: str, data: bytes, **headers: str) -> list[Any]:
    """Return the answer's messages and its last envelope, in an answer with status 200."""
    given = {"Content-Type": STREAM, "Connect-Protocol-Version": "1", **headers}
    answer = daemon.post(path, content=data, headers=given)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == STREAM
    assert "close" not in answer.headers.get("connection", "")
    frames = _frames(answer.content)
    assert [flags for flags, _ in frames] == [0] * (len(frames) - 1) + [2]
    return [json.loads(payload) for _, payload in frames]


def _run(line: str, **more: object) -> bytes:
    process = {"cmd": "/bin/bash", "args": ["-c", line]}
    return envelope(json.dumps({"process": process, **more}).encode())


# -- both codecs -------------------------------------------------------------------------------


def test_a_process_is_a_stream_of_json(daemon: httpx.Client) -> None:
    started, said, ended, last = _stream(daemon, START, _run("echo ok"))
    assert started["event"]["start"]["pid"] > 1
    assert said["event"]["data"] == {"stdout": "b2sK"}
    assert ended["event"]["end"] == {"exitCode": 0, "exited": True, "status": "exit status 0"}
    assert last == {}


def test_a_process_is_a_stream_of_binary_messages(daemon: httpx.Client) -> None:
    config = process_pb.ProcessConfig(cmd="/bin/bash", args=["-c", "echo ok; exit 3"])
    asked = process_pb.StartRequest(process=config, stdin=False).to_binary()
    media = "application/connect+proto"
    answer = daemon.post(START, content=envelope(asked), headers={"Content-Type": media})
    assert answer.headers["content-type"] == media
    *frames, (flags, last) = _frames(answer.content)
    found = [process_pb.StartResponse.from_binary(data).event for _, data in frames]
    assert (flags, json.loads(last)) == (2, {})
    kinds = [each.event.field for each in found if each is not None and each.event is not None]
    assert kinds == ["start", "data", "end"]
    assert b"ok\n" in frames[1][1]


def test_a_unary_call_is_answered_in_the_codec_of_its_request(daemon: httpx.Client) -> None:
    asked = filesystem_pb.StatRequest(path="/tmp").to_binary()
    path = "/filesystem.Filesystem/Stat"
    answer = daemon.post(path, content=asked, headers={"Content-Type": "application/proto"})
    assert answer.headers["content-type"] == "application/proto"
    entry = filesystem_pb.StatResponse.from_binary(answer.content).entry
    assert entry is not None
    assert (entry.name, entry.path) == ("tmp", "/tmp")
    assert daemon.post(path, json={"path": "/tmp"}).json()["entry"]["type"] == "FILE_TYPE_DIRECTORY"


def test_input_is_streamed_into_a_process(daemon: httpx.Client) -> None:
    head = {"Content-Type": STREAM, "Keepalive-Ping-Interval": "1"}
    with daemon.stream("POST", START, content=_run("cat", tag="fed"), headers=head) as answer:
        pieces = answer.iter_raw()
        assert b'"pid"' in next(pieces)
        selector = {"tag": "fed"}
        frames = [
            {"start": {"process": selector}},
            {"keepalive": {}},
            {"data": {"input": {"stdin": "b25l"}}},
            {"data": {"input": {"stdin": "Cg=="}}},
        ]
        sent = b"".join(envelope(json.dumps(each).encode()) for each in frames)
        assert _stream(daemon, "/process.Process/StreamInput", sent) == [{}, {}]
        closed = daemon.post("/process.Process/CloseStdin", json={"process": selector})
        assert (closed.status_code, closed.json()) == (200, {})
        rest = b"".join(pieces)
    assert b"b25l" in rest
    assert b"exit status 0" in rest


def test_a_client_that_leaves_while_its_input_waits_is_noticed(
    e2b: E2BServer, daemon: httpx.Client
) -> None:
    native = e2b.server.client()

    def connections() -> int:
        return int(native.get("/quota").json()["use"]["connections"])

    before = connections()
    pty = {"size": {"rows": 9, "cols": 9}}
    start = _run("stty raw -echo; echo on; exec sleep 600", pty=pty, tag="deaf")
    head = {"Content-Type": STREAM}
    with daemon.stream("POST", START, content=start, headers=head) as answer:
        pieces = answer.iter_raw()
        while b"pty" not in next(pieces):
            pass
        told = envelope(b'{"start":{"process":{"tag":"deaf"}}}')
        data = base64.b64encode(bytes(3_000_000)).decode()
        typed = envelope(json.dumps({"data": {"input": {"pty": data}}}).encode())
        with pytest.raises(httpx.ReadTimeout):
            daemon.post(
                "/process.Process/StreamInput", content=told + typed, headers=head, timeout=2
            )
        wait_until(lambda: connections() <= before + 1, "the end of the call")
    daemon.post("/process.Process/SendSignal", json={"process": {"tag": "deaf"}, "signal": 9})


def test_a_quiet_stream_shows_that_it_is_alive(daemon: httpx.Client) -> None:
    found = _stream(daemon, START, _run("sleep 2.5"), **{"Keepalive-Ping-Interval": "1"})
    assert {"event": {"keepalive": {}}} in found


def test_the_time_limit_of_a_call_is_that_of_its_process(daemon: httpx.Client) -> None:
    *_, last = _stream(daemon, START, _run("sleep 60"), **{"Connect-Timeout-Ms": "300"})
    assert last["error"]["code"] == "deadline_exceeded"
    listed = daemon.post("/process.Process/List", json={}).json().get("processes", [])
    assert not [each for each in listed if "sleep 60" in each["config"]["args"]]


# -- what no client sends ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "invalid_argument"),
        (b"\0\0\0\0\x09{}", "invalid_argument"),
        (b"\0\xff\xff\xff\xff{}", "resource_exhausted"),
        (b"\x01\0\0\0\x02{}", "unimplemented"),
        (b"\x07\0\0\0\x02{}", "unimplemented"),
        (envelope(b"{"), "invalid_argument"),
        (envelope(b"{}") * 2, "invalid_argument"),
        (envelope(b"{}"), "invalid_argument"),
        (envelope(b'{"process":' * 3000), "invalid_argument"),
        (envelope(b'{"process":{"cmd":"/none"}}'), "invalid_argument"),
        (envelope(b'{"process":{"cmd":"a\\u0000b"}}'), "invalid_argument"),
        (envelope(b'{"process":{"cmd":"x"},"tag":"%s"}' % (b"t" * 300)), "invalid_argument"),
    ],
)
def test_wrong_bytes_end_a_stream_with_a_code(daemon: httpx.Client, data: bytes, code: str) -> None:
    (last,) = _stream(daemon, START, data)
    assert last["error"]["code"] == code
    assert _stream(daemon, START, _run("true"))[-1] == {}


@pytest.mark.parametrize("path", UNARY)
def test_wrong_bytes_of_a_unary_call_get_a_code(daemon: httpx.Client, path: str) -> None:
    for data in (b"{", b"[]", b"\xff", b"[" * 100_000, b'{"path":7,"process":7,"watcherId":7}'):
        answer = daemon.post(f"/{path}", content=data, headers={"Content-Type": "application/json"})
        if path.endswith("/List") and data.startswith(b'{"'):
            continue  # its request has no fields, and unknown ones are skipped
        assert answer.status_code == 400, answer.text
        assert answer.json()["code"] == "invalid_argument"
    answer = daemon.post(f"/{path}", content=b"x", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415
    assert "application/json" in answer.headers["accept-post"]


def test_no_path_does_not_mean_the_whole_home(daemon: httpx.Client) -> None:
    for path, body in (("Remove", {"path": ""}), ("Move", {"source": "", "destination": "/tmp/x"})):
        answer = daemon.post(f"/filesystem.Filesystem/{path}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")


def test_a_compressed_call_is_refused(daemon: httpx.Client) -> None:
    head = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = daemon.post("/process.Process/List", content=b"{}", headers=head)
    assert (answer.status_code, answer.json()["code"]) == (501, "unimplemented")


def test_paths_stay_inside_whatever_they_say(daemon: httpx.Client) -> None:
    for path in ("/../../etc/hostname", "../../../../etc/hostname", "a\0b", "~root/x", "x" * 5000):
        answer = daemon.post("/filesystem.Filesystem/Stat", json={"path": path})
        assert answer.status_code in (200, 400, 404), answer.text
        if answer.status_code == 200:
            assert answer.json()["entry"]["path"] == "/etc/hostname"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"[" * 100_000, b'{"code":1}', b'{"code":"1","language":7}'],
)
def test_wrong_bodies_of_the_interpreter_are_refused(daemon: httpx.Client, body: bytes) -> None:
    answer = daemon.post("/execute", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("text/plain")


def test_lines_of_the_interpreter_are_ascii(daemon: httpx.Client) -> None:
    answer = daemon.post("/execute", json={"code": "print('ü\u2028')\n'ü'"})
    assert answer.content.isascii()
    kinds = [json.loads(line)["type"] for line in answer.content.splitlines()]
    assert kinds[0] == "number_of_executions"
    assert kinds[-1] == "end_of_execution"
    assert {"stdout", "result"} <= set(kinds)


# -- whose sandbox it is -----------------------------------------------------------------------


def _all_calls() -> list[tuple[str, str, str]]:
    calls = [("POST", f"/{path}", "application/json") for path in UNARY]
    calls += [("POST", f"/{path}", STREAM) for path in STREAMS]
    return calls + [(method, path, "application/json") for method, path in OTHERS]


@pytest.mark.parametrize(("method", "path", "media"), _all_calls())
def test_the_token_of_another_sandbox_opens_nothing(
    e2b: E2BServer, made: dict[str, str], method: str, path: str, media: str
) -> None:
    other = created(e2b.client())
    head = {"Content-Type": media}
    try:
        thief = _client(e2b, made["sandboxID"], other["envdAccessToken"])
        assert thief.request(method, path, content=b"", headers=head).status_code == 401
        nobody = _client(e2b, made["sandboxID"], "")
        assert nobody.request(method, path, content=b"", headers=head).status_code == 401
    finally:
        e2b.client().delete(f"/sandboxes/{other['sandboxID']}")


@pytest.mark.parametrize(("method", "path", "media"), _all_calls())
def test_a_sandbox_that_ended_is_a_502_everywhere(
    e2b: E2BServer, ended: dict[str, str], method: str, path: str, media: str
) -> None:
    client = _client(e2b, ended["sandboxID"], ended["envdAccessToken"])
    answer = client.request(method, path, content=b"", headers={"Content-Type": media})
    assert answer.status_code == 502, answer.text
    assert answer.json()["message"] == "The sandbox was not found"


@pytest.fixture(scope="module")
def ended(e2b: E2BServer) -> dict[str, str]:
    control = e2b.client()
    found = created(control)
    control.delete(f"/sandboxes/{found['sandboxID']}")
    return found

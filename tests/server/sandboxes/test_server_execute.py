"""`POST /execute`: one program, as JSON and as streams; and `/executions` afterwards."""

from __future__ import annotations

import base64
import json

import httpx
import pytest

from kit.servers import ADMIN, Server, error_of, lines_of, running

KEYS = {
    "execution_id", "status", "verdict", "stdout", "stderr", "result", "results", "exit_code",
    "error", "exception", "oom_killed", "time_ms", "execution_time", "artifacts", "truncated",
    "usage", "isolation",
}  # fmt: skip


@pytest.fixture
def client(server: Server) -> httpx.Client:
    return server.client()


def test_answer_has_every_promised_key(client: httpx.Client) -> None:
    answer = client.post("/execute", json={"code": "print('hello')"}).json()
    assert set(answer) >= KEYS
    assert (answer["status"], answer["verdict"]) == ("success", "ok")
    assert (answer["stdout"], answer["exit_code"]) == ("hello\n", 0)
    assert answer["isolation"]["level"] == "namespace"


def test_everything_a_program_may_be_given_arrives(client: httpx.Client) -> None:
    code = (
        "import os, sys\n"
        "def main(n):\n"
        "    data = open('in.bin', 'rb').read()\n"
        "    open('out.bin', 'wb').write(data[::-1])\n"
        "    return [n, sys.stdin.read(), sys.argv[1:], os.environ['COLOUR'], open('t').read()]\n"
    )
    answer = client.post(
        "/execute",
        json={
            "code_b64": base64.b64encode(code.encode()).decode(),
            "lang": "python",
            "stdin": "typed",
            "arguments": {"n": 3},
            "args": ["a", "b"],
            "env": {"COLOUR": "green"},
            "files": {"t": "text", "in.bin": {"content_b64": base64.b64encode(b"\0\1").decode()}},
            "collect": ["out.bin"],
        },
    ).json()
    assert answer["verdict"] == "ok", answer
    assert answer["result"] == [3, "typed", ["a", "b"], "green", "text"]
    (artifact,) = answer["artifacts"]
    assert base64.b64decode(artifact["content_b64"]) == b"\1\0"


@pytest.mark.parametrize(
    ("body", "verdict", "status"),
    [
        ({"code": "while True: pass", "timeout": 0.3}, "wall_time", "timeout"),
        ({"code": "1/0"}, "exception", "error"),
        ({"code": "raise SystemExit(7)"}, "nonzero_exit", "error"),
        pytest.param(
            {"code": "x = bytearray(10**9)", "max_memory": "64m"},
            "memory",
            "error",
            marks=pytest.mark.cgroups,
        ),
        ({"code": "print('x' * 5000)", "limits": {"output_kb": 1}}, "output", "error"),
        ({"code": "echo hi", "language": "bash"}, "ok", "success"),
    ],
)
def test_ends_are_verdicts(
    client: httpx.Client, body: dict[str, object], verdict: str, status: str
) -> None:
    answer = client.post("/execute", json=body).json()
    assert (answer["verdict"], answer["status"]) == (verdict, status), answer


def test_limits_above_the_ceiling_are_clipped_and_echoed() -> None:
    with running(most_running=4) as server:
        answer = server.client().post(
            "/execute", json={"code": "1", "timeout": 9e9, "limits": {"memory_mb": 10**9}}
        )
        body = answer.json()
    assert body["clipped"] == {"wall_s": 9e9, "memory_mb": 10**9}
    assert body["limits"]["wall_s"] == 3600.0
    assert body["limits"]["memory_mb"] < 10**9


def test_ndjson_lines_carry_the_plain_keys(client: httpx.Client) -> None:
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nresult = {'a': 1}\n1/0"
    answer = client.post(
        "/execute", json={"code": code}, headers={"Accept": "application/x-ndjson"}
    )
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = lines_of(answer)
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    kinds = {line["type"]: line for line in lines}
    assert kinds["stdout"]["text"] == "out\n"
    errors = "".join(line["text"] for line in lines if line["type"] == "stderr")
    assert errors.startswith("err\n")
    assert "ZeroDivisionError" in kinds["error"]["error"]
    assert lines[-1]["type"] == "end"
    assert lines[-1]["verdict"] == lines[-1]["outcome"]["verdict"] == "exception"


def test_sse_has_the_number_as_id(client: httpx.Client) -> None:
    answer = client.post(
        "/execute", json={"code": "print(1)"}, headers={"Accept": "text/event-stream"}
    )
    first = answer.text.split("\n\n")[0].split("\n")
    assert first[0] == "id: 1"
    assert first[1] == "event: stdout"
    assert json.loads(first[2].removeprefix("data: ")) == {
        "seq": 1, "type": "stdout", "text": "1\n",
    }  # fmt: skip


def test_execution_is_found_afterwards_as_the_same_object(client: httpx.Client) -> None:
    answer = client.post("/execute", json={"code": "print(2)"})
    found = client.get(f"/executions/{answer.headers['x-execution-id']}")
    assert found.json() == answer.json()


def test_events_of_an_ended_execution_are_read_from_any_number(client: httpx.Client) -> None:
    code = "import sys\nfor n in range(3):\n    print(n); sys.stdout.flush()\n1/0"
    execution = client.post("/execute", json={"code": code}).json()["execution_id"]
    whole = lines_of(client.get(f"/executions/{execution}/events"))
    rest = lines_of(client.get(f"/executions/{execution}/events", params={"after": 2}))
    assert rest == whole[2:]
    again = client.get(
        f"/executions/{execution}/events",
        headers={"Last-Event-ID": "2", "Accept": "text/event-stream"},
    )
    assert again.text.startswith("id: 3\n")


def test_chart_comes_as_an_image_line(client: httpx.Client) -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()"
    lines = lines_of(
        client.post(
            "/execute",
            json={"code": code, "template": "data"},
            headers={"Accept": "application/x-ndjson"},
        )
    )
    images = [line for line in lines if line["type"] == "image"]
    assert images, lines
    assert base64.b64decode(images[0]["image"]).startswith(b"\x89PNG")


def test_idempotency_key_runs_once(client: httpx.Client) -> None:
    body = {"code": "import os\nprint(os.urandom(8).hex())"}
    headers = {"Idempotency-Key": "execute-once"}
    first = client.post("/execute", json=body, headers=headers)
    second = client.post("/execute", json=body, headers=headers)
    assert second.json() == first.json()
    assert second.headers["idempotent-replay"] == "true"
    assert "idempotent-replay" not in first.headers
    other = client.post("/execute", json={"code": "print(3)"}, headers=headers)
    assert other.status_code == 409
    assert error_of(other)["code"] == "idempotency"


def test_idempotency_keys_of_two_tenants_do_not_meet(server: Server) -> None:
    body = {"code": "import os\nprint(os.urandom(8).hex())"}
    headers = {"Idempotency-Key": "shared-word"}
    texts = {
        server.client(key).post("/execute", json=body, headers=headers).json()["stdout"]
        for key in (server.client().headers["x-api-key"], ADMIN)
    }
    assert len(texts) == 2


def test_failure_before_the_start_is_no_stream(client: httpx.Client) -> None:
    answer = client.post(
        "/execute",
        json={"code": "1", "template": "none-such"},
        headers={"Accept": "application/x-ndjson"},
    )
    assert answer.status_code == 404
    assert error_of(answer)["code"] == "not_found"


def test_batch_gives_every_result_and_spoils_nothing(client: httpx.Client) -> None:
    programs: list[dict[str, object]] = [{"code": f"print({n} ** 2)"} for n in range(12)]
    programs[5] = {"code": "", "language": "python"}
    lines = lines_of(client.post("/executions/batch", json={"executions": programs}))
    assert lines[-1] == {"type": "end", "count": 12, "failed": 1}
    by_index = {line["index"]: line for line in lines[:-1]}
    assert sorted(by_index) == list(range(12))
    assert by_index[5]["error"]["code"] == "usage"
    for n in set(range(12)) - {5}:
        assert by_index[n]["stdout"] == f"{n**2}\n"


def test_batch_takes_lines(client: httpx.Client) -> None:
    text = "\n".join(json.dumps({"code": f"print({n})"}) for n in range(5))
    answer = client.post(
        "/executions/batch", content=text, headers={"Content-Type": "application/x-ndjson"}
    )
    lines = lines_of(answer)
    assert lines[-1] == {"type": "end", "count": 5, "failed": 0}
    assert {line["stdout"] for line in lines[:-1]} == {f"{n}\n" for n in range(5)}


@pytest.mark.parametrize("language", ["python", "bash", "javascript"])
def test_scan_is_advice_unless_it_is_asked_to_block(client: httpx.Client, language: str) -> None:
    code = {
        "python": "import subprocess as s\ns.run(['true'])",
        "bash": "echo a\ncurl x || true",
        "javascript": "0;\ntypeof fetch('x')",
    }[language]
    body = {"code": code, "language": language}
    assert client.post("/execute", json={**body, "scan": "block"}).status_code == 422
    if language != "javascript":
        answer = client.post("/execute", json={**body, "scan": "warn"}).json()
        assert {finding["line"] for finding in answer["scan"]["findings"]} >= {2}
        assert answer["verdict"] == "ok"
        assert client.post("/execute", json=body).json()["scan"] is None

"""RAGFlow's door: the answers of its executor manager, from real sandboxes."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.server.doors import FUZZ, b64, bodies, keyless, opened, post, slow_start
from kit.servers import ALICE, BOB, Server, logged

pytestmark = slow_start
KEYS = {
    "status", "stdout", "stderr", "exit_code", "detail", "time_used_ms", "memory_used_kb",
    "resource_limit_type", "unauthorized_access_type", "runtime_error_type", "artifacts", "result",
}  # fmt: skip


@pytest.fixture(scope="module")
def door() -> Iterator[Server]:
    with opened("ragflow") as made:
        yield made


@pytest.fixture
def client(door: Server) -> httpx.Client:
    return door.client(None, Authorization=f"Bearer {ALICE}")


def run(client: httpx.Client, code: str, language: str = "python", **arguments: Any) -> Any:
    body = {"code_b64": b64(code), "language": language, "arguments": arguments}
    answer = client.post("/ragflow/run", json=body)
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == KEYS
    return answer.json()


@pytest.mark.parametrize("path", ["/", "/healthz"])
def test_health_needs_no_key(door: Server, path: str) -> None:
    answer = keyless(door).get(f"/ragflow{path}")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "def main(a, b):\n    print('said')\n    return {'sum': a + b}\n"),
        ("nodejs", "async function main({a, b}) { console.log('said'); return {sum: a + b}; }"),
    ],
)
def test_main_gets_arguments_and_its_value_comes_back(
    client: httpx.Client, language: str, code: str
) -> None:
    answer = run(client, code, language, a=1, b=2)
    assert (answer["status"], answer["exit_code"], answer["stdout"]) == ("success", 0, "said\n")
    assert answer["result"] == {"present": True, "value": {"sum": 3}, "type": "json"}
    assert answer["time_used_ms"] > 0


def test_module_of_the_program_is_not_run_as_main(client: httpx.Client) -> None:
    code = "def main():\n    return __name__\nif __name__ == '__main__':\n    print('twice')\n"
    answer = run(client, code)
    assert (answer["stdout"], answer["result"]["value"] != "__main__") == ("", True)


def test_none_is_a_result_in_python(client: httpx.Client) -> None:
    assert run(client, "def main(): pass")["result"] == {
        "present": True,
        "value": None,
        "type": "json",
    }


@pytest.mark.parametrize(
    ("language", "code", "said"),
    [
        ("python", "def main():\n    1/0\n", "ZeroDivisionError"),
        ("python", "def other(): pass", "cannot import name 'main'"),
        ("python", "def main():\n    return {1}\n", "not JSON serializable"),
        ("python", "def main(x): pass", "missing 1 required positional argument"),
        ("nodejs", "function main() {}", "main() must return a value. Use null for an empty"),
        ("nodejs", "function main() { return () => 1 }", "no JSON value"),
    ],
)
def test_failed_program_is_a_program_error(
    client: httpx.Client, language: str, code: str, said: str
) -> None:
    answer = run(client, code, language)
    assert (answer["status"], answer["exit_code"]) == ("program_error", 1)
    assert (answer["runtime_error_type"], answer["stdout"]) == ("nonzero_exit", "")
    assert said in answer["stderr"]


def test_traceback_shows_lines_of_the_program(client: httpx.Client) -> None:
    assert (
        "raise KeyError('here')"
        in run(client, "def main():\n    raise KeyError('here')\n")["stderr"]
    )


def test_signal_is_its_own_kind_of_error(client: httpx.Client) -> None:
    answer = run(client, "import os\ndef main():\n    os.kill(os.getpid(), 11)\n")
    assert (answer["status"], answer["exit_code"]) == ("program_error", 139)
    assert answer["runtime_error_type"] == "signalled"


@pytest.mark.parametrize(
    ("code", "kind", "exit_code", "stderr"),
    [
        ("import time\ndef main():\n    print('x')\n    time.sleep(60)\n", "time", -124,
         "Execution timeout"),
        ("def main():\n    return len(bytearray(2 << 30))\n", "memory", -137,
         "Memory limit exceeded (killed by OOM)"),
        ("def main():\n    print('x' * 3_000_000)\n", "output", -1, "Output limit exceeded"),
    ],
)  # fmt: skip
def test_limit_is_named_by_its_verdict(
    client: httpx.Client, code: str, kind: str, exit_code: int, stderr: str
) -> None:
    answer = run(client, code)
    assert (answer["status"], answer["resource_limit_type"]) == ("resource_limit_exceeded", kind)
    assert (answer["exit_code"], answer["stderr"], answer["stdout"]) == (exit_code, stderr, "")


def test_stderr_chooses_no_status(client: httpx.Client) -> None:
    code = (
        "import sys\ndef main():\n    print('Permission denied', file=sys.stderr)\n    return 1\n"
    )
    answer = run(client, code)
    assert (answer["status"], answer["unauthorized_access_type"]) == ("success", None)


def test_program_has_no_network(client: httpx.Client) -> None:
    code = "import socket\ndef main():\n    socket.create_connection(('192.0.2.1', 80), 2)\n"
    assert run(client, code)["status"] == "program_error"


def test_artifacts_are_files_of_the_folder_with_known_endings(client: httpx.Client) -> None:
    code = (
        "import os\ndef main():\n"
        "    for name in ('a.png', 'b.CSV', 'c.exe', '.d.png', 'e.json'):\n"
        "        open('artifacts/' + name, 'w').write('' if name[0] == 'e' else name)\n"
        "    os.mkdir('artifacts/sub'); open('artifacts/sub/f.png', 'w').write('f')\n"
    )
    found = {each["name"]: each for each in run(client, code)["artifacts"]}
    assert set(found) == {"a.png", "b.CSV"}
    assert base64.b64decode(found["a.png"]["content_b64"]) == b"a.png"
    assert (found["a.png"]["mime_type"], found["a.png"]["size"]) == ("image/png", 5)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, ["body", "code_b64"]),
        ({"code_b64": "no base64"}, ["body", "code_b64"]),
        ({"code_b64": b64(b"\xff")}, ["body", "code_b64"]),
        ({"code_b64": "", "language": "ruby"}, ["body", "language"]),
        ({"code_b64": "", "arguments": []}, ["body", "arguments"]),
    ],
)
def test_bad_body_is_422_as_of_fastapi(client: httpx.Client, body: object, place: object) -> None:
    answer = client.post("/ragflow/run", json=body)
    assert answer.status_code == 422
    (fault,) = answer.json()["detail"]
    assert fault["loc"] == place
    assert {"type", "msg"} <= set(fault)


def test_what_is_no_json_is_422(client: httpx.Client) -> None:
    answer = client.post("/ragflow/run", content=b"{", headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["detail"][0]["type"]) == (422, "json_invalid")


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}])
def test_without_a_key_nothing_runs(door: Server, headers: dict[str, str]) -> None:
    answer = keyless(door).post("/ragflow/run", json={"code_b64": ""}, headers=headers)
    assert answer.status_code == 401
    assert answer.json() == {"detail": "Missing or invalid sandbox executor API token"}


def test_other_header_for_the_key_is_taken_too(door: Server) -> None:
    client = door.client(None, **{"X-Sandbox-Token": ALICE})
    assert run(client, "def main(): return 1")["status"] == "success"


def test_run_belongs_to_the_tenant_of_the_key(door: Server) -> None:
    named = {"Authorization": f"Bearer {ALICE}", "X-Request-Id": "owned"}
    run(door.client(None, **named), "def main(): return 1")
    execution = logged(door, lambda each: each.get("request_id") == "owned")["execution_id"]
    assert door.client().get(f"/executions/{execution}").status_code == 200
    assert door.client(BOB).get(f"/executions/{execution}").status_code == 404


@pytest.mark.parametrize(("path", "status"), [("/nothing", 404), ("/run", 405)])
def test_unknown_path_is_refused_in_its_shape(client: httpx.Client, path: str, status: int) -> None:
    answer = client.get(f"/ragflow{path}")
    assert (answer.status_code, set(answer.json())) == (status, {"detail"})


@FUZZ
@given(
    body=bodies(
        code_b64=st.sampled_from([b64("def main(**k): return k"), "!"]),
        language=st.sampled_from(["python", "nodejs"]),
        arguments=st.dictionaries(st.text(max_size=4), st.integers()),
    )
)
def test_no_body_is_a_failure_of_the_server(client: httpx.Client, body: object) -> None:
    answer = post(client, "/ragflow/run", body)
    assert answer.status_code in {200, 422}
    assert set(answer.json()) in ({"detail"}, KEYS)

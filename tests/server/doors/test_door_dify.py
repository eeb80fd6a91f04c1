"""Dify's door: the answers of its sandbox service, from real sandboxes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.server.doors import FULL, FUZZ, bodies, fill, keyless, opened, post, slow_start
from kit.servers import ALICE, Server

pytestmark = slow_start
RUN = "/dify/v1/sandbox/run"


@pytest.fixture(scope="module")
def door() -> Iterator[Server]:
    with opened("dify") as made:
        yield made


@pytest.fixture
def client(door: Server) -> httpx.Client:
    return door.client(ALICE)


def run(client: httpx.Client, code: str, language: str = "python3", **more: object) -> Any:
    """Run code as Dify's client does, which always asks for a network."""
    body = {"language": language, "code": code, "preload": "", "enable_network": True, **more}
    answer = client.post(RUN, json=body)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["code"], answer.json()["message"]) == (0, "success")
    data = answer.json()["data"]
    assert set(data) == {"stdout", "stderr", "error", "exit_code"}
    return data


def test_health_is_ok(door: Server) -> None:
    answer = keyless(door).get("/dify/health")
    assert (answer.status_code, answer.text) == (200, '"ok"')


@pytest.mark.parametrize(
    ("language", "code"),
    [
        (
            "python3",
            "import sys\nsys.stdout.write('<<R>>\\r\\n\\t\\u00e9')\nprint('w', file=sys.stderr)",
        ),
        ("nodejs", "process.stdout.write('<<R>>\\r\\n\\t\\u00e9'); console.error('w')"),
    ],
)
def test_stdout_is_exactly_what_was_written(client: httpx.Client, language: str, code: str) -> None:
    data = run(client, code, language)
    assert (data["stdout"], data["stderr"]) == ("<<R>>\r\n\té", "w\n")
    assert (data["error"], data["exit_code"]) == ("", 0)


def test_last_expression_does_not_appear_in_stdout(client: httpx.Client) -> None:
    assert run(client, "print('a')\n1 + 1")["stdout"] == "a\n"


def test_asking_for_a_network_is_not_refused_and_gives_none(client: httpx.Client) -> None:
    code = (
        "import socket\n"
        "try: socket.create_connection(('192.0.2.1', 80), 2)\n"
        "except OSError: print('no')"
    )
    assert run(client, code, enable_network=True)["stdout"] == "no\n"


def test_preload_is_not_run(client: httpx.Client) -> None:
    assert run(client, "print('code')", preload="print('preload')")["stdout"] == "code\n"


def test_exit_code_and_stderr_are_the_error(client: httpx.Client) -> None:
    data = run(client, "import sys; print('why', file=sys.stderr); sys.exit(7)")
    assert data["exit_code"] == 7
    assert data["error"] == "process exited with code 7\nwhy\n"


def test_exception_is_an_error_with_its_traceback(client: httpx.Client) -> None:
    data = run(client, "print('before')\n1/0")
    assert (data["exit_code"], data["stdout"]) == (1, "before\n")
    assert data["error"].startswith("process exited with code 1\nTraceback")


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import time; time.sleep(60)", "error: timeout\n"),
        ("x = bytearray(4 << 30)", "error: signal: killed\n"),
        ("import os; os.kill(os.getpid(), 11)", "error: signal: segmentation fault\n"),
        ("print('x' * 3_000_000)", "error: output limit exceeded\n"),
    ],
)
def test_end_by_a_limit_or_signal_is_minus_one(client: httpx.Client, code: str, cause: str) -> None:
    data = run(client, code)
    assert data["exit_code"] == -1
    assert data["error"].startswith(f"process exited with code -1\n{cause}")


def test_unsupported_language_is_400(client: httpx.Client) -> None:
    answer = client.post(RUN, json={"language": "ruby", "code": "1"})
    assert answer.status_code == 400
    assert answer.json() == {"code": -400, "message": "unsupported language", "data": None}


@pytest.mark.parametrize("body", [{}, {"language": "python3"}, {"language": "python3", "code": ""}])
def test_missing_field_is_400_in_json_and_200_in_a_form(
    client: httpx.Client, body: dict[str, str]
) -> None:
    for sent, status in (({"json": body}, 400), ({"data": body}, 200)):
        answer = client.post(RUN, **sent)  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["code"]) == (status, -400)
        assert "failed on the 'required' tag" in answer.json()["message"]


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"", "EOF"), (b"{", "invalid JSON"), (b'{"code": 1}', "cannot unmarshal number"),
     (b"[]", "cannot unmarshal array")],
)  # fmt: skip
def test_what_cannot_be_bound_is_400(client: httpx.Client, data: bytes, said: str) -> None:
    answer = client.post(RUN, content=data, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (400, -400)
    assert said in answer.json()["message"]


def test_form_is_taken(client: httpx.Client) -> None:
    answer = client.post(RUN, data={"language": "python3", "code": "print(1)"})
    assert answer.json()["data"]["stdout"] == "1\n"


@pytest.mark.parametrize("headers", [{}, {"X-Api-Key": "wrong"}])
def test_without_a_key_the_answer_is_empty(door: Server, headers: dict[str, str]) -> None:
    answer = keyless(door).post(RUN, json={}, headers=headers)
    assert (answer.status_code, answer.content) == (401, b"")


def test_dependencies_are_those_of_the_template(client: httpx.Client) -> None:
    for path in ("dependencies", "dependencies/refresh"):
        answer = client.get(f"/dify/v1/sandbox/{path}?language=python3").json()
        found = {each["name"].lower(): each["version"] for each in answer["data"]["dependencies"]}
        assert found["ipython"][0].isdigit()


def test_dependencies_cannot_be_changed(client: httpx.Client) -> None:
    answer = client.post("/dify/v1/sandbox/dependencies/update", json={"language": "python3"})
    assert (answer.json()["code"], answer.json()["data"]) == (-400, None)


def test_unknown_path_is_refused_as_by_gin(client: httpx.Client) -> None:
    answer = client.get("/dify/nothing")
    assert (answer.status_code, answer.text) == (404, "404 page not found")


def test_full_server_is_503() -> None:
    with opened("dify", more=FULL) as full:
        fill(full)
        answer = full.client(ALICE).post(RUN, json={"language": "python3", "code": "1"})
    assert answer.status_code == 503
    assert answer.json() == {"code": -503, "message": "Too many requests", "data": None}


@FUZZ
@given(
    body=bodies(
        language=st.sampled_from(["python3", "nodejs", "x"]),
        code=st.sampled_from(["print(1)", "\ud800", "\0"]),
        enable_network=st.booleans(),
        preload=st.text(),
    )
)
def test_no_body_is_a_failure_of_the_server(client: httpx.Client, body: object) -> None:
    answer = post(client, RUN, body)
    assert answer.status_code in {200, 400}
    assert set(answer.json()) == {"code", "message", "data"}
    assert answer.json()["code"] in {0, -400}

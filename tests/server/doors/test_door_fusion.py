"""SandboxFusion's door: the answers of its server, from real sandboxes."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import require_command
from kit.server.doors import FULL, FUZZ, b64, bodies, fill, keyless, opened, post, slow_start
from kit.servers import ALICE, Server

pytestmark = slow_start
CODE_KEYS = {"status", "message", "compile_result", "run_result", "executor_pod_name", "files"}
BOOK_KEYS = {"status", "message", "driver", "cells", "executor_pod_name", "files"}


@pytest.fixture(scope="module")
def door() -> Iterator[Server]:
    with opened("fusion", lines='tenant = "rl"') as made:
        yield made


@pytest.fixture
def client(door: Server) -> httpx.Client:
    return keyless(door)


def run(client: httpx.Client, code: str, language: str = "python", **more: object) -> Any:
    answer = client.post("/fusion/run_code", json={"code": code, "language": language, **more})
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == CODE_KEYS
    return answer.json()


def book(client: httpx.Client, *cells: str, **more: object) -> Any:
    answer = client.post("/fusion/run_jupyter", json={"cells": list(cells), **more})
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == BOOK_KEYS
    return answer.json()


def test_ping_is_pong(client: httpx.Client) -> None:
    answer = client.get("/fusion/v1/ping")
    assert (answer.status_code, answer.json()) == (200, "pong")


def test_program_that_ends_well_is_a_success(client: httpx.Client) -> None:
    answer = run(client, "print(input())", stdin="typed")
    assert (answer["status"], answer["message"], answer["compile_result"]) == ("Success", "", None)
    ran = answer["run_result"]
    assert (ran["status"], ran["return_code"]) == ("Finished", 0)
    assert (ran["stdout"], ran["stderr"]) == ("typed\n", "")
    assert ran["execution_time"] > 0


def test_files_go_in_and_come_out(client: httpx.Client) -> None:
    code = "open('d/out', 'wb').write(open('d/in', 'rb').read()[::-1])"
    files = {"d/in": b64(b"\0\xff"), "skipped": None}
    answer = run(client, code, files=files, fetch_files=["d/out", "./d/out", "missing"])
    assert {path: base64.b64decode(each) for path, each in answer["files"].items()} == {
        "d/out": b"\xff\0",
        "./d/out": b"\xff\0",
    }


def test_exit_code_is_a_failure_without_message(client: httpx.Client) -> None:
    answer = run(client, "import sys; sys.exit(3)")
    assert (answer["status"], answer["message"]) == ("Failed", "")
    assert (answer["run_result"]["status"], answer["run_result"]["return_code"]) == ("Finished", 3)


def test_signal_is_a_negative_return_code(client: httpx.Client) -> None:
    answer = run(client, "import os; os.kill(os.getpid(), 11)")
    assert (answer["status"], answer["run_result"]["return_code"]) == ("Failed", -11)


def test_time_limit_has_no_return_code(client: httpx.Client) -> None:
    code = "import time; print('a', flush=True); time.sleep(60)"
    answer = run(client, code, run_timeout=0.5)
    assert (answer["status"], answer["message"]) == ("Failed", "")
    ran = answer["run_result"]
    assert (ran["status"], ran["return_code"], ran["stdout"]) == ("TimeLimitExceeded", None, "a\n")


@pytest.mark.parametrize(
    ("code", "more", "said"),
    [
        ("x = bytearray(1 << 30)", {"memory_limit_MB": 64}, "memory limit of 64 MiB"),
        ("print('x' * 3_000_000)", {}, "output"),
    ],
)
def test_other_limits_are_failures_with_a_message(
    client: httpx.Client, code: str, more: dict[str, Any], said: str
) -> None:
    answer = run(client, code, **more)
    assert (answer["status"], answer["run_result"]["status"]) == ("Failed", "Finished")
    assert said in answer["message"]


def test_compile_has_a_result_of_its_own(client: httpx.Client) -> None:
    require_command("g++")
    good = run(client, "int main() { return 0; }", "cpp")
    assert (good["status"], good["compile_result"]["return_code"]) == ("Success", 0)
    bad = run(client, "int main() { return", "cpp")
    assert (bad["status"], bad["run_result"]) == ("Failed", None)
    assert (bad["compile_result"]["status"], bad["compile_result"]["return_code"]) == (
        "Finished",
        1,
    )
    assert "error:" in bad["compile_result"]["stderr"]


def test_php_needs_no_tag(client: httpx.Client) -> None:
    require_command("php")
    assert run(client, "echo 1 + 1;", "php")["run_result"]["stdout"] == "2"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"language": "lean"}, "lean is not served"),
        ({"language": "x"}, "x is not served"),
        ({"run_timeout": 100_000}, "above this server's ceiling"),
        ({"memory_limit_MB": 10**9}, "above this server's ceiling"),
        ({"memory_limit_MB": 1}, "out of bounds"),
        ({"files": {"a": "no base64"}}, "base64"),
        ({"files": {"../a": ""}}, "working directory"),
    ],
)
def test_what_cannot_be_done_is_a_sandbox_error(
    client: httpx.Client, body: dict[str, Any], said: str
) -> None:
    answer = run(client, "1", **{"language": "python", **body})
    assert (answer["status"], answer["run_result"]) == ("SandboxError", None)
    assert said in answer["message"]


def test_default_times_fit_any_ceiling(client: httpx.Client) -> None:
    assert run(client, "print(1)")["status"] == "Success"  # 10 s; the ceiling here is 4 s


def test_program_has_no_network(client: httpx.Client) -> None:
    code = "import socket; socket.create_connection(('192.0.2.1', 80), 2)"
    assert run(client, code)["status"] == "Failed"


@pytest.mark.parametrize("body", [{}, {"code": 1, "language": "python"}, {"code": "1"}, []])
def test_bad_body_is_422_as_of_fastapi(client: httpx.Client, body: object) -> None:
    answer = client.post("/fusion/run_code", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"][0] == "body"


def test_notebook_keeps_its_state_and_shows_results(client: httpx.Client) -> None:
    answer = book(client, "a = 20", "a + 1", "print(a); 1/0", "a + 2")
    assert (answer["status"], answer["driver"]["return_code"]) == ("Success", 0)
    cells = answer["cells"]
    assert [each["display"] for each in cells] == [
        [],
        [{"text/plain": "21"}],
        [],
        [{"text/plain": "22"}],
    ]
    assert (cells[2]["stdout"], cells[2]["stderr"]) == ("20\n", "")
    (error,) = cells[2]["error"]
    assert (error["ename"], error["evalue"]) == ("ZeroDivisionError", "division by zero")
    assert any("1/0" in line for line in error["traceback"])


def test_notebook_has_files(client: httpx.Client) -> None:
    answer = book(
        client,
        "open('out', 'w').write(open('in').read() * 2)",
        files={"in": b64("ab")},
        fetch_files=["out", "missing"],
    )
    assert answer["files"] == {"out": b64("abab")}


@pytest.mark.parametrize("times", [{"total_timeout": 1}, {"cell_timeout": 1}])
def test_notebook_that_takes_too_long_has_no_cells(
    client: httpx.Client, times: dict[str, int]
) -> None:
    answer = book(client, "1", "import time; time.sleep(60)", **times)
    assert (answer["status"], answer["cells"]) == ("Failed", [])
    assert answer["driver"]["status"] == "TimeLimitExceeded"


def test_notebook_leaves_no_sandbox(door: Server) -> None:
    client = door.client(ALICE)
    assert book(client, "1/0")["status"] == "Success"
    running = client.get("/sandboxes?state=running")
    assert running.json() == {"sandboxes": [], "next": None}


def test_without_tenant_a_key_is_needed_and_a_wrong_one_never_stands_for_it(
    door: Server,
) -> None:
    wrong = door.client("wrong").post("/fusion/run_code", json={"code": "1", "language": "python"})
    assert wrong.status_code == 401
    assert set(wrong.json()) == {"detail"}
    with opened("fusion") as closed:
        answer = keyless(closed).post("/fusion/run_code", json={})
        assert answer.status_code == 401
        assert run(closed.client(ALICE), "print(1)")["status"] == "Success"


def test_full_server_is_no_answer_so_that_the_client_tries_again() -> None:
    with opened("fusion", more=FULL) as full:
        fill(full)
        client = full.client(ALICE)
        answer = client.post("/fusion/run_code", json={"code": "1", "language": "python"})
    assert answer.status_code == 429
    assert "retry-after" in answer.headers


@FUZZ
@given(
    body=bodies(
        code=st.just("print(1)"),
        language=st.sampled_from(["python", "nodejs", "cpp", "lean"]),
        run_timeout=st.floats(-1, 5),
        memory_limit_MB=st.integers(-5, 600),
        stdin=st.text(),
        files=st.dictionaries(st.text(max_size=5), st.just("")),
        fetch_files=st.lists(st.text(max_size=5), max_size=2),
    )
)
def test_no_body_is_a_failure_of_the_server(client: httpx.Client, body: object) -> None:
    answer = post(client, "/fusion/run_code", body)
    assert answer.status_code in {200, 422}
    assert set(answer.json()) in ({"detail"}, CODE_KEYS)


@FUZZ
@given(
    body=bodies(
        cells=st.lists(st.sampled_from(["1", "1/0", ""]), max_size=2),
        total_timeout=st.floats(-1, 3),
        files=st.dictionaries(st.text(max_size=5), st.just("")),
        fetch_files=st.lists(st.text(max_size=5), max_size=2),
    )
)
def test_no_notebook_is_a_failure_of_the_server(client: httpx.Client, body: object) -> None:
    answer = post(client, "/fusion/run_jupyter", body)
    assert answer.status_code in {200, 422}
    assert set(answer.json()) in ({"detail"}, BOOK_KEYS)

"""Judge0's door: submissions and their statuses, from real sandboxes."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import require_command
from kit.receivers import listening
from kit.server.doors import FULL, FUZZ, SHORT, b64, bodies, fill, keyless, opened, post, slow_start
from kit.servers import ALICE, BOB, Server
from kit.waiting import wait_until

pytestmark = slow_start
PATH = "/judge0/submissions"
DEFAULT = {
    "token", "time", "memory", "stdout", "stderr", "compile_output", "message", "status",
}  # fmt: skip
PYTHON, C = 71, 50


@pytest.fixture(scope="module")
def door() -> Iterator[Server]:
    with opened("judge0") as made:
        yield made


@pytest.fixture
def client(door: Server) -> httpx.Client:
    return door.client(None, **{"X-Auth-Token": ALICE})


def judged(client: httpx.Client, code: str, query: str = "", **more: object) -> Any:
    body = {"source_code": code, "language_id": PYTHON, **more}
    answer = client.post(f"{PATH}?wait=true{query}", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def faults(client: httpx.Client, **body: object) -> Any:
    answer = client.post(PATH, json={"source_code": "1", "language_id": PYTHON, **body})
    assert answer.status_code == 422, answer.text
    return answer.json()


def test_accepted_submission_has_the_default_fields(client: httpx.Client) -> None:
    found = judged(client, "print(input()[::-1])", stdin="abc", expected_output="cba  \n\n")
    assert set(found) == DEFAULT
    assert found["status"] == {"id": 3, "description": "Accepted"}
    assert (found["stdout"], found["stderr"], found["message"]) == ("cba\n", None, None)
    assert float(found["time"]) >= 0
    assert found["memory"] > 0


@pytest.mark.parametrize(
    ("code", "more", "status", "message"),
    [
        ("print(1)", {"expected_output": "2"}, 4, None),
        ("print(1)", {}, 3, None),
        ("while True: pass", {"cpu_time_limit": 0.3}, 5, "Time limit exceeded"),
        ("import time; time.sleep(60)", {"wall_time_limit": 1}, 5, "(wall clock)"),
        ("import os; os.kill(os.getpid(), 11)", {}, 7, "Caught fatal signal 11"),
        ("import os; os.kill(os.getpid(), 8)", {}, 9, "Caught fatal signal 8"),
        ("import os; os.abort()", {}, 10, "Caught fatal signal 6"),
        ("import sys; sys.exit(3)", {"expected_output": "x"}, 11, "Exited with error status 3"),
        ("1/0", {}, 11, "Exited with error status 1"),
        ("x = bytearray(1 << 30)", {"memory_limit": 65536}, 12, "memory limit of 64 MiB"),
        ("print('x' * 3_000_000)", {}, 12, "output"),
    ],
)
def test_end_has_its_status(
    client: httpx.Client, code: str, more: dict[str, Any], status: int, message: str | None
) -> None:
    found = judged(client, code, **more)
    assert found["status"]["id"] == status, found
    assert (message is None) == (found["message"] is None)
    assert (message or "") in (found["message"] or "")


def test_compile_error_is_a_status_with_the_compilers_words(client: httpx.Client) -> None:
    require_command("gcc")
    found = judged(client, "int main() {", language_id=C)
    assert found["status"] == {"id": 6, "description": "Compilation Error"}
    assert "error" in found["compile_output"]
    assert (found["stdout"], found["time"]) == (None, None)


def test_texts_are_base64_only_where_the_query_says_so(client: httpx.Client) -> None:
    body = {"source_code": b64("print(input())"), "language_id": PYTHON, "stdin": b64("x" * 60)}
    answer = client.post(f"{PATH}?wait=true&base64_encoded=true&fields=stdout,stdin", json=body)
    found = answer.json()
    assert set(found) == {"stdout", "stdin"}
    assert base64.b64decode(found["stdout"]) == b"x" * 60 + b"\n"
    assert found["stdin"].endswith("\n")
    assert max(map(len, found["stdin"].splitlines())) == 60


def test_all_fields_show_what_was_asked_for_and_what_applied(client: httpx.Client) -> None:
    found = judged(client, "1", "&fields=*", command_line_arguments="a 'b c'")
    assert found["language"]["id"] == found["language_id"] == PYTHON
    assert (found["source_code"], found["exit_code"], found["exit_signal"]) == ("1", 0, None)
    assert (found["command_line_arguments"], found["number_of_runs"]) == ("a 'b c'", 1)
    assert found["created_at"] <= found["finished_at"]


def test_arguments_options_and_runs_are_honoured(client: httpx.Client) -> None:
    found = judged(client, "import sys; print(sys.argv[1:])", command_line_arguments="a 'b c'")
    assert found["stdout"] == "['a', 'b c']\n"
    require_command("gcc")
    source = '#include <stdio.h>\nint main() { printf("%d", X); }'
    assert judged(client, source, language_id=C, compiler_options="-DX=7")["stdout"] == "7"
    assert judged(client, "print(1)", number_of_runs=2)["status"]["id"] == 3


def test_stderr_goes_to_stdout_on_wish(client: httpx.Client) -> None:
    code = "import sys\nprint(1, flush=True)\nprint(2, file=sys.stderr)"
    found = judged(client, code, redirect_stderr_to_stdout=True)
    assert (sorted(found["stdout"].split()), found["stderr"]) == (["1", "2"], None)


def test_additional_files_are_beside_the_program(client: httpx.Client) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("d/a.txt", "packed")
    found = judged(client, "print(open('d/a.txt').read())", additional_files=b64(packed.getvalue()))
    assert found["stdout"] == "packed\n"


def test_archive_that_grows_without_bound_is_refused(client: httpx.Client) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(64 << 20))
    (text,) = faults(client, additional_files=b64(packed.getvalue()))["additional_files"]
    assert "bytes unpacked" in text


def test_submission_is_found_by_its_token_until_it_has_ended(client: httpx.Client) -> None:
    code = "import time; time.sleep(1); print('done')"
    made = client.post(PATH, json={"source_code": code, "language_id": PYTHON})
    assert (made.status_code, set(made.json())) == (201, {"token"})
    place = f"{PATH}/{made.json()['token']}"
    assert client.get(place).json()["status"]["id"] in {1, 2}
    wait_until(lambda: client.get(place).json()["status"]["id"] > 2, "the submission's end")
    assert client.get(place).json()["stdout"] == "done\n"
    assert client.delete(place).status_code == 200
    assert client.get(place).status_code == 404


def test_other_tenant_finds_no_submission(door: Server, client: httpx.Client) -> None:
    token = judged(client, "1")["token"]
    other = door.client(None, **{"X-Auth-Token": BOB})
    assert client.get(f"{PATH}/{token}").status_code == 200
    assert other.get(f"{PATH}/{token}").status_code == 404
    assert other.delete(f"{PATH}/{token}").status_code == 404
    assert other.get(f"{PATH}/batch?tokens={token}").json() == {"submissions": [None]}
    assert other.get(PATH).json()["meta"]["total_count"] == 0


def test_batch_has_tokens_and_faults_in_order(client: httpx.Client) -> None:
    items = [
        {"source_code": "print(1)", "language_id": PYTHON},
        {"language_id": PYTHON},
        {"source_code": "print(2)", "language_id": PYTHON},
    ]
    made = client.post(f"{PATH}/batch", json={"submissions": items})
    assert made.status_code == 201
    first, fault, last = made.json()
    assert fault == {"source_code": ["can't be blank"]}
    query = f"{PATH}/batch?tokens={first['token']},none,{last['token']}&fields=stdout,status"

    def found() -> list[Any]:
        shown: list[Any] = client.get(query).json()["submissions"]
        return shown

    wait_until(lambda: all(each is None or each["status"]["id"] > 2 for each in found()), "ends")
    assert [each and each["stdout"] for each in found()] == ["1\n", None, "2\n"]


@pytest.mark.parametrize(
    ("items", "status", "key"), [([], 400, "error"), ([{}] * 21, 400, "error")]
)
def test_batch_is_bounded(client: httpx.Client, items: object, status: int, key: str) -> None:
    answer = client.post(f"{PATH}/batch", json={"submissions": items})
    assert (answer.status_code, set(answer.json())) == (status, {key})
    assert client.get(f"{PATH}/batch").status_code == 400


def test_batch_without_a_valid_submission_is_422(client: httpx.Client) -> None:
    assert client.post(f"{PATH}/batch", json={"submissions": [{}]}).status_code == 422


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"source_code": ""}, "source_code", "can't be blank"),
        ({"language_id": None}, "language_id", "can't be blank"),
        ({"language_id": 1}, "language_id", "language with id 1 doesn't exist"),
        ({"cpu_time_limit": 100}, "cpu_time_limit", "must be less than or equal to 4"),
        ({"cpu_time_limit": "x"}, "cpu_time_limit", "is not a number"),
        ({"wall_time_limit": 0}, "wall_time_limit", "must be greater than or equal to 1"),
        ({"memory_limit": 1}, "memory_limit", "must be greater than or equal to 16384"),
        ({"number_of_runs": 21}, "number_of_runs", "must be less than or equal to 20"),
        ({"stack_limit": 1000}, "stack_limit", "cannot be set on this server"),
        ({"enable_network": True}, "enable_network", "enabling network is not allowed"),
        ({"compiler_options": "-x" * 300}, "compiler_options",
         "is too long (maximum is 512 characters)"),
        ({"language_id": C, "compiler_options": "-fplugin=x"}, "compiler_options",
         "-fplugin=x is not permitted on this server"),
        ({"additional_files": "AAAA"}, "additional_files",
         "is not a zip archive that can be read"),
        ({"callback_url": "http://example.org/"}, "callback_url", "callbacks are not allowed"),
        ({"stdin": 1}, "stdin", "is not a text"),
    ],
)  # fmt: skip
def test_fault_names_its_field(
    client: httpx.Client, body: dict[str, object], field: str, message: str
) -> None:
    assert faults(client, **body)[field] == [message]


def test_unknown_field_in_the_query_is_400(client: httpx.Client) -> None:
    answer = client.get(f"{PATH}/x?fields=stdout")
    assert answer.status_code == 404
    answer = client.post(f"{PATH}?fields=a,stdout", json={})
    assert (answer.status_code, answer.json()) == (400, {"error": "invalid fields: [a]"})


@pytest.mark.parametrize("headers", [{}, {"X-Auth-Token": "wrong"}])
def test_without_a_key_nothing_is_judged(door: Server, headers: dict[str, str]) -> None:
    client = keyless(door)
    for method, path in (("POST", PATH), ("GET", f"{PATH}/x"), ("POST", "/judge0/authenticate")):
        answer = client.request(method, path, headers=headers)
        assert (answer.status_code, answer.content) == (401, b"")


def test_key_is_authenticated_and_only_an_admins_authorized(
    door: Server, client: httpx.Client
) -> None:
    assert client.post("/judge0/authenticate").status_code == 200
    assert client.post("/judge0/authorize").status_code == 403


def test_facts_need_no_key(door: Server) -> None:
    client = keyless(door)
    found = client.get("/judge0/languages").json()
    python = next(each for each in found if each["id"] == PYTHON)
    assert python["name"].startswith("Python (3.")
    assert client.get(f"/judge0/languages/{PYTHON}").json()["source_file"] == "main.py"
    assert client.get("/judge0/languages/1").status_code == 404
    statuses = client.get("/judge0/statuses").json()
    assert statuses[2] == {"id": 3, "description": "Accepted"}
    assert len(statuses) == 14
    assert client.get("/judge0/config_info").json()["max_wall_time_limit"] == 4


def test_list_has_pages(client: httpx.Client) -> None:
    tokens = [judged(client, "1")["token"] for _ in range(2)]
    found = client.get(f"{PATH}?page=1&per_page=2&fields=token").json()
    assert [each["token"] for each in found["submissions"]] == tokens[::-1]
    assert (found["meta"]["current_page"], found["meta"]["prev_page"]) == (1, None)
    assert client.get(f"{PATH}?page=x").status_code == 400


def test_full_queue_is_503() -> None:
    with opened("judge0", more=FULL) as full:
        fill(full)
        client = full.client(None, **{"X-Auth-Token": ALICE})
        answer = client.post(PATH, json={"source_code": "1", "language_id": PYTHON})
    assert (answer.status_code, answer.json()) == (503, {"error": "queue is full"})


async def _put_by(more: dict[str, Any]) -> Any:
    async with listening() as receiver:
        with opened("judge0", more=SHORT, **more) as made:
            client = made.client(None, **{"X-Auth-Token": ALICE})
            body = {"source_code": "print('x')", "language_id": PYTHON}
            async with httpx.AsyncClient(headers=client.headers, timeout=40) as sending:
                url = f"{made.address}{PATH}?wait=true"
                await sending.post(url, json={**body, "callback_url": receiver.url()})
            await asyncio.to_thread(wait_until, lambda: receiver.received, "the callback")
        return receiver.received[0]


def test_result_is_put_to_the_callback() -> None:
    permitted: dict[str, Any] = {"webhooks": True, "webhook_networks": ["127.0.0.0/8"]}
    received = asyncio.run(_put_by(permitted))
    assert received.method == "PUT"
    assert received.headers["cellwall-signature"].startswith("t=")
    found = json.loads(received.body)
    assert set(found) == DEFAULT
    assert base64.b64decode(found["stdout"]) == b"x\n"


@FUZZ
@given(
    body=bodies(
        source_code=st.sampled_from(["print(1)", "\ud800"]),
        language_id=st.sampled_from([PYTHON, 46, 1, "71", 71.5]),
        stdin=st.text(),
        cpu_time_limit=st.floats(-1, 5),
        memory_limit=st.integers(0, 600_000),
        command_line_arguments=st.text(),
        additional_files=st.text(),
    )
)
def test_no_body_is_a_failure_of_the_server(client: httpx.Client, body: object) -> None:
    for query in ("", "?base64_encoded=true"):
        answer = post(client, f"{PATH}{query}", body)
        assert answer.status_code in {201, 400, 422}
        assert isinstance(answer.json(), dict)

"""Piston's door: the answers of its API, from real sandboxes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import require_command
from kit.server.doors import FUZZ, bodies, keyless, opened, post, slow_start
from kit.servers import ALICE, Server

pytestmark = slow_start
EXECUTE = "/piston/api/v2/execute"
STAGE = {
    "stdout", "stderr", "output", "code", "signal", "message", "status", "cpu_time", "wall_time",
    "memory",
}  # fmt: skip


@pytest.fixture(scope="module")
def door() -> Iterator[Server]:
    with opened("piston", lines='tenant = "chat"') as made:
        yield made


@pytest.fixture
def client(door: Server) -> httpx.Client:
    return keyless(door)


def body(*contents: str, **more: object) -> dict[str, object]:
    files = [{"content": each} for each in contents]
    return {"language": "python", "version": "*", "files": files, **more}


def execute(client: httpx.Client, *contents: str, **more: object) -> Any:
    answer = client.post(EXECUTE, json=body(*contents, **more))
    assert answer.status_code == 200, answer.text
    assert set(answer.json()["run"]) == STAGE
    return answer.json()


def refused(client: httpx.Client, **more: object) -> str:
    answer = client.post(EXECUTE, json={**body("1"), **more})
    assert (answer.status_code, set(answer.json())) == (400, {"message"}), answer.text
    return str(answer.json()["message"])


def test_program_gets_arguments_and_input(client: httpx.Client) -> None:
    code = "import sys; print(sys.argv[1:], repr(sys.stdin.read()))"
    answer = execute(client, code, args=["a", "b"], stdin="typed")
    assert answer["language"] == "python"
    assert answer["version"].count(".") == 2
    assert "compile" not in answer
    run = answer["run"]
    assert run["stdout"] == run["output"] == "['a', 'b'] 'typed\\n'\n"
    assert (run["code"], run["signal"], run["status"], run["message"]) == (0, None, None, None)
    assert min(run["wall_time"], run["memory"]) > 0


def test_output_has_both_streams_in_order(client: httpx.Client) -> None:
    code = (
        "import sys, time\n"
        "for n in range(3):\n"
        "    print(n, file=(sys.stderr if n % 2 else sys.stdout), flush=True)\n"
        "    time.sleep(0.05)\n"
    )
    run = execute(client, code)["run"]
    assert (run["stdout"], run["stderr"], run["output"]) == ("0\n2\n", "1\n", "0\n1\n2\n")


def test_files_beside_the_program_are_decoded(client: httpx.Client) -> None:
    files = [
        {"name": "b", "content": "AAE=", "encoding": "base64"},
        {"name": "main.py", "content": "print(open('b','rb').read() + open('h','rb').read())"},
        {"name": "h", "content": "02ff", "encoding": "hex"},
        {"content": "text"},
    ]
    run = execute(client, files=files)["run"]
    assert run["stdout"] == "b'\\x00\\x01\\x02\\xff'\n"


@pytest.mark.parametrize(
    ("code", "more", "end"),
    [
        ("import sys; sys.exit(3)", {}, (3, None, "RE", "Exited with error status 3")),
        ("import os; os.kill(os.getpid(), 11)", {}, (None, "SIGSEGV", "SG", "fatal signal 11")),
        ("import time; time.sleep(60)", {"run_timeout": 500},
         (None, "SIGKILL", "TO", "Time limit exceeded (wall clock)")),
        ("while True: pass", {"run_cpu_time": 300}, (None, "SIGKILL", "TO", "Time limit exceeded")),
        ("print('x' * 3_000_000)", {}, (None, "SIGKILL", "OL", "stdout length exceeded")),
        ("import sys; sys.stderr.write('x' * 3_000_000)", {},
         (None, "SIGKILL", "EL", "stderr length exceeded")),
        ("x = bytearray(1 << 30)", {"run_memory_limit": 64 << 20},
         (None, "SIGKILL", "SG", "memory limit of 64 MiB")),
    ],
)  # fmt: skip
def test_end_has_its_status(
    client: httpx.Client, code: str, more: dict[str, int], end: tuple[object, str, str, str]
) -> None:
    run = execute(client, code, **more)["run"]
    assert (run["code"], run["signal"], run["status"]) == end[:3]
    assert end[3] in run["message"]


def test_compile_is_a_stage_of_its_own(client: httpx.Client) -> None:
    require_command("gcc")
    warned = '#include <stdio.h>\nint main() { int unused; puts("x"); }\n#warning told\n'
    good = execute(client, warned, language="c")
    assert (good["compile"]["code"], good["run"]["output"]) == (0, "x\n")
    assert "told" in good["compile"]["stderr"]
    bad = execute(client, "int main() {", language="gcc")
    assert (bad["compile"]["code"], bad["compile"]["status"]) == (1, "RE")
    assert "error" in bad["compile"]["stderr"]
    assert bad["run"] == bad["compile"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"language": 1}, "language is required as a string"),
        ({"version": None}, "version is required as a string"),
        ({"files": {}}, "files is required as an array"),
        ({"files": [{}]}, "files[0].content is required as a string"),
        ({"files": [None]}, "files[0].content is required as a string"),
        ({"language": "zz", "version": "1.x"}, "zz-1.x runtime is unknown"),
        ({"version": "2.x"}, "python-2.x runtime is unknown"),
        ({"files": [{"content": "", "encoding": "hex"}]},
         "files must include at least one utf8 encoded file"),
        ({"run_timeout": "1"}, "If specified, run_timeout must be a number"),
        ({"run_timeout": 10**9}, "run_timeout cannot exceed the configured limit of 4000"),
        ({"run_timeout": -1}, "run_timeout must be non-negative"),
        ({"run_memory_limit": 2**60},
         "run_memory_limit cannot exceed the configured limit of 536870912"),
        ({"run_memory_limit": 1}, "run_memory_limit cannot be less than 16777216"),
        ({"args": "a"}, "If specified, args must be an array of strings"),
        ({"stdin": 1}, "If specified, stdin must be a string"),
    ],
)  # fmt: skip
def test_bad_body_is_refused_in_pistons_words(
    client: httpx.Client, more: dict[str, object], message: str
) -> None:
    assert refused(client, **more) == message


def test_other_media_type_is_415(client: httpx.Client) -> None:
    answer = client.post(EXECUTE, content=b"{}")
    assert answer.status_code == 415
    assert answer.json() == {"message": "requests must be of type application/json"}


def test_runtimes_can_be_run(client: httpx.Client) -> None:
    found = client.get("/piston/api/v2/runtimes").json()
    python = next(each for each in found if each["language"] == "python")
    assert {"language", "version", "aliases"} <= set(python)
    answer = execute(client, "print(1)", language=python["aliases"][0], version=python["version"])
    assert (answer["version"], answer["run"]["stdout"]) == (python["version"], "1\n")
    assert client.get("/piston/api/v2/piston/runtimes").json() == found


def test_packages_are_installed_and_stay(client: httpx.Client) -> None:
    path = "/piston/api/v2/packages"
    found = client.get(path).json()
    assert all(each["installed"] is True for each in found)
    known = {"language": "python", "version": "*"}
    for method, sent, status in (
        ("POST", known, 500),
        ("DELETE", known, 500),
        ("POST", {"language": "zz"}, 404),
    ):
        answer = client.request(method, path, json=sent)
        assert (answer.status_code, set(answer.json())) == (status, {"message"})


def test_keys_are_taken_and_wrong_ones_refused(door: Server) -> None:
    for headers in ({"Authorization": ALICE}, {"Authorization": f"Bearer {ALICE}"}):
        assert keyless(door).post(EXECUTE, json=body("1"), headers=headers).status_code == 200
    wrong = keyless(door).post(EXECUTE, json=body("1"), headers={"Authorization": "wrong"})
    assert (wrong.status_code, set(wrong.json())) == (401, {"message"})
    with opened("piston") as closed:
        assert keyless(closed).post(EXECUTE, json=body("1")).status_code == 401
        assert keyless(closed).get("/piston/api/v2/runtimes").status_code == 200


def test_unknown_path_is_404(client: httpx.Client) -> None:
    answer = client.get("/piston/api/v2/nothing")
    assert (answer.status_code, answer.json()) == (404, {"message": "Not Found"})


@FUZZ
@given(
    sent=bodies(
        language=st.sampled_from(["python", "js", "zz"]),
        version=st.sampled_from(["*", "3.x", ">=3 <4", "^3", "~3.1", "1 || 3", "x.y"]),
        files=st.lists(
            st.fixed_dictionaries(
                {"content": st.just("print(1)")},
                optional={"name": st.text(max_size=5), "encoding": st.sampled_from(["hex", "x"])},
            ),
            max_size=3,
        ),
        stdin=st.text(),
        args=st.lists(st.text(), max_size=2),
        run_timeout=st.integers(-1, 4000),
    )
)
def test_no_body_is_a_failure_of_the_server(client: httpx.Client, sent: object) -> None:
    answer = post(client, EXECUTE, sent)
    assert answer.status_code in {200, 400}
    assert "run" in answer.json() or set(answer.json()) == {"message"}

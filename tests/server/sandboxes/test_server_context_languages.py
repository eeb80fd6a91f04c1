"""A context's `language` over HTTP and in the SDK: made, used, restarted, interrupted, refused."""

from __future__ import annotations

import threading

import httpx
import pytest

import cellwall
from cellwall.languages import registry
from cellwall.languages.tools import is_installed
from cellwall.model.errors import Conflict, NotFound
from cellwall.model.outcome import Verdict
from conftest import Require
from kit.servers import ALICE, Server, error_of, new_sandbox, run_cell

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def client(server: Server, require: Require) -> httpx.Client:
    language = registry.find("javascript")
    require("javascript", is_installed(language), f"run: {language.install}")
    return server.client()


@pytest.fixture
def sandbox(client: httpx.Client) -> str:
    return f"/sandboxes/{new_sandbox(client)}"


def test_context_of_a_language_keeps_its_state_until_it_is_restarted(
    client: httpx.Client, sandbox: str
) -> None:
    made = client.post(f"{sandbox}/contexts", json={"name": "js", "language": "node"})
    assert (made.status_code, made.json()) == (201, {"name": "js", "language": "javascript"})
    assert {"name": "js", "language": "javascript"} in client.get(f"{sandbox}/contexts").json()[
        "contexts"
    ]
    assert run_cell(client, sandbox, "let x = 41; x + 1", context="js")["results"] == [
        {"text/plain": "42"}
    ]
    assert run_cell(client, sandbox, "x", context="js")["results"] == [{"text/plain": "41"}]
    client.post(f"{sandbox}/contexts/js/restart").raise_for_status()
    assert run_cell(client, sandbox, "typeof x", context="js")["results"] == [
        {"text/plain": "'undefined'"}
    ]


def test_interrupt_ends_a_cell_of_another_language_and_keeps_its_state(
    client: httpx.Client, sandbox: str
) -> None:
    client.post(f"{sandbox}/contexts", json={"name": "js", "language": "javascript"})
    run_cell(client, sandbox, "let x = 41", context="js")
    body = {"code": "console.log('on'); while (true) {}", "context": "js", "timeout": 60}
    with client.stream("POST", f"{sandbox}/execute", json=body) as answer:
        lines = answer.iter_lines()
        assert '"on' in next(lines)
        client.post(f"{sandbox}/contexts/js/interrupt").raise_for_status()
        assert '"verdict":"interrupted"' in list(lines)[-1]
    assert run_cell(client, sandbox, "x + 1", context="js")["results"] == [{"text/plain": "42"}]


def test_cell_of_the_wrong_language_is_a_conflict_with_a_remedy(
    client: httpx.Client, sandbox: str
) -> None:
    client.post(f"{sandbox}/contexts", json={"name": "js", "language": "javascript"})
    body = {"code": "1", "context": "js", "language": "bash"}
    refused = client.post(f"{sandbox}/execute", json=body)
    assert refused.status_code == 409, refused.text
    assert "javascript" in error_of(refused)["message"] + error_of(refused)["remedy"]
    assert run_cell(client, sandbox, "1 + 1", context="js")["results"] == [{"text/plain": "2"}]


@pytest.mark.parametrize("language", ["klingon", "go", "jupyter:nowhere"])
def test_language_that_has_no_context_is_refused_with_a_remedy(
    client: httpx.Client, sandbox: str, language: str
) -> None:
    answer = client.post(f"{sandbox}/contexts", json={"name": "new", "language": language})
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["remedy"]
    names = [each["name"] for each in client.get(f"{sandbox}/contexts").json()["contexts"]]
    assert "new" not in names


def test_sdk_has_contexts_in_other_languages(server: Server, client: httpx.Client) -> None:
    with cellwall.connect(server.address, api_key=ALICE) as remote, remote.Sandbox() as sandbox:
        sandbox.contexts.create("js", "javascript")
        listed = {str(name): name.language for name in sandbox.contexts.list()}
        assert listed["js"] == "javascript"
        assert sandbox.run("let x = 41; x + 1", context="js").results == ({"text/plain": "42"},)
        with pytest.raises(Conflict) as refused:
            sandbox.run("1", context="js", language="bash")
        assert refused.value.remedy
        with pytest.raises(NotFound) as unknown:
            sandbox.contexts.create("other", "klingon")
        assert unknown.value.remedy
        sandbox.contexts.restart("js")
        assert sandbox.run("typeof x", context="js").results == ({"text/plain": "'undefined'"},)

        def interrupt(_text: str) -> None:
            threading.Thread(target=sandbox.interrupt, args=("js",)).start()

        loop = "console.log('on'); while (true) {}"
        ended = sandbox.run(loop, context="js", on_stdout=interrupt)
        assert ended.verdict is Verdict.INTERRUPTED

"""The OpenAPI document is what happens: made-up requests, and answers held to closed schemas."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from pydantic import BaseModel
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from cellwall.server.app import ENDPOINTS
from cellwall.server.http.openapi import document
from cellwall.server.routes.pages import _page_of
from cellwall.server.schemas import responses, responses_about
from kit.servers import Server, new_sandbox


@schemathesis.serializer("application/x-tar")
def as_bytes(_context: Any, value: Any) -> bytes:
    """Send what was made up as it is."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


DOCUMENT = document(ENDPOINTS)
schema = schemathesis.openapi.from_dict(DOCUMENT)
Case = schemathesis.Case[Any]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
SKIPPED = {"/executions/{execution_id}/events", "/sandboxes/{sandbox_id}/files/watch"}
"""Streams that may live long; tested with their own nouns."""


@schema.exclude(path=list(SKIPPED)).parametrize()
@settings(
    max_examples=12,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
def test_made_up_requests_break_nothing(case: Case, server: Server) -> None:
    _make_likely(case, server)
    response = case.call(
        base_url=server.address, headers={**_plain(case.headers), "X-API-Key": _key()}, timeout=30
    )
    case.validate_response(response, checks=CHECKS, excluded_checks=[])


_ids: dict[str, str] = {}


def _key() -> str:
    from kit.servers import ALICE

    return ALICE


def _plain(headers: Any) -> dict[str, str]:
    found = {name: str(value) for name, value in (headers or {}).items()}
    return {name: value for name, value in found.items() if value.isascii() and value.isprintable()}


def _make_likely(case: Case, server: Server) -> None:
    """Put things that exist into the path, and keep programs from running long."""
    names = set(case.path_parameters or {})
    if "sandbox_id" in names:
        if "sandbox_id" not in _ids:
            _ids["sandbox_id"] = new_sandbox(server.client())
        case.path_parameters["sandbox_id"] = _ids["sandbox_id"]
    if isinstance(case.body, dict):
        for name in ("timeout", "wait"):
            wanted = case.body.get(name)
            if isinstance(wanted, float):
                case.body[name] = min(wanted, 1.0)
    if isinstance(case.query, dict) and "wait" in case.query:
        case.query["wait"] = 0


def walk(model: type[BaseModel], value: Any) -> None:
    model.model_validate(value)


@pytest.fixture
def client(server: Server) -> httpx.Client:
    return server.client()


def test_answers_fit_their_closed_schemas(client: httpx.Client) -> None:
    sandbox = client.post("/sandboxes", json={"metadata": {"a": "b"}}).json()
    path = f"/sandboxes/{sandbox['id']}"
    execution = client.post("/execute", json={"code": "1/0", "scan": "warn"}).json()
    command = client.post(
        f"{path}/commands", json={"argv": ["true"]}, headers={"Accept": "application/json"}
    ).json()
    held: list[tuple[type[BaseModel], Any]] = [
        (responses.Health, client.get("/health").json()),
        (responses.Sandbox, sandbox),
        (responses.SandboxList, client.get("/sandboxes").json()),
        (responses.Execution, execution),
        (responses.Command, command),
        (responses.CommandList, client.get(f"{path}/commands").json()),
        (responses.ContextList, client.get(f"{path}/contexts").json()),
        (responses.Metrics, client.get(f"{path}/metrics").json()),
        (responses.Logs, client.get(f"{path}/logs").json()),
        (responses.Entries, client.get(f"{path}/files/list").json()),
        (responses_about.Templates, client.get("/templates").json()),
        (responses_about.Languages, client.get("/languages").json()),
        (responses_about.Runtimes, client.get("/runtimes").json()),
        (responses_about.Stats, client.get("/stats").json()),
        (responses.Error, client.get("/sandboxes/nope").json()),
    ]
    for model, value in held:
        walk(model, value)


def test_running_execution_fits_too(client: httpx.Client) -> None:
    body = {"code": "print(1, flush=True)\nimport time; time.sleep(30)", "on_disconnect": "detach"}
    with client.stream(
        "POST", "/execute", json=body, headers={"Accept": "application/x-ndjson"}
    ) as answer:
        next(answer.iter_lines())
        execution = answer.headers["x-execution-id"]
        shown = client.get(f"/executions/{execution}").json()
    walk(responses.Execution, shown)
    assert (shown["status"], shown["verdict"]) == ("running", None)
    client.delete(f"/executions/{execution}")


def test_served_document_is_that_of_the_table(client: httpx.Client) -> None:
    assert client.get("/openapi.json").json() == DOCUMENT
    ids = [op["operationId"] for methods in DOCUMENT["paths"].values() for op in methods.values()]
    assert len(ids) == len(set(ids))


def test_page_for_people_is_inert_and_names_every_route(client: httpx.Client) -> None:
    answer = client.get("/docs")
    assert "script" not in answer.headers["content-security-policy"].replace("script-src", "")
    text = answer.text
    assert "<script" not in text
    assert "http://" not in text
    assert "https://" not in text
    for path in DOCUMENT["paths"]:
        assert path in text
    assert _page_of(DOCUMENT) == answer.content
    assert client.get("/docs/style.css").headers["content-type"].startswith("text/css")

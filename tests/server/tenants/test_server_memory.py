"""What is over leaves no program behind: the server's memory after many large bodies.

An exception that was kept had the frames it had passed, and they had the body; an execution was in
a circle with its clocks, and waited for the collector. Five hundred bodies were kept at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from kit.servers import BOB, Server, new_sandbox, running

_BODIES = 20
_BODY_BYTES = 6 * 1024 * 1024
_MAY_GROW_BYTES = _BODIES * _BODY_BYTES // 2
"""Each body was held two or three times: as bytes, as text, and in what the sandbox was sent."""
_FILLING = "#" + "x" * (_BODY_BYTES - 100)
Ask = Callable[[httpx.Client, str], httpx.Response]


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    with running() as made:
        yield made


def _executed(**body: Any) -> Ask:
    return lambda client, code: client.post("/execute", json={"code": code, **body})


def _endless(client: httpx.Client, code: str) -> httpx.Response:
    return client.post("/execute", json={"code": code + "\nwhile True: pass", "timeout": 0.05})


def _streamed(client: httpx.Client, code: str) -> httpx.Response:
    return client.post("/execute", json={"code": code}, headers={"Accept": "text/event-stream"})


def _batch(client: httpx.Client, code: str) -> httpx.Response:
    programs = [{"code": code, "template": "nowhere"}]
    return client.post("/executions/batch", json={"executions": programs})


def _cell(client: httpx.Client, code: str) -> httpx.Response:
    box = new_sandbox(client)
    try:
        answer = client.post(f"/sandboxes/{box}/execute", json={"code": code, "context": "nowhere"})
        assert answer.status_code == 404, answer.text
        return client.post(f"/sandboxes/{box}/execute", json={"code": code})
    finally:
        client.delete(f"/sandboxes/{box}")


KINDS: dict[str, tuple[int, str, Ask]] = {
    "refused": (404, "not_found", _executed(template="nowhere")),
    "run": (200, "success", _executed()),
    "run, and the interpreter gave up": (200, "error", _executed(language="javascript")),
    "cut short": (200, "timeout", _endless),
    "streamed": (200, "event: end", _streamed),
    "one of many": (200, "not_found", _batch),
    "cell": (200, '"verdict":"ok"', _cell),
}


def _grown(server: Server, ask: Ask, code: str = _FILLING) -> tuple[int, httpx.Response]:
    client = server.client()
    for _ in range(4):
        ask(client, code)  # what it imports is imported, and its buffers are there
    before = server.rss_bytes()
    answers = [ask(client, code) for _ in range(_BODIES)]
    return server.rss_bytes() - before, answers[-1]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.needs(*(["node"] if "interpreter" in kind else [])))
        for kind in KINDS
    ],
)
def test_large_programs_leave_the_server_flat(own: Server, kind: str) -> None:
    status, word, ask = KINDS[kind]
    grown, answer = _grown(own, ask)
    assert answer.status_code == status, answer.text[:500]
    assert word in answer.text
    assert grown < _MAY_GROW_BYTES
    assert own.client(BOB).get("/health").status_code == 200


def test_control_what_is_kept_on_purpose_is_seen() -> None:
    """Answers are, up to `retained_bytes`: as many and as large ones, if it is allowed."""
    ask = _executed(limits={"output_kb": 8192})
    with running(retained_bytes=2 * _BODIES * _BODY_BYTES) as server:
        grown, answer = _grown(server, ask, f"print('x' * {_BODY_BYTES})")
    assert answer.status_code == 200
    assert grown > _MAY_GROW_BYTES

"""A server with the doors of foreign executors open, for tests of their wire."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from kit.servers import Server, running

NAMES = ("ragflow", "dify", "fusion", "piston", "judge0")
SHORT = "[engine]\npool_idle_s = 86400\n[most]\nwall_s = 4\ncpu_s = 4\nmemory_mb = 512\n"
"""Ceilings that make programs which never end cheap to wait for."""


@contextlib.contextmanager
def opened(*names: str, more: str = SHORT, lines: str = "", **server: object) -> Iterator[Server]:
    """Run a server with these doors open; `lines` are settings of each of them."""
    sections = "".join(f"[doors.{name}]\n{lines}\n" for name in names)
    with running(more + sections, **server) as made:
        yield made


def keyless(server: Server) -> httpx.Client:
    """Return a client that sends no key."""
    return server.client(None)


def b64(text: str | bytes) -> str:
    """Return base64."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


FUZZ = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
"""Bounded: each example is a request, and some run a program."""

_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
JSON = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def bodies(**fields: Any) -> st.SearchStrategy[Any]:
    """Return bodies whose fields are plausible, of any type, or missing."""
    optional = {name: usual | JSON for name, usual in fields.items()}
    return st.fixed_dictionaries({}, optional=optional) | JSON


def post(client: httpx.Client, path: str, value: object) -> httpx.Response:
    """Send any JSON value, also null and text that UTF-8 does not have."""
    data = json.dumps(value).encode("ascii")
    return client.post(path, content=data, headers={"Content-Type": "application/json"})


FULL = '[tiers.small]\nrunning = 1\nqueued = 1\n[tenants]\nalice = "small"\n'


def fill(server: Server) -> None:
    """Take every place that `FULL` leaves to alice."""
    for _ in range(2):
        body = {"code": "import time; time.sleep(30)", "background": True}
        answer = server.client().post("/execute", json=body)
        assert answer.status_code == 202, answer.text


slow_start = pytest.mark.timeout(120)
"""Starting a server and its first sandboxes takes a while on a busy machine."""

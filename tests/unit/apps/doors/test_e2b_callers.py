"""Who sends a request to the E2B door, and for which plane, by its path, headers and tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from cellwall.apps.doors.e2b.addressing import Place
from cellwall.apps.doors.e2b.answers import PLACE
from cellwall.apps.doors.e2b.front.callers import SANDBOX_HEALTH, Callers
from cellwall.apps.doors.e2b.house import Options
from cellwall.apps.doors.e2b.tokens import SandboxTokens
from cellwall.server.auth.keys import Failures, KeyRecord, KeyRing, digest_of, new_key
from cellwall.server.core.errors import HttpError
from cellwall.server.core.request import Request

if TYPE_CHECKING:
    from cellwall.apps.doors.e2b.house import House
    from cellwall.apps.doors.e2b.tokens import Kind
    from cellwall.server.auth.keys import Principal
    from cellwall.server.core.request import Message

SANDBOX, OTHER = "a2" * 13, "b3" * 13
KEY = new_key()
RING = KeyRing([KeyRecord(digest_of(KEY), "acme", "admin")])
TOKENS = SandboxTokens(b"k" * 32, RING)


async def unused(_: Message | None = None) -> Message:
    raise AssertionError("nothing is read or sent")


def asked(path: str, method: str = "GET", **headers: str) -> tuple[Request, Principal | None]:
    """Return a request, and its caller."""
    scope: Message = {"type": "http", "method": method, "path": path, "query_string": b""}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = Request(scope, unused, cast("object", unused), named, "id", None)  # type: ignore[arg-type]  # unused
    state = SimpleNamespace(sandboxes=SimpleNamespace(all={}), failures=Failures(), keys=RING)
    house = SimpleNamespace(options=Options(), tokens=TOKENS, state=state)
    return request, Callers(cast("House", house)).of(request, path, RING.find)


def token(kind: Kind) -> dict[str, str]:
    """Return the header with which a client shows a token of SANDBOX."""
    caller = RING.find(KEY)
    assert caller is not None
    name = "x_access_token" if kind == "daemon" else "e2b_traffic_access_token"
    return {name: TOKENS.make(kind, SANDBOX, caller)}


@pytest.mark.parametrize("port", [49983, 49999])
@pytest.mark.parametrize("shown", [token("daemon"), token("traffic"), {"x_api_key": KEY}, {}])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/sandboxes"),
        ("POST", "/v2/sandboxes"),
        ("DELETE", f"/sandboxes/{OTHER}"),
        ("POST", f"/sandboxes/{SANDBOX}/connect"),
        ("GET", "/traffic-to-the-inside"),
        ("GET", SANDBOX_HEALTH),
        ("GET", "/filesx"),
    ],
)
def test_the_control_plane_is_not_below_the_name_of_a_sandbox(
    port: int, shown: dict[str, str], method: str, path: str
) -> None:
    with pytest.raises(HttpError) as raised:
        asked(path, method, host=f"{port}-{SANDBOX}.localhost", **shown)
    assert raised.value.status == 404


@pytest.mark.parametrize("path", ["/health", "/files", "/process.Process/List", "/execute"])
def test_the_planes_of_a_sandbox_are_below_its_name(path: str) -> None:
    request, caller = asked(path, host=f"49983-{SANDBOX}.localhost", **token("daemon"))
    assert caller is not None
    assert (caller.tenant, caller.scope) == ("acme", "run")
    assert request.scope[PLACE] == Place(SANDBOX, 49983, is_by_host=True)


@pytest.mark.parametrize(
    ("path", "is_open"),
    [("/contexts", True), ("/execute", False), ("/files", False), ("/process.Process/List", False)],
)
@pytest.mark.parametrize("name", ["e2b_sandbox_id", "host"])
def test_the_token_of_ports_neither_runs_code_nor_touches_files(
    path: str, is_open: bool, name: str
) -> None:
    place = {name: SANDBOX if name == "e2b_sandbox_id" else f"49999-{SANDBOX}.localhost"}
    assert (asked(path, **place, **token("traffic"))[1] is not None) is is_open
    assert asked(path, **place, **token("daemon"))[1] is not None
    inside = {**place, "host": f"8000-{SANDBOX}.localhost"}
    assert asked(path, **inside, **token("traffic"))[1] is not None


@pytest.mark.parametrize(
    "headers", [{"e2b_sandbox_id": SANDBOX}, {"e2b_sandbox_id": "../x"}, {"x_access_token": "x"}]
)
def test_the_health_of_a_sandbox_is_not_public(headers: dict[str, str]) -> None:
    """The guards let anything pass to a public route, wrong keys as well."""
    request, caller = asked("/health", **headers, x_api_key=new_key())
    assert (request.scope["path"], caller) == (SANDBOX_HEALTH, None)
    request, _ = asked("/health")
    assert request.scope["path"] == "/health"

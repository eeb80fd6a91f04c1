"""The sandbox that a request to the daemon or the interpreter is for: the caller's own, or none."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from cellwall.apps.doors.door import Visit
from cellwall.apps.doors.e2b.addressing import Place
from cellwall.apps.doors.e2b.answers import PLACE, refuse
from cellwall.apps.doors.e2b.seat import SandboxGone, live, seated
from cellwall.model.errors import CellwallError, NodeLost, NodeUnreachable
from cellwall.server.auth.keys import Principal
from cellwall.server.auth.ownership import NotYours
from cellwall.server.core.errors import HttpError
from cellwall.server.core.request import Request

if TYPE_CHECKING:
    from cellwall.client.asynchronous import AsyncClient
    from cellwall.server.core.request import Message
    from cellwall.server.state import State

KNOWN = {
    "mine": SimpleNamespace(owner="acme", status="running"),
    "over": SimpleNamespace(owner="acme", status="stopped"),
    "asleep": SimpleNamespace(owner="acme", status="paused", is_resumed_by_requests=False),
    "others": SimpleNamespace(owner="other", status="running"),
}


async def unread() -> Message:
    raise AssertionError("there is no body")


def request_of(sandbox_id: str | None, sent: list[Message]) -> Request:
    """Return a request of acme's; what is answered is in `sent`."""

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Message = {"type": "http", "method": "GET", "path": "/files"}
    if sandbox_id is not None:
        scope[PLACE] = Place(sandbox_id)
    request = Request(scope, unread, send, {}, "id", Principal("acme", "key", "run"))
    request.state = cast("State", SimpleNamespace(sandboxes=SimpleNamespace(all=KNOWN)))
    return request


def seat_refused(sandbox_id: str | None) -> tuple[CellwallError, list[Any]]:
    """Ask for the seat; return the error, and how it is answered."""
    sent: list[Any] = []
    request = request_of(sandbox_id, sent)

    async def scene() -> CellwallError:
        with pytest.raises(CellwallError) as raised:
            await seated(Visit(request, cast("AsyncClient", None)))
        await refuse(request, raised.value)
        return raised.value

    return asyncio.run(scene()), sent


@pytest.mark.parametrize(
    ("sandbox_id", "kind"),
    [("others", NotYours), ("unheard", NotYours), ("over", SandboxGone), ("asleep", SandboxGone)],
)
def test_whatever_cannot_be_served_is_answered_alike(
    sandbox_id: str, kind: type[CellwallError]
) -> None:
    """The kind is for the guards, which count and audit what is not the caller's."""
    error, sent = seat_refused(sandbox_id)
    assert type(error) is kind
    assert getattr(error, "is_of_other", False) is (sandbox_id == "others")
    assert sent[0]["status"] == 502
    body = b"".join(each["body"] for each in sent[1:])
    assert body.decode().replace(sandbox_id, "ID").strip() == (
        '{"sandboxId":"ID","message":"The sandbox was not found","code":502}'
    )


def answered(error: CellwallError, sandbox_id: str | None) -> tuple[Any, dict[bytes, bytes], Any]:
    """Return status, headers and body of the answer about an error."""
    sent: list[Any] = []
    asyncio.run(refuse(request_of(sandbox_id, sent), error))
    return sent[0]["status"], dict(sent[0]["headers"]), json.loads(sent[1]["body"])


def test_lost_sandbox_is_answered_as_one_that_is_gone_and_says_why() -> None:
    lost = NodeLost("sandbox lost: its node a7c2 was lost")
    status, headers, body = answered(lost, "lost")
    text = "The sandbox was not found: the machine that had it was lost"
    assert (status, body) == (502, {"sandboxId": "lost", "message": text, "code": 502})
    status, headers, body = answered(lost, None)
    assert (status, body["code"]) == (404, 404)
    assert "was lost" in body["message"]
    assert b"retry-after" not in headers


def test_sandbox_that_may_come_back_is_asked_for_again() -> None:
    for sandbox_id in ("away", None):
        away = NodeUnreachable("sandbox away: its node does not answer", retry_after_s=4.5)
        status, headers, body = answered(away, sandbox_id)
        assert (status, body["code"], headers[b"retry-after"]) == (503, 503, b"5")
        assert b"should-retry" not in headers


def test_the_callers_own_sandbox_is_found() -> None:
    request = request_of("mine", [])
    assert live(request, Place("mine")) is request.state.sandboxes.all["mine"]


def test_a_request_that_names_no_sandbox_is_told_to() -> None:
    """As a server answers that serves requests without a key."""
    error, _ = seat_refused(None)
    assert isinstance(error, HttpError)
    assert (error.status, "E2b-Sandbox-Id" in str(error)) == (400, True)

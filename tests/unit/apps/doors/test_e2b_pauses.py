"""A pause that is refused at the E2B door: 503 if it can be asked for again, else 501.

Both, for each way of pausing; `tests/server/doors/e2b` has a real one that passes.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cellwall.apps.doors.e2b.control import bodies, lives
from cellwall.model.errors import CellwallError, Conflict
from cellwall.server.core.errors import envelope, headers_of, status_of
from cellwall.wire.reading import error_of


@pytest.mark.parametrize(("is_passing", "status"), [(True, 503), (False, 501)])
@pytest.mark.parametrize("memory", [None, False])
def test_refusal_that_passes_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch, memory: bool | None, is_passing: bool, status: int
) -> None:
    """The refusal has come over the server's own API, as every one that the door hears of."""

    async def refused(**_: object) -> None:
        said = Conflict("hibernate: s1: it was used", remedy="try again", is_passing=is_passing)
        raise error_of(envelope(said, "r1")["error"], 409)

    async def found(_visit: object) -> Any:
        return SimpleNamespace(id="s1", status="running", pause=refused, hibernate=refused)

    async def read(_request: object, _kind: object) -> bodies.Pause:
        return bodies.Pause(memory=memory)

    monkeypatch.setattr(lives, "existing", found)
    monkeypatch.setattr(bodies, "read", read)
    visit: Any = SimpleNamespace(request=None)
    routes = lives.Lives(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]  # not looked at
    with pytest.raises(CellwallError, match="it was used; try again") as caught:
        asyncio.run(routes.pause(visit))
    assert status_of(caught.value) == status
    assert headers_of(caught.value).get("retry-after") == ("1" if is_passing else None)

"""The page on the E2B door has each request of the control plane, and says the truth of it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from cellwall.apps.doors.door import PublicRoute
from cellwall.apps.doors.e2b.control.templates import absent_routes
from cellwall.apps.doors.e2b.front.door import E2B, make_door
from cellwall.engine.policy.settings import EngineSettings
from cellwall.engine.scheduling.pool import Pool
from cellwall.server.auth.keys import KeyRing
from cellwall.server.state import State
from kit.places import ROOT

_ROW = re.compile(r"\| `([A-Z*]+) (/[^`]*)` \| [^|]+ \| ([^|]+) \|")


async def opened(folder: Path) -> E2B:
    """Return a door whose server does nothing."""
    settings = EngineSettings()
    state = SimpleNamespace(
        engine=SimpleNamespace(state_dir=folder, settings=settings, pool=Pool(settings)),
        keys=KeyRing(),
        sandboxes=SimpleNamespace(all={}),
    )
    door = make_door(cast("State", state), {})
    await door.aclose()
    return door


def test_the_table_is_what_the_door_serves(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "e2b.md").read_text(encoding="utf-8")
    table = {(method, path): here for method, path, here in _ROW.findall(text)}
    door = asyncio.run(opened(tmp_path))
    served = {
        (each.method, each.path)
        for each in door.routes
        if isinstance(each, PublicRoute) or each in door.control
    }
    assert set(table) == served
    refused = {key for key, here in table.items() if here == "refused with 501"}
    assert refused == {(each.method, each.path) for each in absent_routes()}

"""Which doors a server may open, before any of them is made."""

from __future__ import annotations

from typing import Any

import pytest

from cellwall.apps.doors.gate import check_doors
from cellwall.apps.doors.registry import MODULES, maker_of
from cellwall.model.errors import UsageError
from cellwall.server.core.door_settings import DoorSettings
from cellwall.server.core.settings import ServerSettings

KEYLESS = {"piston": DoorSettings(tenant="acme")}


@pytest.mark.parametrize("changed", [{"host": "0.0.0.0"}, {"proxies": ("127.0.0.1",)}])
def test_other_machines_get_nothing_without_a_key(changed: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="door piston serves requests without a key"):
        check_doors(ServerSettings(doors=KEYLESS, **changed))
    check_doors(ServerSettings(doors={"piston": DoorSettings()}, **changed))  # the controls
    check_doors(ServerSettings(doors=KEYLESS))


def test_an_unknown_door_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'nix'") as caught:
        check_doors(ServerSettings(doors={"nix": DoorSettings()}))
    assert "piston" in str(caught.value.remedy)


@pytest.mark.parametrize("name", MODULES)
def test_every_door_can_be_made(name: str) -> None:
    assert callable(maker_of(name))

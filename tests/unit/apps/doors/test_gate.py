"""Which doors a server may open, before any of them is made."""

from __future__ import annotations

from typing import Any

import pytest

from cellwall.apps.doors.gate import check_doors
from cellwall.apps.doors.registry import MODULES, maker_of
from cellwall.apps.exposure import check_exposure
from cellwall.model.errors import UsageError
from cellwall.server.core.door_settings import DoorSettings
from cellwall.server.core.settings import ServerSettings

KEYLESS = {"piston": DoorSettings(tenant="acme")}


@pytest.mark.parametrize(
    "changed",
    [{"host": "0.0.0.0"}, {"proxies": ("127.0.0.1",)}, {"allowed_hosts": ("a.example", "*")}],
)
def test_other_machines_get_nothing_without_a_key(changed: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="door piston serves requests without a key"):
        check_doors(ServerSettings(doors=KEYLESS, **changed))
    check_doors(ServerSettings(doors={"piston": DoorSettings()}, **changed))  # the controls
    check_doors(ServerSettings(doors=KEYLESS))


def test_a_port_of_a_door_is_reached_from_elsewhere_also_beside_a_unix_socket() -> None:
    def made(port: int | None, host: str = "0.0.0.0") -> ServerSettings:
        doors = {"piston": DoorSettings(port, "acme")}
        return ServerSettings(doors=doors, unix="/run/x.sock", host=host)

    with pytest.raises(UsageError, match=r"0\.0\.0\.0 can be reached"):
        check_doors(made(2000))
    with pytest.raises(UsageError, match="there is no key for it"):
        check_exposure(made(2000), has_own_keys=False)
    for local in (made(None), made(2000, "127.0.0.1")):  # the controls
        check_doors(local)
        check_exposure(local, has_own_keys=False)


def test_a_port_that_two_listeners_have_is_refused() -> None:
    def made(port: int | None, unix: str | None = None, other: int = 2001) -> ServerSettings:
        doors = {"piston": DoorSettings(port), "judge0": DoorSettings(other)}
        return ServerSettings(doors=doors, port=2000, unix=unix)

    with pytest.raises(UsageError, match="door piston and the server have the same port 2000"):
        check_doors(made(2000))
    with pytest.raises(UsageError, match="door judge0 and door piston have the same port 2001"):
        check_doors(made(2001))
    check_doors(made(None))  # the controls
    check_doors(made(0, other=0))
    check_doors(made(2000, unix="/run/x.sock"))


def test_an_unknown_door_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'nix'") as caught:
        check_doors(ServerSettings(doors={"nix": DoorSettings()}))
    assert "piston" in str(caught.value.remedy)


@pytest.mark.parametrize("name", MODULES)
def test_every_door_can_be_made(name: str) -> None:
    assert callable(maker_of(name))

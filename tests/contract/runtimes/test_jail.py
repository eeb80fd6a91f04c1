"""The jail keeps the contract, on this host, as whoever runs the tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from cellwall.engine.engine import Engine
from cellwall.model.errors import HostUnsupported
from cellwall.testing.contract import RuntimeContract
from conftest import Require


async def _what_is_missing(make_engine: Callable[[], Engine]) -> str:
    engine = make_engine()
    try:
        await engine.runtime("namespace", "jail")
    except HostUnsupported as error:
        return str(error)
    finally:
        await engine.aclose()
    return ""


@pytest.mark.usefixtures("rehearsed")
class TestJailRuntime(RuntimeContract):
    runtime_name = "jail"
    isolation = "namespace"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _jail_is_possible(cls, make_engine: Callable[[], Engine], require: Require) -> None:
        reason = asyncio.run(_what_is_missing(make_engine))
        require("jail", not reason, reason)

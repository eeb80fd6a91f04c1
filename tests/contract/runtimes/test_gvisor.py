"""The gVisor runtime keeps the contract, with the `runsc` of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar

import pytest

from cellwall.engine.engine import Engine
from cellwall.model.errors import HostUnsupported
from cellwall.testing.contract import RuntimeContract
from conftest import Require


async def _what_is_missing(make_engine: Callable[[], Engine]) -> str:
    engine = make_engine()
    try:
        await engine.runtime("kernel", "gvisor")
    except HostUnsupported as error:
        return str(error)
    finally:
        await engine.aclose()
    return ""


_HIDDEN = (
    "gVisor's processes are not the host's, so their end cannot be seen by name; the tests of "
    "faults see by pidfd and cgroup that the whole tree is gone"
)


class TestGvisorRuntime(RuntimeContract):
    runtime_name = "gvisor"
    isolation = "kernel"
    deviations: ClassVar[dict[str, str]] = {
        "test_each_sandbox_has_a_boot_id_of_its_own": "gVisor's kernel has none",
        "test_limit_leaves_no_process": _HIDDEN,
        "test_cancelled_call_leaves_no_process": _HIDDEN,
        "test_terminal_is_a_terminal": "gVisor sends no SIGWINCH and stops no job at ^Z",
        "test_terminal_passes_bytes_and_cuts_nothing": "gVisor's terminals are not transparent: "
        "2022's loses what its program printed last, 2024's takes ^C and ^Z in raw mode too",
    }

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _gvisor_is_possible(cls, make_engine: Callable[[], Engine], require: Require) -> None:
        reason = asyncio.run(_what_is_missing(make_engine))
        require("gvisor", not reason, reason)

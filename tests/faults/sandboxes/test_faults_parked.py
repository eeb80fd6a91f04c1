"""A parked sandbox that cannot be made what a claim asks for: another one is, and nobody fails.

The kernel lets a process change another one's limits only with CAP_SYS_RESOURCE, which root has
not everywhere; here it is taken away for real. The control is the same program with it, if any.
"""

from __future__ import annotations

import pytest

from kit.faults.entries import embedded

pytestmark = [pytest.mark.attack, pytest.mark.root]

_LOWER = """
import ctypes

async def main():
    if arguments[0] == "without":
        header = (0x20080522).to_bytes(4, "little") + (0).to_bytes(4, "little")
        data = (ctypes.c_uint32 * 6)()
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.capget(header, data) == 0
        data[0] &= ~(1 << 24)
        assert libc.capset(header, data) == 0
    engine = Engine(settings=EngineSettings(pool_min=2, pool_max=2))
    say("first", await tried(engine.run("print(1)")))
    await engine.pool.wait_full()
    code = "import resource\\nprint(resource.getrlimit(resource.RLIMIT_FSIZE)[1] >> 20)"
    limits = {"file_mb": 2}
    say("lowered", [await tried(engine.run(code, limits=limits)) for _ in range(4)])
    say("started", engine.statistics().pool.claims_started)
    await engine.aclose()

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["without", "with"])
def test_claim_of_lower_limits_is_served_whether_or_not_they_can_be_lowered(how: str) -> None:
    said = embedded(_LOWER, how)
    assert said["first"] == {"stdout": "1\n"}
    assert said["lowered"] == [{"stdout": "2\n"}] * 4
    if how == "without":
        assert said["started"] >= 4

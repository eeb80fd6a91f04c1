"""An ordinary user's snapshots outlive its engine, or it is told what they need."""

from __future__ import annotations

import pytest

from kit.attack import ranged
from kit.unprivileged import OrdinaryUser

pytestmark = [pytest.mark.rootless, pytest.mark.attack, pytest.mark.timeout(180)]
_TWO_ENGINES = """
import asyncio, sys
from cellwall import Engine, EngineSettings
from cellwall.model.errors import HostUnsupported

SETTINGS = EngineSettings(pool_min=0, pool_max=0, snapshots_dir=sys.argv[1] + "/snapshots")

async def kept():
    engine = Engine(settings=SETTINGS)
    try:
        sandbox = await engine.create_sandbox()
        await sandbox.run("x = 41")
        await sandbox.snapshot("kept")
    except HostUnsupported as error:
        print(error.feature, engine.copies_room.used_bytes, engine.copies.snapshots(""))
        raise SystemExit from None
    finally:
        await engine.aclose()

async def restored():
    engine = Engine(settings=SETTINGS)
    sandbox = await engine.copies.restore("kept", "")
    print((await sandbox.run("print(x + 1)")).stdout, end="")
    await engine.aclose()

asyncio.run(kept())
asyncio.run(restored())
"""


def test_ordinary_user_goes_on_with_a_stored_session() -> None:
    with OrdinaryUser() as user:
        done = user.run(_TWO_ENGINES, str(user.home))
    assert (done.stdout, done.stderr[-2000:]) == ("42\n", "")


@pytest.mark.skipif(bool(ranged.why_not()), reason=ranged.why_not())
def test_user_who_may_not_read_a_fork_server_is_told() -> None:
    """Its sandboxes have ids of their own, so their memory is not its to read."""
    user = ranged.RangedUser()
    with user:
        done = user.run_ranged(_TWO_ENGINES, str(user.home))
    assert (done.stdout, done.stderr[-2000:]) == ("durable snapshots 0 []\n", "")

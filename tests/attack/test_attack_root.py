"""L14, M09: what all sandboxes share of the root tells none of them what another did to it.

The witness is a neighbour, or the host, that looks at the same name. The control of each attack is
the same attack on a jail without that guard, where the witness has to see it.
"""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from mutations import Drop, dropping

from cellwall import Engine, EngineSettings
from cellwall.jail import posture

pytestmark = [pytest.mark.attack, pytest.mark.root]


@pytest.fixture
def drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drop:
    """`drop(module=code, …)`: from now on fork-servers start from the mutated bundle."""
    return dropping(tmp_path, monkeypatch)


async def _beside(attack: str, look: str) -> tuple[str, str, str]:
    """What one sandbox says of its attack, and what another sees before and after it."""
    engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
    try:
        async with await engine.create_sandbox() as one, await engine.create_sandbox() as other:
            before = (await other.run(look)).stdout
            said = (await one.run(attack)).stdout
            return said, before, (await other.run(look)).stdout
    finally:
        await engine.aclose()


_NAMES = ("null", "zero", "full", "random", "urandom", "tty")
_TOUCH = f"""
import os
for name in {_NAMES}:
    try: os.utime("/dev/" + name); print("touched")
    except OSError as error: print(error.errno)
"""
_TIMES = f"""
import os
print([os.stat("/dev/" + name).st_mtime_ns for name in {_NAMES}])
"""
_WRITABLE_DEVICES = "mounts.ATTR_RDONLY = 0"


def test_times_of_devices_carry_nothing(drop: Drop, monkeypatch: pytest.MonkeyPatch) -> None:
    """M09: every program may write to them, and with that may set their times to "now"."""
    said, before, after = asyncio.run(_beside(_TOUCH, _TIMES))
    assert said.split() == [str(errno.EROFS)] * len(_NAMES)
    assert before == after
    drop(steps=_WRITABLE_DEVICES)
    with pytest.raises(Exception, match="ro"):  # the posture sees it
        asyncio.run(_beside(_TOUCH, _TIMES))
    monkeypatch.setattr(posture, "compare_mounts", lambda *_: None)
    said, before, after = asyncio.run(_beside(_TOUCH, _TIMES))
    assert said.split() == ["touched"] * len(_NAMES), "the control"
    assert before != after, "the control"

"""An engine that kills itself at one step of an operation; a program of its own.

Arguments: the operation, the version of the freezer, and the step. Before the kill it says which
processes are below it. With step 0 it lives, and says how many steps there are.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from typing import Any

from cellwall import AsyncSandbox, Engine, EngineSettings
from cellwall.linux.cgroups import hierarchies
from kit.arena import descendants
from kit.copies.steps import Steps


def say(word: str, *numbers: int) -> None:
    """Write one line at once: what follows may be the end."""
    os.write(1, f"{word} {' '.join(map(str, numbers))}\n".encode())


def end() -> None:
    """Kill this process."""
    say("below", *descendants(os.getpid()))
    os.kill(os.getpid(), signal.SIGKILL)


async def operate(engine: Engine, source: AsyncSandbox, operation: str) -> None:
    """Do it once."""
    if operation == "fork":
        for each in await source.fork(2):
            await each.sandbox.close()
    elif operation == "snapshot":
        engine.copies.delete((await source.snapshot()).id, "")
    elif operation == "restore":
        await (await engine.copies.restore("kept", "")).close()
    else:
        await source.pause()
        await source.resume()


async def main(operation: str, version: int, step: int) -> None:
    """Prepare a session, then do the operation."""
    steps = Steps()
    engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
    if version == 1:
        jail: Any = (await engine.probe("jail"))[0]
        found = hierarchies.discover()
        jail.layout = replace(found, freezing=found.v1_freezer)
    source = await engine.create_sandbox(limits={"memory_mb": 128})
    await source.run("x = 1; big = bytearray(b'x' * (4 << 20)); open('f', 'w').write('y')")
    await source.snapshot("kept")  # the base of the fork-server, too
    with steps.armed(step, end):
        await operate(engine, source, operation)
    say("count", steps.count)
    steps.close()
    await engine.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))

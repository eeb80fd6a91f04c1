"""An engine that kills itself at one step of a hibernation or a wake; a program of its own.

Not a test. Arguments: its folder, and the step. With step 0 it lives, and says how many steps there
are. What it has said before its end is what a caller would have had as answers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from cellwall import Engine
from kit.copies.killed import settings
from kit.copies.steps import Steps


def say(*words: object) -> None:
    """Write one line at once: what follows may be the end."""
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


def end() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


async def main(folder: Path, step: int) -> None:
    """Prepare a sandbox, hibernate it, and let a cell wake it."""
    steps = Steps()
    engine = Engine(settings=settings(folder), keeps_hibernated=True)
    sandbox = await engine.create_sandbox(limits={"memory_mb": 128})
    await sandbox.run("x = 41; _ = open('f', 'w').write('file')")
    with steps.armed(step, end):
        await sandbox.hibernate()
        say("hibernated")
        say("waking")
        await sandbox.run("x += 1")
        say("answered")
    say("count", steps.count)
    steps.close()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))

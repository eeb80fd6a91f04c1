"""A session goes on in a later engine: what it had prepared is kept in a directory."""

import asyncio
import tempfile

from cellwall import Engine, EngineSettings


async def prepare(settings: EngineSettings) -> None:
    """Keep a session; this engine and all of its sandboxes end."""
    engine = Engine(settings=settings)
    sandbox = await engine.create_sandbox()
    await sandbox.run("visits = 41")
    snapshot = await sandbox.snapshot("prepared", expires_s=7 * 86_400)
    print("durable:", snapshot.durable)
    await engine.aclose()


async def go_on(settings: EngineSettings) -> None:
    """Any later process on this machine can do that."""
    engine = Engine(settings=settings)
    sandbox = await engine.copies.restore("prepared", "")
    print((await sandbox.run("print(visits + 1)")).stdout, end="")
    await engine.aclose()


with tempfile.TemporaryDirectory() as place:  # yours stays, and only you may read it
    settings = EngineSettings(snapshots_dir=place)
    asyncio.run(prepare(settings))
    asyncio.run(go_on(settings))

"""Sandboxes with volumes behind each wall, on a template and on an image: what a test is run with.

Not the contract's fixtures, which park sandboxes. The invariant: the runtime is named, so that none
is replaced by another.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cellwall import AsyncSandbox, Engine, EngineSettings
from cellwall.engine.volumes.volume_store import VolumeStore
from kit.images.host_tree import image

ALL = [
    f"{runtime}-{root}"
    for runtime in ("jail", "gvisor", "docker")
    for root in ("template", "image")
]


@dataclass(frozen=True, slots=True)
class Wall:
    """One runtime, and one kind of root."""

    runtime: str
    tree: Path | None
    """The tree of the image that is the root; None: a template."""
    templates: Any
    place: Path
    """Its state directory, with a volume `data` of 16 MiB that is the test's own."""

    @property
    def store(self) -> VolumeStore:
        """The volumes of its state directory."""
        return VolumeStore(self.place)

    @contextlib.asynccontextmanager
    async def engine(self) -> AsyncIterator[Engine]:
        """Have an engine."""
        settings = EngineSettings(pool_min=0, pool_max=0)
        engine = Engine(self.place, settings, templates=self.templates)
        try:
            yield engine
        finally:
            await engine.aclose()

    def inside(self, work: Callable[[Engine], Awaitable[None]]) -> None:
        """Do work with one engine, from its start to its end."""

        async def done() -> None:
            async with self.engine() as engine:
                await work(engine)

        asyncio.run(done())

    async def start(self, engine: Engine, volumes: object, **options: Any) -> AsyncSandbox:
        """Start a sandbox, which the caller closes."""
        root = None if self.tree is None else image(self.tree)
        options = {"runtime": self.runtime, "image": root, **options}
        return await engine.create_sandbox(volumes=volumes, **options)

    @contextlib.asynccontextmanager
    async def sandbox(
        self, engine: Engine, volumes: object, **options: Any
    ) -> AsyncIterator[AsyncSandbox]:
        """Have a sandbox."""
        sandbox = await self.start(engine, volumes, **options)
        try:
            yield sandbox
        finally:
            await sandbox.close()


async def ran(sandbox: AsyncSandbox, code: str) -> str:
    """Run Python and return what it printed; it must not fail."""
    await sandbox.files.write("/tmp/program.py", code)
    done = await sandbox.commands.run(["python3", "/tmp/program.py"], timeout=90)
    assert done.exit_code == 0, done.stderr
    return done.stdout.strip()

"""Metadata of files goes with the files into copies, of each runtime that makes some."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings
from cellwall.model.snapshot import Keep
from conftest import require_capability
from kit.arena import Arena
from kit.copies.hibernated import no_pool

pytestmark = [pytest.mark.root]
GIVEN = {"author": "me"}


@pytest.fixture(scope="module", params=["jail", "gvisor"])
def arena(request: pytest.FixtureRequest) -> Iterator[Arena]:
    settings = EngineSettings(pool_min=0, pool_max=0)
    if request.param == "gvisor":
        require_capability("runsc", shutil.which("runsc") is not None, "apt-get install runsc")
        made = Arena(lambda: Engine(settings=settings), runtime="gvisor", isolation="kernel")
    else:
        made = Arena(lambda: Engine(settings=no_pool()))
    yield made
    made.close()


async def _given(sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("sub/f", "x", metadata=GIVEN)
    await sandbox.files.write("replaced", "x", metadata=GIVEN)
    await sandbox.files.write("/tmp/before", "x", metadata={"k": "of tmp"})
    await sandbox.files.move("/tmp/before", "/tmp/f")
    done = await sandbox.commands.run(
        "mv sub/f 'sub/by a program' && echo x > new && mv new replaced && echo x > none"
    )
    assert done.ok
    assert await _seen(sandbox) == ALL


async def _seen(sandbox: AsyncSandbox) -> list[dict[str, str]]:
    paths = ("sub/by a program", "/tmp/f", "replaced", "none")
    return [(await sandbox.files.stat(path)).metadata for path in paths]


ALL = [GIVEN, {"k": "of tmp"}, {}, {}]


def test_a_fork_and_its_fork_have_it_and_each_has_its_own(arena: Arena) -> None:
    async def forked() -> None:
        async with arena.sandbox() as source:
            await _given(source)
            [first] = [each.sandbox for each in await source.fork()]
            assert await _seen(first) == ALL
            await first.files.write("/tmp/f", "x", metadata={"k": "of the fork"})
            [second] = [each.sandbox for each in await first.fork()]
            assert (await _seen(second))[1] == {"k": "of the fork"}
            assert await _seen(source) == ALL
            await first.close()
            await second.close()

    arena.do(forked())


@pytest.mark.parametrize("keep", ["session", "files"])
def test_a_hibernation_keeps_it(keep: Keep) -> None:
    jail = Arena(lambda: Engine(settings=no_pool()))

    async def slept() -> None:
        async with jail.sandbox() as sandbox:
            await _given(sandbox)
            await sandbox.hibernate(keep=keep)
            assert sandbox.status == "hibernated"
            assert await _seen(sandbox) == ALL

    try:
        jail.do(slept())
    finally:
        jail.close()

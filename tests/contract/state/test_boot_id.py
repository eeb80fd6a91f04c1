"""The boot id inside is the sandbox's own, and another one only once nothing of its memory is left.

Where a sandbox goes on from its memory, programs remember what they wrote down with the boot id.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings
from kit.arena import Arena
from kit.copies.hibernated import no_pool

pytestmark = [pytest.mark.root]
PATH = "/proc/sys/kernel/random/boot_id"
HOST = Path(PATH).read_text(encoding="ascii").strip()
ELSEWHERE = """
import re
own = open('/proc/sys/kernel/random/boot_id').read().strip().encode()
shape = re.compile(rb'[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}')
kept = own.replace(b'-', b'_')
found = set()
with open('/proc/self/mem', 'rb', 0) as memory:
    for line in open('/proc/self/maps'):
        begin, end = (int(each, 16) for each in line.split()[0].split('-'))
        if line.split()[1][0] != 'r' or '[v' in line:
            continue
        memory.seek(begin)
        try:
            found.update(shape.findall(memory.read(end - begin)))
        except OSError:
            pass
print(own.decode(), *sorted(each.decode() for each in found))
"""


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    made = Arena(lambda: Engine(settings=no_pool()))
    yield made
    made.close()


async def _boot_id(sandbox: AsyncSandbox) -> str:
    """What a command reads; it has the shape of one, and is not the host's."""
    done = await sandbox.commands.run(f"cat {PATH}")
    assert done.outcome.verdict.value == "ok", done.stderr
    found = done.stdout.removesuffix("\n")
    assert uuid.UUID(found).version == 4
    assert str(uuid.UUID(found)) == found
    assert found != HOST
    return found


def test_it_stays_over_pauses_and_hibernations(arena: Arena) -> None:
    async def slept() -> None:
        async with arena.sandbox() as sandbox, arena.sandbox() as other:
            found = await _boot_id(sandbox)
            assert await _boot_id(other) != found
            assert (await sandbox.run(f"print(open({PATH!r}).read())")).stdout.strip() == found
            await sandbox.pause()
            assert await _boot_id(sandbox) == found
            for _ in range(2):
                await sandbox.run("x = 1")
                await sandbox.hibernate(drop=True)
                assert await _boot_id(sandbox) == found

    arena.do(slept())


def test_it_is_new_where_only_the_files_were_kept(arena: Arena) -> None:
    async def slept() -> None:
        async with arena.sandbox() as sandbox:
            found = {await _boot_id(sandbox)}
            for _ in range(2):
                await sandbox.hibernate(keep="files")
                found.add(await _boot_id(sandbox))
            await sandbox.hibernate(drop=True)
            await sandbox.hibernate(keep="files")  # the memory is forgotten while it sleeps
            found.add(await _boot_id(sandbox))
            assert len(found) == 4

    arena.do(slept())


def test_copies_of_memory_have_that_of_their_source(arena: Arena) -> None:
    async def copied() -> None:
        async with arena.sandbox() as source:
            found = await _boot_id(source)
            made = await source.snapshot("first")
            forks = [each.sandbox for each in await source.fork(2)]
            again = [each.sandbox for each in await forks[0].fork()]
            copies = (*forks, *again, await arena.engine.copies.restore(made.id, ""))
            assert {await _boot_id(each) for each in copies} == {found}
            for each in copies:
                await each.close()
            arena.engine.copies.delete(made.id, "")

    arena.do(copied())


def test_sandboxes_that_were_parked_have_one_each() -> None:
    made = Arena(lambda: Engine(settings=EngineSettings(pool_min=2, pool_max=2)))

    async def claimed() -> None:
        sandboxes = [await made.engine.create_sandbox() for _ in range(4)]
        found = {await _boot_id(each) for each in sandboxes}
        assert len(found) == len(sandboxes)

    try:
        made.do(claimed())
    finally:
        made.close()


@pytest.mark.parametrize("options", [{"start": "exec"}, {}])
def test_it_is_read_only(arena: Arena, options: dict[str, Any]) -> None:
    """The file belongs to the user; only the mount is read-only, and init's descriptor is not."""
    tries = f"chmod u+w {PATH}; echo x > {PATH}; touch {PATH}; : > /proc/1/fd/62; ls /proc/*/fd"

    async def tried() -> None:
        async with arena.sandbox(**options) as sandbox:
            found = await _boot_id(sandbox)
            done = await sandbox.commands.run(tries)
            assert done.stderr.count("Read-only file system") == 2, done.stderr
            assert "touch: cannot touch" in done.stderr
            assert "62" not in done.stdout.split()
            assert await _boot_id(sandbox) == found

    arena.do(tried())


def test_no_sandbox_has_that_of_another_in_its_memory() -> None:
    """They come from one process, whose memory each of them has a copy of."""
    made = Arena(lambda: Engine(settings=no_pool()))

    async def looked() -> None:
        earlier: set[str] = set()
        for _ in range(6):
            done = await made.engine.run(ELSEWHERE)
            assert done.verdict.value == "ok", done.stderr
            own, *found = done.stdout.split()
            assert own in found  # the control: what is in memory is found
            assert not earlier & set(found)
            earlier.add(own)
        async with made.sandbox() as sandbox:
            cell = await sandbox.run(ELSEWHERE)
            assert not earlier & set(cell.stdout.split()), cell.stderr

    try:
        made.do(looked())
    finally:
        made.close()

"""Images that no session wrote: the copy may die, and nothing else may notice.

Each mutation of a real image is given to a fresh sandbox. The witnesses are a neighbour, which has
its value and answers; a file of the host; the engine's traces; and the engine itself, which answers
with a typed error or has a sandbox. The image as it was is the control. CELLWALL_TEST_MUTATIONS
says how many there are: CI has 200 of the 10,000.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings
from cellwall.engine.state.copies import Written
from cellwall.model.errors import CellwallError
from cellwall.model.ids import new_id
from cellwall.runtimes.channel.replies import GuestRefused
from cellwall.runtimes.copies import SessionImage
from kit.arena import Arena
from kit.copies.images import Mutation, mutated
from kit.figures import grown

MUTATIONS = int(os.environ.get("CELLWALL_TEST_MUTATIONS", "200"))
AT_ONCE = 4
ASKED = "print(kept, open('mine').read())"
KEPT = "77 a file"
BECOME_S = 3.0
"""How long a sandbox may take to become what it then is not; hostile registers may loop."""
pytestmark = [pytest.mark.attack, pytest.mark.root, pytest.mark.timeout(60 + MUTATIONS)]


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    made = Arena(lambda: Engine(settings=EngineSettings(pool_min=0, pool_max=0)))
    yield made
    made.close()


async def _said(sandbox: AsyncSandbox, code: str) -> str:
    return (await sandbox.run(code, timeout=5)).stdout.strip()


async def _witness(sandbox: AsyncSandbox, code: str, wanted: str, what: object) -> None:
    """Hold a sandbox that nothing may hurt to its answer, however slow the machine is."""
    done = await sandbox.run(code, timeout=50)
    assert done.stdout.strip() == wanted, f"{what}: {done.outcome} {done.stderr}"


class _Real:
    """A snapshot of a session, whose image is given to others in parts."""

    def __init__(self, arena: Arena, written: Written) -> None:
        self.arena = arena
        self.written = written
        size = os.fstat(written.files.memory).st_size
        self.memory = os.pread(written.files.memory, size, 0)
        self.archive = os.pread(written.files.archive, written.image.files_bytes, 0)

    @property
    def image(self) -> SessionImage:
        return self.written.image

    async def become(self, mutation: Mutation) -> str:
        """Give the mutation to a fresh sandbox, look what it is, and end it; say what happened."""
        copies, runtime = self.arena.engine.copies, self.written.runtime
        copier = self.written.copier
        spec = replace(self.written.heritage.spec, sandbox_id=new_id(), lineage=self.image.lineage)
        files = copier.new_files(self.arena.engine.state_dir)
        live = await copies._host.claim(runtime, spec)
        adopted = None
        try:
            os.pwrite(files.memory, mutation.memory, 0)
            archive = self.archive if mutation.archive is None else mutation.archive
            os.pwrite(files.archive, archive, 0)
            async with asyncio.timeout(BECOME_S):
                await copier.become(live.runtime_sandbox, files, mutation.image, reseed=True)
                adopted = await copies._host.adopt(live, runtime, self.written.heritage)
                is_right = await _said(adopted, ASKED) == KEPT
                return "right" if is_right else "wrong"
        except TimeoutError:
            return "hung"
        except (CellwallError, GuestRefused) as error:
            return type(error).__name__
        finally:
            if adopted is None:
                copies._host.discard(live, runtime)
            else:
                await adopted.close()
            files.close()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def _mutated(arena: Arena, host_file: Path) -> Counter[str]:
    before = _digest(host_file)
    async with arena.sandbox() as source, arena.sandbox() as neighbour:
        await _said(source, "kept = 77; text = 'x' * 999; import json, random")
        await _said(source, "open('mine', 'w').write('a file'); open('/tmp/other', 'w').write('b')")
        await _said(neighbour, f"import random; mine = 'mine'; seen = {str(host_file)!r}")
        snapshot = await source.snapshot()
        written = arena.engine.copies._kept[snapshot.id].written
        assert written is not None
        real = _Real(arena, written)
        assert await real.become(Mutation("none", real.memory, real.image)) == "right"
        ends: Counter[str] = Counter()
        for first in range(0, MUTATIONS, AT_ONCE):
            seeds = range(first, min(first + AT_ONCE, MUTATIONS))
            given = [mutated(real.memory, real.archive, real.image, seed) for seed in seeds]
            ended = await asyncio.gather(*map(real.become, given))
            for mutation, end in zip(given, ended, strict=True):
                ends[("files " if mutation.archive else "") + end] += 1
            await _witness(neighbour, "print(mine, 6 * 7)", "mine 42", seeds)
            await _witness(source, ASKED, KEPT, seeds)
        assert await real.become(Mutation("none", real.memory, real.image)) == "right"
        await _witness(source, ASKED, KEPT, "the end")
        arena.engine.copies.delete(snapshot.id, "")
    assert _digest(host_file) == before
    return ends


def test_mutated_images_hurt_only_the_copy(arena: Arena, open_folder: Path, tmp_path: Path) -> None:
    host_file = open_folder / "bait"
    host_file.write_bytes(os.urandom(4096))
    arena.do(_mutated_once(arena))
    before = arena.reading(tmp_path)
    with arena.leaving_nothing():
        ends = arena.do(_mutated(arena, host_file))
    after = arena.reading(tmp_path)
    print(before, after, sep="\n")
    assert grown(before, after) == {}
    print(dict(sorted(ends.items())))
    assert sum(ends.values()) == MUTATIONS
    # They are read: most of them end the copy, and some change what it does not look at.
    assert ends["right"] < MUTATIONS
    assert ends.total() - ends["right"] - ends["hung"] > MUTATIONS / 10
    assert sum(ends[each] for each in ends if each.startswith("files ")) == MUTATIONS // 10
    assert len([each for each in ends if each.startswith("files ")]) > 1


async def _mutated_once(arena: Arena) -> None:
    """The base of the fork-server exists from here on."""
    async with arena.sandbox() as source:
        (fork,) = await source.fork()
        await fork.sandbox.close()

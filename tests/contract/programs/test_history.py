"""History of a work area: what a rollback brings back, on each runtime, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.model.errors import (
    Conflict,
    FileError,
    NotFound,
    QuotaExceeded,
    SandboxUnavailable,
    UsageError,
)
from conftest import ground

MAKE = r"""
import os
os.makedirs("a/b/c")
open("a/text", "w").write("one\ntwo\nthree\n")
open("a/b/data", "wb").write(bytes(range(256)) * 2000)
open("a/b/c/empty", "w").close()
os.symlink("/etc/passwd", "out")
os.symlink("nowhere", "broken")
os.mkfifo("fifo", 0o640)
open(b"bad-\xff\xfe\nname", "w").write("odd")
os.chmod("a/text", 0o754)
os.utime("a/text", ns=(5, 1_334_567_891_234_567_891))
os.link("a/text", "hard")  # last: gVisor may keep other times and modes for each name
os.mkdir("closed"); open("closed/in", "w").write("hidden")
open("locked", "w").write("locked"); os.chmod("locked", 0)
os.utime("a/b/data", ns=(5, 1_234_567_891_234_567_891))
os.chmod("closed", 0); os.chmod("a/b", 0o500)
"""
SPOIL = r"""
import os, shutil
os.chmod("a/b", 0o700); os.chmod("closed", 0o700)
open("a/b/data", "r+b").write(b"changed")
shutil.rmtree("closed"); os.mkdir("hard2"); os.remove("hard"); os.mkdir("hard")
open("hard/x", "w").write("x"); os.remove("out"); open("out", "w").write("file")
os.remove("broken"); os.remove("fifo"); os.mkfifo("other"); os.chmod("locked", 0o777)
os.rename("a/text", "a/renamed"); os.remove(b"bad-\xff\xfe\nname")
shutil.rmtree("a/b/c"); open("new", "w").write("new"); os.chmod("a/b", 0)
"""
LOOK = r"""
import hashlib, os
def look(top):
    found = []
    for name in sorted(os.listdir(top), key=os.fsencode):
        path = os.path.join(top, name); s = os.lstat(path); mode = s.st_mode
        row = [path.encode("utf-8", "surrogateescape"), oct(mode), s.st_nlink, s.st_uid]
        if path not in ("./.cache",): row.append(s.st_mtime_ns)
        if os.path.islink(path): row.append(os.readlink(path))
        elif os.path.isdir(path):
            if not mode & 0o500: os.chmod(path, 0o700)
            found += look(path)
            os.chmod(path, mode & 0o7777)
        elif os.path.isfile(path):
            os.chmod(path, mode & 0o7777 | 0o400)
            row.append(hashlib.sha256(open(path, "rb").read()).hexdigest())
            os.chmod(path, mode & 0o7777)
        found.append(row)
    return found
print(look("."))
"""


@asynccontextmanager
async def _engine(place: Path, templates: Any = None, **settings: Any) -> AsyncIterator[Engine]:
    known = templates or TemplateStore(state_dir())
    settings = {"pool_min": 0, "pool_max": 0, **settings}
    engine = Engine(place, EngineSettings(**settings), templates=known)
    try:
        yield engine
    finally:
        await engine.aclose()


_LEVELS = {"gvisor": "kernel", "process": "process"}
Work = Callable[[AsyncSandbox], Awaitable[None]]
World = Callable[..., None]


@pytest.fixture
def in_sandbox(tmp_path: Path) -> World:
    """Run a coroutine function with a sandbox of its own in the jail."""

    def run(work: Work, *, engine: dict[str, Any] | None = None, **options: Any) -> None:
        async def whole() -> None:
            async with (
                _engine(tmp_path, **(engine or {})) as made,
                await made.create_sandbox(runtime="jail", **options) as sandbox,
            ):
                await work(sandbox)

        asyncio.run(whole())

    return run


async def _done(sandbox: AsyncSandbox, code: str) -> str:
    execution = await sandbox.run(code)
    assert execution.outcome.verdict.value == "ok", execution.stderr or execution.error
    return execution.stdout


async def _there_and_back(sandbox: AsyncSandbox) -> None:
    await _done(sandbox, MAKE)
    before = await _done(sandbox, LOOK)
    made = await sandbox.files.checkpoint("made")
    assert made.files == 7
    await _done(sandbox, SPOIL)
    spoilt = await _done(sandbox, LOOK)
    assert spoilt != before
    changes = {change.path: change for change in await sandbox.files.diff()}
    assert changes["a/b/data"].kind == "modified"
    assert changes["new"].kind == "added"
    assert changes["closed/in"].kind == "deleted"
    assert (changes["a/renamed"].kind, changes["a/renamed"].old_path) in {
        ("renamed", "a/text"),
        ("added", None),
    }
    assert (changes["out"].kind, changes["out"].type) == ("modified", "file")
    assert changes["bad-\udcff\udcfe\nname"].kind == "deleted"
    await sandbox.files.rollback(made.id)
    assert await _done(sandbox, LOOK) == before
    assert await sandbox.files.diff() == []


@pytest.mark.root
@pytest.mark.parametrize("runtime", ["jail", "gvisor", "docker", "process"])
def test_rollback_brings_back_all_that_is_kept(
    request: pytest.FixtureRequest, tmp_path: Path, runtime: str
) -> None:
    options = ground(request, runtime)
    directory, templates = options.get("directory", tmp_path), options.get("templates")

    async def whole() -> None:
        settings = {"allow_process": runtime == "process"}
        async with (
            _engine(directory, templates, **settings) as engine,
            await engine.create_sandbox(runtime=runtime, isolation=_LEVELS.get(runtime)) as sandbox,
        ):
            await _there_and_back(sandbox)

    asyncio.run(whole())


def test_checkpoints_share_what_they_have_in_common(in_sandbox: World) -> None:
    async def work(sandbox: AsyncSandbox) -> None:
        files = sandbox.files
        await files.write("big", os.urandom(3 << 20))
        first = await files.checkpoint()
        await files.write("small", "x" * 1000)
        await files.write("copy", await files.read("big", text=False))
        second = await files.checkpoint("second")
        assert first.new_bytes >= 3 << 20
        assert 1000 <= second.new_bytes < 10_000
        assert [each.name for each in await files.checkpoints()] == [None, "second"]
        await files.drop(first.id)
        await files.remove("big")
        await files.remove("copy")
        await files.rollback(second.id)
        assert len(await files.read("big", text=False)) == 3 << 20
        assert [change.path for change in await files.diff(second.id, second.id)] == []
        with pytest.raises(NotFound, match="is none of this sandbox"):
            await files.diff(first.id)

    in_sandbox(work)


def test_text_diff_of_one_file(in_sandbox: World) -> None:
    async def work(sandbox: AsyncSandbox) -> None:
        await sandbox.files.write("a/text", "one\ntwo\nthree\n")
        first = await sandbox.files.checkpoint()
        await sandbox.files.write("a/text", "one\n2\nthree\n")
        wanted = "--- a/a/text\n+++ b/a/text\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
        assert await sandbox.files.diff_text("a/text") == wanted
        second = await sandbox.files.checkpoint()
        await sandbox.files.remove("a/text")
        assert await sandbox.files.diff_text("./a/text", first.id, second.id) == wanted
        assert "+++ /dev/null\n" in await sandbox.files.diff_text("a/text")
        await sandbox.files.write("binary", b"a\0b")
        assert await sandbox.files.diff_text("binary") == "Binary files differ: binary\n"
        for path in ("/etc/passwd", "../x", "."):
            with pytest.raises(FileError, match="below the working directory"):
                await sandbox.files.diff_text(path)

    in_sandbox(work)


def test_transaction_is_undone_by_an_exception(in_sandbox: World) -> None:
    async def work(sandbox: AsyncSandbox) -> None:
        async with sandbox.files.transaction():
            await sandbox.files.write("kept", "kept")

        async def failing() -> None:
            async with sandbox.files.transaction():
                await sandbox.files.remove("kept")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await failing()
        assert await sandbox.files.read("kept") == "kept"
        assert await sandbox.files.checkpoints() == []

    in_sandbox(work)


def test_rollback_waits_for_nothing_that_runs(in_sandbox: World) -> None:
    async def work(sandbox: AsyncSandbox) -> None:
        made = await sandbox.files.checkpoint()
        await sandbox.files.write("x", "x")
        command = await sandbox.commands.start("sleep 60")
        with pytest.raises(Conflict, match="1 executions or commands are running"):
            await sandbox.files.rollback(made.id)
        assert await sandbox.files.read("x") == "x"
        await command.kill()
        await command.wait()
        await sandbox.files.rollback(made.id)
        assert not await sandbox.files.exists("x")

    in_sandbox(work)


def test_bounds_are_held(in_sandbox: World) -> None:
    async def work(sandbox: AsyncSandbox) -> None:
        await sandbox.files.write("big", os.urandom(700_000))
        first = await sandbox.files.checkpoint()
        await sandbox.files.write("bigger", os.urandom(700_000))
        with pytest.raises(QuotaExceeded, match="1 MiB that checkpoints"):
            await sandbox.files.checkpoint()
        assert [each.id for each in await sandbox.files.checkpoints()] == [first.id]
        await sandbox.files.drop(first.id)
        await sandbox.files.remove("big")
        await sandbox.files.checkpoint()

    in_sandbox(work, engine={"history_mb": 1})


def test_operator_may_permit_none(in_sandbox: World) -> None:
    async def work(sandbox: AsyncSandbox) -> None:
        with pytest.raises(UsageError, match="permits none"):
            await sandbox.files.checkpoint()

    in_sandbox(work, engine={"history_mb": 0})


def test_an_ended_sandbox_leaves_nothing_on_disk(tmp_path: Path) -> None:
    async def whole() -> None:
        async with _engine(tmp_path) as engine:
            sandbox = await engine.create_sandbox(runtime="jail", tenant="one")
            await sandbox.files.write("x", os.urandom(100_000))
            before = _names(tmp_path)
            await sandbox.files.checkpoint()
            assert engine.history_room.taken_mb("one") == 1
            assert any(_is_pack(name, tmp_path) for name in _open_files())
            assert _names(tmp_path) == before
            await sandbox.close()
            assert engine.history_room.taken_mb("one") == 0
            with pytest.raises(SandboxUnavailable):
                await sandbox.files.checkpoints()
            assert not any(_is_pack(name, tmp_path) for name in _open_files())

    asyncio.run(whole())


def _names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def _is_pack(name: str, folder: Path) -> bool:
    return name.startswith(f"{folder}/#") and name.endswith(" (deleted)")


def _open_files() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # of this listing itself
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return found

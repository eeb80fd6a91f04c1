"""Transfers that a caller leaves, spoils or takes its time over: the sandbox goes on.

The control is in each test: what comes out before it is left, and an answer afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cellwall
from cellwall import AsyncSandbox
from cellwall.model.errors import FileError, SandboxUnavailable, UsageError
from cellwall.model.files import FileEntry

if TYPE_CHECKING:
    from kit.servers import Server

_TREE = "mkdir d; for i in $(seq 40); do head -c 300000 /dev/zero > d/x$i; done"


class Mine(ValueError):
    """The caller's, and of a kind that answers of the guest have, too."""


def _fail(done: int, total: int | None) -> None:
    raise Mine("progress")


def with_sandbox(
    scenario: Callable[[AsyncSandbox], Coroutine[Any, Any, None]], **options: Any
) -> None:
    async def work() -> None:
        async with asyncio.timeout(20), AsyncSandbox.create(**options) as sandbox:
            await sandbox.commands.run(_TREE)
            await scenario(sandbox)

    asyncio.run(work())


def test_leaving_a_stream_of_a_directory_early_lets_the_sandbox_speak_again() -> None:
    async def scenario(sandbox: AsyncSandbox) -> None:
        async with contextlib.aclosing(sandbox.files.stream_dir("d")) as pieces:
            async for piece in pieces:
                assert piece
                break
        assert await sandbox.files.exists("d")
        assert (await sandbox.run("1 + 1", timeout=5)).text == "2"

    with_sandbox(scenario)


@pytest.mark.parametrize(
    ("options", "error"), [({"most_bytes": 1000}, FileError), ({"on_progress": _fail}, Mine)]
)
def test_a_download_that_fails_lets_the_sandbox_speak_again(
    tmp_path: Path, options: dict[str, Any], error: type[Exception]
) -> None:
    async def scenario(sandbox: AsyncSandbox) -> None:
        with pytest.raises(error) as caught:
            await sandbox.files.download_dir("d", tmp_path / "out", **options)
        assert await sandbox.files.exists("d")
        assert str(caught.value)  # held meanwhile: nothing hangs on a collector

    with_sandbox(scenario)


def test_a_remote_download_that_fails_lets_the_sandbox_speak_again(
    server: Server, tmp_path: Path
) -> None:
    from kit.servers import ALICE

    with cellwall.connect(server.address, ALICE) as client, client.Sandbox() as sandbox:
        sandbox.commands.run(_TREE)
        with pytest.raises(FileError) as caught:
            sandbox.files.download_dir("d", tmp_path / "out", most_bytes=1000)
        assert sandbox.files.exists("d")
        assert str(caught.value)


def test_an_error_of_the_callers_own_stays_its_own(tmp_path: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"x"
        raise Mine("source")

    (tmp_path / "in").mkdir()
    (tmp_path / "in/file").write_bytes(b"x")

    async def scenario(sandbox: AsyncSandbox) -> None:
        for spoilt in (
            sandbox.files.write_stream("a", pieces()),
            sandbox.files.append_stream("a", pieces()),
            sandbox.files.put_tree("a", pieces()),
            sandbox.files.upload(tmp_path / "in/file", "a", on_progress=_fail),
            sandbox.files.upload_dir(tmp_path / "in", "a", on_progress=_fail),
        ):
            with pytest.raises(Mine):
                await spoilt
        assert await sandbox.files.exists("d")

    with_sandbox(scenario)


def test_a_reader_that_takes_its_time_is_not_idle() -> None:
    async def scenario(sandbox: AsyncSandbox) -> None:
        loop = asyncio.get_running_loop()
        began, size = loop.time(), 0
        async for piece in sandbox.files.stream_dir("d"):
            size += len(piece)
            if loop.time() - began < 2:
                await asyncio.sleep(0.4)
        assert size > 40 * 300_000

    with_sandbox(scenario, limits={"idle_s": 1})


def test_a_writer_that_takes_its_time_is_not_idle() -> None:
    async def drops() -> AsyncIterator[bytes]:
        for _ in range(5):
            await asyncio.sleep(0.8)
            yield b"x"

    async def scenario(sandbox: AsyncSandbox) -> None:
        assert await sandbox.files.write_stream("slow", drops()) == 5

    with_sandbox(scenario, limits={"idle_s": 3})


def test_a_sandbox_that_ends_under_a_call_says_so() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 100_000
            await asyncio.sleep(0)

    async def scenario(sandbox: AsyncSandbox) -> None:
        files = sandbox.files
        calls = [files.put_tree("a", endless()), files.write_stream("b", endless())]
        under_way = [asyncio.ensure_future(each) for each in (*calls, files.read("d/x1"))]
        await asyncio.sleep(0)
        await sandbox.close()
        for answer in await asyncio.gather(*under_way, return_exceptions=True):
            assert isinstance(answer, SandboxUnavailable), repr(answer)
            assert "it was closed" in str(answer)

    with_sandbox(scenario)


@pytest.mark.parametrize("content", [5, None, ["x"]])
def test_content_that_is_neither_text_nor_bytes_is_refused(content: Any) -> None:
    async def scenario(sandbox: AsyncSandbox) -> None:
        for step in (sandbox.files.write, sandbox.files.append):
            with pytest.raises(UsageError, match="content"):
                await step("a", content)
        assert await sandbox.files.write("a", b"xy") == 2

    with_sandbox(scenario)


@pytest.mark.parametrize("number", [10**400, -(10**400), 1 << 63])
def test_a_number_that_no_kernel_has_is_no_entry(number: int) -> None:
    assert FileEntry.parse({"mtime": 1.5}).mtime == 1.5
    for field in ("mtime", "size", "mode"):
        with pytest.raises(ValueError, match="out of range"):
            FileEntry.parse({field: number})

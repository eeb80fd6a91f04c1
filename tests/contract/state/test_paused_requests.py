"""Every request that needs the inside resumes a paused or a hibernated sandbox, or is refused.

A request that forgets to waits for an answer that cannot come. So the table names each method of a
sandbox and its parts; one that is new belongs into it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings
from cellwall.engine.parts.commands import Commands
from cellwall.engine.parts.contexts import Contexts
from cellwall.engine.parts.files import Files
from cellwall.model.errors import Conflict
from kit.arena import Arena

pytestmark = pytest.mark.root
Request = Callable[[AsyncSandbox], Awaitable[Any]]
SOON_S = 30


KEPT: dict[str, str] = {}
"""Id of a checkpoint, by the id of its sandbox."""


async def _forked(sandbox: AsyncSandbox) -> None:
    for each in await sandbox.fork():
        await each.sandbox.close()


async def _pieces() -> AsyncIterator[bytes]:
    yield b"text"


async def _no_tree() -> AsyncIterator[bytes]:
    yield bytes(1024)


async def _streamed(pieces: AsyncIterable[bytes]) -> None:
    async for _ in pieces:
        pass


async def _watched(sandbox: AsyncSandbox) -> None:
    async with sandbox.files.watch():
        pass


async def _undone(sandbox: AsyncSandbox) -> None:
    async with sandbox.files.transaction():
        pass


REQUESTS: dict[str, Request] = {
    "run": lambda sandbox: sandbox.run("1"),
    "stream": lambda sandbox: _streamed(sandbox.stream("1")),  # type: ignore[arg-type]  # its events
    "fork": _forked,
    "snapshot": lambda sandbox: sandbox.snapshot(expires_s=5),
    "interrupt": lambda sandbox: sandbox.interrupt(),
    "commands.run": lambda sandbox: sandbox.commands.run("true"),
    "commands.start": lambda sandbox: sandbox.commands.start("true"),
    "contexts.create": lambda sandbox: sandbox.contexts.create("other"),
    "contexts.close": lambda sandbox: sandbox.contexts.close("main"),
    "contexts.restart": lambda sandbox: sandbox.contexts.restart(),
    "files.append": lambda sandbox: sandbox.files.append("note", "text"),
    "files.append_stream": lambda sandbox: sandbox.files.append_stream("note", _pieces()),
    "files.checkpoint": lambda sandbox: sandbox.files.checkpoint(),
    "files.diff": lambda sandbox: sandbox.files.diff(),
    "files.diff_text": lambda sandbox: sandbox.files.diff_text("note"),
    "files.drop": lambda sandbox: sandbox.files.drop(KEPT[sandbox.id]),
    "files.exists": lambda sandbox: sandbox.files.exists("note"),
    "files.list": lambda sandbox: sandbox.files.list("."),
    "files.listing": lambda sandbox: sandbox.files.listing("."),
    "files.mkdir": lambda sandbox: sandbox.files.mkdir("folder"),
    "files.move": lambda sandbox: sandbox.files.move("note", "moved"),
    "files.put_tree": lambda sandbox: sandbox.files.put_tree("tree", _no_tree()),
    "files.read": lambda sandbox: sandbox.files.read("note"),
    "files.read_bytes": lambda sandbox: sandbox.files.read_bytes("note"),
    "files.read_piece": lambda sandbox: sandbox.files.read_piece("note"),
    "files.read_stream": lambda sandbox: _streamed(sandbox.files.read_stream("note", 0, 4)),
    "files.remove": lambda sandbox: sandbox.files.remove("note"),
    "files.rollback": lambda sandbox: sandbox.files.rollback(KEPT[sandbox.id]),
    "files.stat": lambda sandbox: sandbox.files.stat("note"),
    "files.stream_dir": lambda sandbox: _streamed(sandbox.files.stream_dir(".")),
    "files.stream_root": lambda sandbox: _streamed(sandbox.files.stream_root()),
    "files.transaction": _undone,
    "files.watch": _watched,
    "files.write": lambda sandbox: sandbox.files.write("note", "text"),
    "files.write_stream": lambda sandbox: sandbox.files.write_stream("note", _pieces()),
}
NO_REQUESTS = {
    "AsyncSandbox": {
        *("close", "create", "extend", "on_ended", "pause", "restore", "resume"),  # of its life
        *("check_hibernation", "hibernate"),  # the same
        *("go_on_in_fresh", "on_laid_down", "heritage"),  # of its hibernations
        *("network_log", "network_usage", "set_network"),  # of the host's side alone
        *("go_on", "keep", "leave", "pause_again"),  # of the engine, when a server ends or begins
        *("sleep_on", "standstill"),  # the same, of hibernated ones
        *("for_model", "install"),  # made of commands and files
    },
    "Files": {
        *("checkpoints", "forget_history"),  # of the host's side alone
        *("download", "download_dir", "upload", "upload_dir"),  # made of the others
    },
    "Contexts": {
        *("alone", "note_ended", "resume", "spoken", "take_over"),  # of the engine
        *("known", "sleep_on"),  # the same
        *("begin_anew", "end_others", "is_busy", "is_told_of_successor"),  # of hibernations
        *("birth", "check", "ensure", "language", "mark_ended", "names", "turn"),
        "list",  # looks, and has its own test
    },
    "Commands": {
        *("get", "kill", "list", "send_stdin"),  # of commands: test_faults_paused.py
        "attach",  # looks, and has its own test
        "background",  # the same
        *("keep", "kept", "take_on"),  # of the engine, when a server ends or begins
    },
}


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    made = Arena(lambda: Engine(settings=EngineSettings(pool_min=0, pool_max=0)))
    yield made
    made.close()


@pytest.mark.parametrize("name", REQUESTS)
def test_request_resumes_a_paused_sandbox(arena: Arena, name: str) -> None:
    async def asked() -> None:
        async with arena.sandbox() as sandbox:
            await sandbox.files.write("note", "text")
            KEPT[sandbox.id] = (await sandbox.files.checkpoint()).id
            await sandbox.pause()
            async with asyncio.timeout(SOON_S):
                await REQUESTS[name](sandbox)
                while sandbox.status != "running":  # noqa: ASYNC110 - an interrupt tells nothing
                    await asyncio.sleep(0.01)

    arena.do(asked())


@pytest.mark.parametrize("name", REQUESTS)
def test_request_is_refused_if_the_owner_resumes_by_hand(arena: Arena, name: str) -> None:
    async def asked() -> None:
        async with arena.sandbox(resume="manual") as sandbox:
            await sandbox.files.write("note", "text")
            KEPT[sandbox.id] = (await sandbox.files.checkpoint()).id
            await sandbox.pause()
            async with asyncio.timeout(SOON_S):
                with pytest.raises(Conflict, match="it is paused"):
                    await REQUESTS[name](sandbox)
            assert sandbox.status == "paused"

    arena.do(asked())


@pytest.mark.parametrize("name", REQUESTS)
def test_request_brings_a_hibernated_sandbox_back(arena: Arena, name: str) -> None:
    async def asked() -> None:
        async with arena.sandbox() as sandbox:
            await sandbox.files.write("note", "text")
            KEPT[sandbox.id] = (await sandbox.files.checkpoint()).id
            await sandbox.hibernate()
            assert sandbox.live.asleep is not None
            async with asyncio.timeout(SOON_S):
                await REQUESTS[name](sandbox)
            assert sandbox.status == "running"

    arena.do(asked())


@pytest.mark.parametrize("name", REQUESTS)
def test_request_leaves_it_hibernated_if_the_owner_resumes_by_hand(arena: Arena, name: str) -> None:
    async def asked() -> None:
        async with arena.sandbox(resume="manual") as sandbox:
            await sandbox.files.write("note", "text")
            KEPT[sandbox.id] = (await sandbox.files.checkpoint()).id
            await sandbox.hibernate()
            async with asyncio.timeout(SOON_S):
                with pytest.raises(Conflict, match="it is paused"):
                    await REQUESTS[name](sandbox)
            assert sandbox.status == "hibernated"

    arena.do(asked())


def test_list_of_contexts_does_not_wake_a_paused_sandbox(arena: Arena) -> None:
    async def looked() -> None:
        async with arena.sandbox(resume="manual") as sandbox:
            await sandbox.contexts.create("other")
            await sandbox.contexts.create("third")
            await sandbox.contexts.close("third")
            running = await sandbox.contexts.list()
            await sandbox.pause()
            assert await sandbox.contexts.list() == running == ["python", "other"]
            assert sandbox.status == "paused"
            await sandbox.resume()
            assert await sandbox.contexts.list() == running

    arena.do(looked())


def test_table_names_every_method() -> None:
    parts = {"": AsyncSandbox, "files": Files, "contexts": Contexts, "commands": Commands}
    for part, kind in parts.items():
        named = {
            end for name in REQUESTS for start, _, end in [name.rpartition(".")] if start == part
        }
        methods = {
            name
            for name, _ in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }
        none = NO_REQUESTS[kind.__name__]
        assert methods - named == none, kind.__name__

"""A hibernated sandbox has no processes, loses nothing in silence, and goes on under its id."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall import AsyncSandbox, Engine
from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.model.errors import (
    CapacityError,
    CellwallError,
    Conflict,
    HostUnsupported,
    SandboxBroken,
    SandboxUnavailable,
    UsageError,
)
from cellwall.runtimes.jail.sandbox import JailSandbox
from kit.arena import Arena
from kit.copies.hibernated import Halt, closed_meanwhile, no_pool, pids_of, status
from kit.images.volume_walls import Wall
from kit.jail.control_groups import control_groups, is_occupied
from kit.waiting import is_alive

pytestmark = [pytest.mark.root]
LEFT_SOON_S = 20.0


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    made = Arena(lambda: Engine(settings=no_pool()))
    yield made
    made.close()


async def _said(sandbox: AsyncSandbox, code: str) -> str:
    done = await sandbox.run(code)
    assert done.verdict.value == "ok", done.stderr
    return done.stdout.strip()


async def _until(sandbox: AsyncSandbox, status: str) -> None:
    async with asyncio.timeout(LEFT_SOON_S):
        while sandbox.status != status:  # noqa: ASYNC110 - a timer of the sandbox tells nothing
            await asyncio.sleep(0.02)


def _nameless() -> int:
    """Descriptors of this process to files without a name: images are such."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = os.readlink(each)
            found += "/#" in target and target.endswith("(deleted)")
    return found


def test_session_goes_on_where_it_was(arena: Arena) -> None:
    """Variables, files, an open file at its position, the working directory; and the id."""

    async def slept() -> None:
        async with arena.sandbox(env={"OWN": "mine"}) as sandbox:
            name = sandbox.id
            await _said(
                sandbox,
                "import os\nx = 41\nos.mkdir('d')\nos.chdir('d')\n"
                "f = open('note', 'w+')\n_ = f.write('first ')\nf.flush()",
            )
            told = ""
            for _ in range(2):
                assert await sandbox.hibernate() == ()
                assert status(sandbox) == "hibernated"
                assert await sandbox.hibernate() == ()  # idempotent
                told = await _said(
                    sandbox, "x += 1\n_ = f.write('more ')\nf.flush()\n"
                    "print(x, os.getcwd(), os.environ['OWN'], open('note').read())"
                )  # fmt: skip
                assert status(sandbox) == "running"
            assert told == "43 /home/user/d mine first more more"
            assert sandbox.id == name
            assert arena.engine.sandbox(name) is sandbox
            done = await sandbox.commands.run("cat d/note")
            assert done.stdout == "first more more "

    arena.do(slept())


def test_no_process_and_no_memory_is_left_of_it(arena: Arena) -> None:
    """The kernel is asked; what it used is still known, and looking does not wake it."""

    async def slept() -> None:
        async with arena.sandbox() as sandbox:
            await _said(sandbox, "x = sum(range(3_000_000))")
            processes, before = pids_of(sandbox), sandbox.live.readings()
            assert all(is_alive(pid) for pid in processes)  # the control
            assert before.memory_bytes > 0
            groups = {each for each in control_groups(os.getpid()) if is_occupied(each)}
            await sandbox.pause()
            assert all(is_alive(pid) for pid in processes)  # a pause alone ends nothing
            await sandbox.hibernate()
            assert not any(is_alive(pid) for pid in processes)
            await arena.engine.wait_settled()
            assert {each for each in groups if is_occupied(each)} < groups
            now = sandbox.live.readings()
            assert now.memory_bytes == 0
            assert now.cpu_s >= before.cpu_s
            assert sandbox.limits.memory_mb
            assert await sandbox.contexts.list() == ["python"]
            assert arena.engine.statistics().hibernated == 1
            assert 0 < arena.engine.statistics().hibernated_bytes < 5 << 20
            assert status(sandbox) == "hibernated"
            assert await _said(sandbox, "print(x)") == str(sum(range(3_000_000)))
            assert sandbox.live.readings().cpu_s > now.cpu_s

    arena.do(slept())


def test_clocks_stand_still_and_the_sum_of_pauses_is_bounded() -> None:
    made = Arena(lambda: Engine(settings=no_pool(paused_s=8.0)))

    async def slept() -> None:
        async with made.sandbox(limits={"idle_s": 3, "life_s": 3600}) as sandbox:
            await sandbox.hibernate()
            left_s, began_s = sandbox.ends_at - time.time(), time.monotonic()
            while time.monotonic() - began_s < 3.5:  # noqa: ASYNC110 - longer than its idle time
                await asyncio.sleep(0.1)
            assert status(sandbox) == "hibernated"
            assert abs(sandbox.ends_at - time.time() - left_s) < 0.1
            await _said(sandbox, "print()")
            await sandbox.hibernate()
            await _until(sandbox, "stopped")
            with pytest.raises(SandboxUnavailable, match="it was paused for 8 s"):
                await sandbox.run("1")
            assert made.engine.copies_room.used_bytes == 0

    made.do(slept())
    made.close()


def test_it_hibernates_by_itself_after_a_pause(arena: Arena) -> None:
    async def slept() -> None:
        async with arena.sandbox(hibernate_s=1, auto_pause_s=1) as sandbox:
            await _said(sandbox, "x = 1")
            await _until(sandbox, "hibernated")
            assert await _said(sandbox, "print(x)") == "1"
            await _until(sandbox, "hibernated")

    arena.do(slept())


def test_what_would_be_lost_is_refused_and_named(arena: Arena) -> None:
    """By hand with the names; by itself it stays paused and says why, and all of it goes on."""

    async def slept() -> None:
        async with arena.sandbox(hibernate_s=1) as sandbox:
            command = await sandbox.commands.start("sleep 1000")
            await sandbox.run("y=5", "bash")
            with pytest.raises(Conflict, match="it would lose command "):
                await sandbox.hibernate()
            assert status(sandbox) == "running"
            await sandbox.pause()
            async with asyncio.timeout(LEFT_SOON_S):
                while not sandbox.stays_because:  # noqa: ASYNC110 - a timer tells nothing
                    await asyncio.sleep(0.02)
            assert "sleep 1000" in sandbox.stays_because
            assert status(sandbox) == "paused"
            await sandbox.resume()
            assert str(sandbox.stays_because) == ""
            assert command.is_running
            await command.kill()
            await command.wait()
            with pytest.raises(Conflict, match="it would lose context 'bash'"):
                await sandbox.hibernate()
            assert (await sandbox.run("echo $y", "bash")).stdout == "5\n"

    arena.do(slept())


def test_what_the_owner_drops_ends_and_is_named(arena: Arena) -> None:
    async def slept() -> None:
        async with arena.sandbox() as sandbox:
            await _said(
                sandbox,
                "import threading, time\nx = 3\n"
                "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
            )
            with pytest.raises(Conflict, match="thread"):
                await sandbox.hibernate()
            command = await sandbox.commands.start("sleep 1000")
            left = await sandbox.hibernate(drop=True)
            assert any("sleep 1000" in each for each in left)
            assert any("thread" in each for each in left)
            result = await asyncio.wait_for(command.wait(), LEFT_SOON_S)
            assert result.outcome.verdict.value == "cancelled"
            assert await _said(sandbox, "print(x, threading.active_count())") == "3 1"
            assert await sandbox.commands.list() == []
            # Its number is not that of another command now.
            other = await sandbox.commands.start("sleep 1000")
            await command.kill()
            assert await _said(sandbox, "print(x)") == "3"
            assert other.is_running

    arena.do(slept())


def test_cell_that_stands_still_half_way_keeps_it_paused(arena: Arena) -> None:
    async def slept() -> None:
        async with arena.sandbox() as sandbox:
            begun = asyncio.Event()
            running = asyncio.ensure_future(
                sandbox.run(
                    "print('go', flush=True)\nimport time; time.sleep(0.5); print('done')",
                    on_stdout=lambda _text: begun.set(),
                )
            )
            await begun.wait()
            await sandbox.pause()
            with pytest.raises(Conflict, match="a cell in it stands still half way"):
                await sandbox.hibernate(drop=True)
            assert status(sandbox) == "paused"
            await sandbox.resume()
            await sandbox.hibernate()  # waits for the cell, as a fork does
            assert (await running).stdout == "go\ndone\n"
            assert status(sandbox) == "hibernated"

    arena.do(slept())


def test_request_in_the_middle_keeps_it_alive(arena: Arena, monkeypatch: Any) -> None:
    """What was asked while it was written down is not in the image, so it is not given up."""

    async def slept() -> None:
        async with arena.sandbox() as sandbox:
            await _said(sandbox, "x = 1")
            write = arena.engine.copies.write_idle

            async def and_a_file(*given: Any) -> Any:
                written = await write(*given)
                await sandbox.files.write("late", "text")
                return written

            monkeypatch.setattr(arena.engine.copies, "write_idle", and_a_file)
            with pytest.raises(Conflict, match="it was used meanwhile"):
                await sandbox.hibernate()
            monkeypatch.undo()
            assert await sandbox.files.read("late") == "text"
            assert arena.engine.copies_room.used_bytes == 0
            await sandbox.hibernate()
            assert await sandbox.files.read("late") == "text"

    arena.do(slept())


def test_wake_without_room_leaves_it_as_it_was(arena: Arena) -> None:
    async def slept() -> None:
        async with arena.sandbox() as sandbox:
            await _said(sandbox, "x = 8")
            given_back = []

            def full() -> None:
                raise CapacityError("admission: all is promised", retry_after_s=1.0)

            sandbox.hibernation.on_down = lambda: given_back.append(1)
            await sandbox.hibernate()
            assert given_back == [1]
            sandbox.hibernation.before_back = full
            for request in (sandbox.run("1"), sandbox.resume(), sandbox.files.read("f")):
                with pytest.raises(CapacityError, match="all is promised"):
                    await request
                assert status(sandbox) == "hibernated"
            sandbox.hibernation.before_back = lambda: given_back.append(-1)
            assert await _said(sandbox, "print(x)") == "8"
            assert given_back == [1, -1]

    arena.do(slept())


def test_wake_that_fails_leaves_it_as_it_was(arena: Arena, monkeypatch: Any) -> None:
    async def slept() -> None:
        async with arena.sandbox() as sandbox:
            await _said(sandbox, "x = 8")
            await sandbox.hibernate()
            become = arena.engine.copies.become

            async def fails(*given: Any, **more: Any) -> Any:
                live = await become(*given, **more)
                arena.engine.copies.discard(live, given[0].runtime)
                raise CapacityError("make the copy: no memory", retry_after_s=1.0)

            monkeypatch.setattr(arena.engine.copies, "become", fails)
            asked = [asyncio.ensure_future(sandbox.run("print(x)")) for _ in range(3)]
            failed = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(each) for each in failed] == [CapacityError] * 3
            monkeypatch.undo()
            assert status(sandbox) == "hibernated"
            done = await asyncio.gather(*(sandbox.run("print(x)") for _ in range(3)))
            assert [each.stdout for each in done] == ["8\n"] * 3

    arena.do(slept())


def test_wake_whose_processes_end_leaves_it_as_it_was(arena: Arena, monkeypatch: Any) -> None:
    """They end in the last step of the way back, while the way out is opened."""

    async def slept() -> None:
        async with arena.sandbox() as sandbox:
            await _said(sandbox, "x = 8")
            await sandbox.hibernate()

            async def ends(live: ClaimedSandbox) -> None:
                ended = asyncio.Event()
                live.channel.on_end(ended.set)
                live.runtime_sandbox.kill()
                await asyncio.wait_for(ended.wait(), LEFT_SOON_S)

            monkeypatch.setattr(arena.engine.outside, "bring_back", ends)
            for _ in range(2):
                with pytest.raises(SandboxBroken, match="its new processes ended"):
                    await sandbox.run("print(x)")
                assert status(sandbox) == "hibernated"
            monkeypatch.undo()
            assert await _said(sandbox, "print(x)") == "8"

    arena.do(slept())


def test_second_call_waits_for_the_first(arena: Arena) -> None:
    """It is no cell that stands still half way: both find the sandbox hibernated."""

    async def slept() -> None:
        async with arena.sandbox() as sandbox:
            await _said(sandbox, "x = 8")
            for _ in range(2):
                assert await asyncio.gather(*(sandbox.hibernate() for _ in range(3))) == [()] * 3
                assert status(sandbox) == "hibernated"
                await sandbox.resume()
                await sandbox.pause()
            assert await _said(sandbox, "print(x)") == "8"

    arena.do(slept())


def test_closing_leaves_nothing(arena: Arena) -> None:
    """Neither its image nor its bytes; also while it comes back."""

    async def slept() -> None:
        async with arena.sandbox() as sandbox:
            await sandbox.hibernate()  # the base of its lineage stays
        before = _nameless()
        async with arena.sandbox() as sandbox:
            await _said(sandbox, "x = 8")
            await sandbox.hibernate()
            assert _nameless() > before  # the control
            assert arena.engine.copies_room.used_bytes > 0
            await sandbox.close()
            assert status(sandbox) == "stopped"
            assert _nameless() == before
            assert arena.engine.copies_room.used_bytes == 0
            with pytest.raises(SandboxUnavailable):
                await sandbox.run("1")
        async with arena.sandbox() as sandbox:
            await sandbox.hibernate()
            coming = asyncio.ensure_future(sandbox.run("1"))
            await asyncio.sleep(0)
            await sandbox.close()
            with pytest.raises(CellwallError):
                await coming
        await arena.engine.wait_settled()
        assert arena.engine.copies_room.used_bytes == 0
        assert arena.engine.statistics().sandboxes == 0

    arena.do(slept())


@pytest.mark.parametrize("step", ["write_idle", "become"])
def test_closing_in_the_middle_leaves_nothing(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """While it is being written down, and while a fresh sandbox becomes its session."""

    async def slept() -> None:
        async with arena.sandbox() as sandbox:
            await _said(sandbox, "x = 8")
            if step == "become":
                await sandbox.hibernate()
            halt = Halt(monkeypatch, arena.engine.copies, step)
            request = sandbox.hibernate() if step == "write_idle" else sandbox.resume()
            await closed_meanwhile(arena, sandbox, request, halt)

    arena.do(slept())


def test_closing_as_it_is_let_go_on_to_be_written_down(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paused one goes on for a moment, because its guest has to answer."""

    async def slept() -> None:
        async with arena.sandbox() as sandbox:
            await sandbox.pause()
            halt = Halt(monkeypatch, JailSandbox, "resume")
            await closed_meanwhile(arena, sandbox, sandbox.hibernate(), halt, has_image=False)

    arena.do(slept())


def test_network_goes_on(arena: Arena) -> None:
    """The policy holds in the fresh processes, and the count of its use goes on."""
    code = (
        "import urllib.request\n"
        "try:\n    urllib.request.urlopen('http://other.example/', timeout=5)\n"
        "except Exception as e:\n    print(type(e).__name__, getattr(e, 'code', ''))"
    )

    async def slept() -> None:
        async with arena.sandbox(network=["example.org"]) as sandbox:
            told = await _said(sandbox, code)
            used = await sandbox.network_usage()
            assert used.refused > 0  # the control
            await sandbox.hibernate()
            assert await sandbox.network_usage() == used
            assert status(sandbox) == "hibernated"
            assert await _said(sandbox, code) == told
            assert (await sandbox.network_usage()).refused > used.refused
            assert sandbox.network.as_json()["allow"]

    arena.do(slept())


def test_proxy_serves_none_that_was_closed_on_its_way_back(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its listeners were on their way to the proxy when it was closed."""

    async def slept() -> None:
        async with arena.sandbox(network=["example.org"]) as sandbox:
            proxy = arena.engine.outside.proxy
            assert proxy.serves(sandbox.id)  # the control
            await sandbox.hibernate()
            halt = Halt(monkeypatch, JailSandbox, "open_listeners")
            coming = asyncio.ensure_future(sandbox.resume())
            await halt.reached.wait()
            await sandbox.close()
            await asyncio.sleep(0)  # what takes its way out has begun
            halt.go_on.set()
            with pytest.raises(SandboxUnavailable):
                await coming
            await arena.engine.wait_settled()
            assert not proxy.serves(sandbox.id)

    arena.do(slept())


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        (
            {"runtime": "process", "isolation": "process"},
            HostUnsupported,
            "cannot write a session down|pause",
        ),
        ({"start": "exec"}, Conflict, "share no layout"),
    ],
)
def test_where_it_cannot_be_is_refused_at_creation_and_at_the_call(
    options: dict[str, Any], error: type[CellwallError], match: str
) -> None:
    settings = no_pool(allow_process=True, least_isolation="process")
    made = Arena(lambda: Engine(settings=settings))

    async def refused() -> None:
        with pytest.raises(error, match=match) as caught:
            await made.engine.create_sandbox(hibernate_s=5, **options)
        assert caught.value.remedy
        sandbox = await made.engine.create_sandbox(**options)
        with pytest.raises(error, match=f"hibernate.*({match})"):
            await sandbox.hibernate()
        assert status(sandbox) == "running"
        assert (await sandbox.run("print(1)")).stdout == "1\n"
        await sandbox.close()
        with pytest.raises(UsageError, match="hibernate_s"):
            await made.engine.create_sandbox(hibernate_s=0)

    made.do(refused())
    made.close()


def test_operators_choice_holds_where_it_can_and_refuses_nothing() -> None:
    made = Arena(lambda: Engine(settings=no_pool(hibernate_s=1.0)))

    async def slept() -> None:
        async with made.sandbox() as sandbox:
            await sandbox.pause()
            await _until(sandbox, "hibernated")
        async with made.sandbox(start="exec") as sandbox:
            await sandbox.pause()
            async with asyncio.timeout(LEFT_SOON_S):
                while not sandbox.stays_because:  # noqa: ASYNC110 - a timer tells nothing
                    await asyncio.sleep(0.02)
            assert "share no layout" in sandbox.stays_because
            assert status(sandbox) == "paused"

    made.do(slept())
    made.close()


def test_volumes_are_refused(tmp_path: Path) -> None:
    wall = Wall("jail", None, TemplateStore(state_dir()), tmp_path)
    wall.store.create("data", 16)

    async def refused(engine: Engine) -> None:
        async with wall.sandbox(engine, {"data": "/data"}) as sandbox:
            with pytest.raises(Conflict, match="it has volumes"):
                await sandbox.hibernate()
            assert status(sandbox) == "running"
        with pytest.raises(Conflict, match="it has volumes"):
            await wall.start(engine, {"data": "/data"}, hibernate_s=5)

    wall.inside(refused)
    wall.store.remove("data")


def test_checkpoints_and_forks_go_on(arena: Arena) -> None:
    async def slept() -> None:
        async with arena.sandbox() as sandbox:
            await sandbox.files.write("a", "one")
            made = await sandbox.files.checkpoint()
            await sandbox.files.write("a", "two")
            await _said(sandbox, "x = 2")
            await sandbox.hibernate()
            await sandbox.files.rollback(made.id)
            assert await sandbox.files.read("a") == "one"
            await sandbox.hibernate()
            (fork,) = await sandbox.fork()
            async with fork.sandbox as copy:
                assert await _said(copy, "print(x, open('a').read())") == "2 one"
                assert copy.id != sandbox.id
                await copy.hibernate()
                assert await _said(copy, "print(x)") == "2"

    arena.do(slept())

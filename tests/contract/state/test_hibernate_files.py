"""A sandbox that was hibernated with its files alone has these, and nothing that ran."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall import AsyncSandbox, Engine
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.model.errors import (
    CapacityError,
    CellwallError,
    Conflict,
    HostUnsupported,
    UsageError,
)
from kit.arena import Arena, descendants
from kit.copies.hibernated import Halt, closed_meanwhile, no_pool, pids_of, status
from kit.images.volume_walls import Wall
from kit.waiting import is_alive, wait_until

pytestmark = [pytest.mark.root]
FACTS = (
    "stat -c '%n %F %a %U %G %s %Y' bin.sh old /data/x;"
    " stat -c '%n %F %a %U %N' link sub/deep /data"
)
ONWARD_S = 20.0


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    made = Arena(lambda: Engine(settings=no_pool()))
    yield made
    made.close()


async def _said(sandbox: AsyncSandbox, command: str) -> str:
    done = await sandbox.commands.run(command)
    assert done.outcome.verdict.value == "ok", done.stderr
    return done.stdout


def _keeps(sandbox: AsyncSandbox) -> str | None:
    return sandbox.hibernation.keeps


def _state(pid: int) -> str:
    """The kernel's letter for what a process does: `T` stands still."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return text[text.rindex(")") + 2]


async def _go_on(sandbox: AsyncSandbox) -> None:
    """See that its programs run, after a hibernation that failed."""
    assert status(sandbox) == "running"
    init = sandbox.live.runtime_sandbox.pid  # type: ignore[attr-defined]  # the jail's
    wait_until(lambda: all(_state(pid) != "T" for pid in descendants(init)), "its programs go on")


def test_files_stay_and_processes_and_variables_are_gone(arena: Arena) -> None:
    """Modes, owners, times and links are compared; the kernel is asked for the processes."""

    async def slept() -> None:
        async with arena.sandbox(env={"OWN": "mine"}) as sandbox:
            name = sandbox.id
            await _said(
                sandbox,
                "mkdir -p sub/deep /data && echo 'echo hi' > bin.sh && chmod 750 bin.sh"
                " && echo kept > /data/x && ln -s /data/x link && touch -d @1000000000 old"
                " && echo t > /tmp/t && chmod 400 old && chmod 711 sub",
            )
            facts = await _said(sandbox, FACTS)
            assert "old regular empty file 400 user user 0 1000000000" in facts
            assert (await sandbox.run("x = 41; print(x)")).stdout == "41\n"
            command = await sandbox.commands.start("sleep 1000")
            processes = pids_of(sandbox)
            assert all(is_alive(pid) for pid in processes)  # the control

            left = await sandbox.hibernate(keep="files")
            assert any("sleep 1000" in each for each in left)
            assert "context 'python'" in left
            assert status(sandbox) == "hibernated"
            assert not any(is_alive(pid) for pid in processes)
            assert sandbox.live.readings().memory_bytes == 0
            assert 0 < sandbox.hibernation.image_bytes < 1 << 20
            assert await sandbox.hibernate(keep="files") == ()  # idempotent
            assert await sandbox.hibernate() == ()
            assert await sandbox.contexts.list() == ["python"]
            ended = await asyncio.wait_for(command.wait(), ONWARD_S)
            assert ended.outcome.verdict.value == "cancelled"
            assert "hibernated" in ended.outcome.notes[0]
            assert status(sandbox) == "hibernated"  # looking brings nothing back

            assert await _said(sandbox, FACTS) == facts
            assert status(sandbox) == "running"
            assert sandbox.id == name
            assert arena.engine.sandbox(name) is sandbox
            assert await _said(sandbox, "./bin.sh; cat link /tmp/t; echo $OWN") == (
                "hi\nkept\nt\nmine\n"
            )
            assert "sleep" not in await _said(sandbox, "ps -eo args")
            gone = await sandbox.run("print(x)")
            assert "NameError" in gone.stderr
            assert "had ended" in gone.outcome.notes[0]
            again = await sandbox.run("print(1)")
            assert (again.stdout, again.outcome.notes) == ("1\n", ())
            assert arena.engine.copies_room.used_bytes == 0  # nothing holds the image now

    arena.do(slept())


def test_what_runs_is_cancelled_and_contexts_begin_anew(arena: Arena) -> None:
    """A cell under way, one that a pause holds half way, and the interpreter of a shell."""

    async def slept(*, is_paused: bool) -> None:
        async with arena.sandbox() as sandbox:
            await sandbox.run("y=5", "bash")
            begun = asyncio.Event()
            running = asyncio.ensure_future(
                sandbox.run(
                    "print('go', flush=True)\nimport time\nwhile True: time.sleep(1)",
                    on_stdout=lambda _text: begun.set(),
                )
            )
            await asyncio.wait_for(begun.wait(), ONWARD_S)
            if is_paused:
                await sandbox.pause()
            left = await sandbox.hibernate(keep="files")
            assert set(left) == {"a cell in 'python'", "context 'python'", "context 'bash'"}
            ended = await asyncio.wait_for(running, ONWARD_S)
            assert (ended.verdict.value, ended.stdout) == ("cancelled", "go\n")
            assert "hibernated" in ended.outcome.notes[0]
            assert status(sandbox) == "hibernated"
            anew = await sandbox.run("echo -$y-", "bash")
            assert anew.stdout == "--\n"
            assert "had ended" in anew.outcome.notes[0]

    for is_paused in (False, True):
        arena.do(slept(is_paused=is_paused))


def test_files_are_of_one_moment(arena: Arena) -> None:
    """A program that writes two files in turn stands still while both are read."""

    async def slept() -> None:
        async with arena.sandbox(limits={"disk_mb": 200}) as sandbox:
            await _said(sandbox, "head -c 50M /dev/zero > middle")
            await sandbox.commands.start(
                "i=0; while :; do i=$((i+1)); for f in a z; do echo $i > .t; mv .t $f; done; done"
            )
            await _said(sandbox, "until [ -s a ] && [ -s z ]; do sleep 0.01; done")
            await sandbox.hibernate(keep="files")
            first, last = (await _said(sandbox, "cat a z")).split()
            assert int(first) - int(last) in (0, 1)

    arena.do(slept())


def test_full_work_area_comes_back_under_its_quota(arena: Arena) -> None:
    async def slept() -> None:
        async with arena.sandbox(limits={"disk_mb": 16, "inodes": 500}) as sandbox:
            await _said(sandbox, "head -c 20M /dev/urandom > big 2>/dev/null; true")
            told = await _said(sandbox, "sha256sum big; stat -c %s big")
            assert int(told.split()[-1]) > 15 << 20  # the control: it is full
            await sandbox.hibernate(keep="files")
            assert sandbox.hibernation.image_bytes > 15 << 20
            assert await _said(sandbox, "sha256sum big; stat -c %s big") == told
            full = await sandbox.commands.run("head -c 2M /dev/zero > more")
            assert "No space left" in full.stderr

    arena.do(slept())


def test_without_room_for_the_files_its_programs_go_on() -> None:
    made = Arena(lambda: Engine(settings=no_pool(snapshots_mb=8)))

    async def slept() -> None:
        async with made.sandbox() as sandbox:
            await _said(sandbox, "head -c 12M /dev/urandom > big")
            command = await sandbox.commands.start("sleep 1000")
            await sandbox.run("x = 3")
            with pytest.raises(CapacityError, match="no room after"):
                await sandbox.hibernate(keep="files")
            await _go_on(sandbox)
            assert command.is_running
            assert (await sandbox.run("print(x)")).stdout == "3\n"
            assert made.engine.copies_room.used_bytes == 0
            await sandbox.pause()
            with pytest.raises(CapacityError):
                await sandbox.hibernate(keep="files")
            assert status(sandbox) == "paused"
            await _said(sandbox, "rm big")
            await sandbox.hibernate(keep="files")
            assert status(sandbox) == "hibernated"

    made.do(slept())
    made.close()


def test_file_that_its_owner_may_not_read_is_a_conflict_and_nothing_ends(arena: Arena) -> None:
    async def slept() -> None:
        async with arena.sandbox() as sandbox:
            await _said(sandbox, "echo a > a; chmod 000 a")
            with pytest.raises(Conflict, match="'0/a': Permission denied"):
                await sandbox.hibernate(keep="files")
            await _go_on(sandbox)
            assert (await sandbox.run("print(1)")).stdout == "1\n"

    arena.do(slept())


def test_request_in_the_middle_keeps_it_alive(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that comes after the files were read is in no image, so nothing is given up."""

    async def slept() -> None:
        async with arena.sandbox() as sandbox:
            await sandbox.run("x = 1")
            write = arena.engine.copies.write_files

            async def and_a_file(*given: Any) -> Any:
                written = await write(*given)
                await sandbox.files.write("late", "text")
                return written

            monkeypatch.setattr(arena.engine.copies, "write_files", and_a_file)
            with pytest.raises(Conflict, match="it was used meanwhile") as caught:
                await sandbox.hibernate(keep="files")
            assert caught.value.is_passing
            monkeypatch.undo()
            await _go_on(sandbox)
            assert await sandbox.files.read("late") == "text"
            assert (await sandbox.run("print(x)")).stdout == "1\n"
            assert arena.engine.copies_room.used_bytes == 0
            await sandbox.hibernate(keep="files")
            assert await sandbox.files.read("late") == "text"

    arena.do(slept())


def test_wake_without_room_leaves_it_as_it_was(arena: Arena) -> None:
    async def slept() -> None:
        async with arena.sandbox() as sandbox:
            await sandbox.files.write("a", "kept")

            def full() -> None:
                raise CapacityError("admission: all is promised", retry_after_s=1.0)

            given_back: list[int] = []
            sandbox.hibernation.on_down = lambda: given_back.append(1)
            await sandbox.hibernate(keep="files")
            sandbox.hibernation.before_back = full
            for request in (sandbox.run("1"), sandbox.resume(), sandbox.files.read("a")):
                with pytest.raises(CapacityError, match="all is promised"):
                    await request
                assert status(sandbox) == "hibernated"
            assert given_back == [1]
            sandbox.hibernation.before_back = lambda: given_back.append(-1)
            assert await sandbox.files.read("a") == "kept"
            assert given_back == [1, -1]

    arena.do(slept())


@pytest.mark.parametrize("moment", ["writing", "waking"])
def test_closing_in_the_middle_leaves_nothing(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    async def slept() -> None:
        name = "write_files" if moment == "writing" else "become"
        async with arena.sandbox() as sandbox:
            await sandbox.files.write("a", "text")
            if moment == "waking":
                await sandbox.hibernate(keep="files")
            halt = Halt(monkeypatch, arena.engine.copies, name)
            request = sandbox.hibernate(keep="files") if moment == "writing" else sandbox.run("1")
            await closed_meanwhile(arena, sandbox, request, halt)

    arena.do(slept())


def test_session_that_was_kept_is_forgotten(arena: Arena) -> None:
    """One that is hibernated already keeps less; the control is one that is not told to."""

    async def slept() -> None:
        async with arena.sandbox() as sandbox:
            await sandbox.run("x = 8; open('a', 'w').write('text')")
            await sandbox.hibernate()
            assert (await sandbox.run("print(x)")).stdout == "8\n"  # the control
            await sandbox.hibernate()
            assert _keeps(sandbox) == "session"
            assert await sandbox.hibernate(keep="files") == ("context 'python'",)
            assert _keeps(sandbox) == "files"
            assert "NameError" in (await sandbox.run("print(x)")).stderr
            assert await sandbox.files.read("a") == "text"
            assert _keeps(sandbox) is None

    arena.do(slept())


def test_it_comes_back_any_number_of_times_and_by_hand_if_its_owner_wants(arena: Arena) -> None:
    async def slept() -> None:
        async with arena.sandbox(resume="manual") as sandbox:
            for number in range(3):
                await sandbox.files.write(f"of{number}", "text")
                await sandbox.hibernate(keep="files")
                with pytest.raises(Conflict, match="it is paused"):
                    await sandbox.run("1")
                assert status(sandbox) == "hibernated"
                await sandbox.resume()
            assert await _said(sandbox, "ls") == "of0\nof1\nof2\n"
            (fork,) = await sandbox.fork()
            async with fork.sandbox as copy:
                assert await _said(copy, "ls") == "of0\nof1\nof2\n"

    arena.do(slept())


def test_checkpoints_stay(arena: Arena) -> None:
    async def slept() -> None:
        async with arena.sandbox() as sandbox:
            await sandbox.files.write("a", "one")
            made = await sandbox.files.checkpoint()
            await sandbox.files.write("a", "two")
            await sandbox.hibernate(keep="files")
            await sandbox.files.rollback(made.id)
            assert await sandbox.files.read("a") == "one"

    arena.do(slept())


def test_copies_have_what_was_made_in_the_root(arena: Arena) -> None:
    """A fork and a session that was hibernated have it as well."""

    async def slept() -> None:
        async with arena.sandbox() as sandbox:
            await _said(sandbox, "mkdir -m 750 /data; echo x > /data/x; ln -s data/x /y")
            (fork,) = await sandbox.fork()
            async with fork.sandbox as copy:
                assert await _said(copy, "cat /y; stat -c %a /data") == "x\n750\n"
            await sandbox.hibernate()
            assert await _said(sandbox, "cat /y; stat -c %a /data") == "x\n750\n"

    arena.do(slept())


@pytest.mark.parametrize("options", [{"start": "exec"}])
def test_where_no_session_can_be_written_down_its_files_can(options: dict[str, Any]) -> None:
    made = Arena(lambda: Engine(settings=no_pool()))

    async def slept() -> None:
        async with made.sandbox(**options) as sandbox:
            await sandbox.files.write("a", "text")
            with pytest.raises(Conflict, match="share no layout"):
                await sandbox.hibernate()  # the control
            await sandbox.hibernate(keep="files")
            assert await sandbox.files.read("a") == "text"

    made.do(slept())
    made.close()


def test_where_it_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    settings = no_pool(allow_process=True, least_isolation="process")
    made = Arena(lambda: Engine(settings=settings))

    async def refused() -> None:
        sandbox = await made.engine.create_sandbox(runtime="process", isolation="process")
        with pytest.raises(HostUnsupported, match="cannot write the files of a sandbox") as caught:
            await sandbox.hibernate(keep="files")
        assert caught.value.remedy
        assert (await sandbox.run("print(1)")).stdout == "1\n"
        with pytest.raises(UsageError, match="keep: 'memory' is unknown"):
            await sandbox.hibernate(keep="memory")  # type: ignore[arg-type]  # no such word
        await sandbox.close()

    made.do(refused())
    made.close()
    wall = Wall("jail", None, TemplateStore(state_dir()), tmp_path)
    wall.store.create("data", 16)

    async def with_a_volume(engine: Engine) -> None:
        async with wall.sandbox(engine, {"data": "/data"}) as sandbox:
            with pytest.raises(CellwallError, match="it has volumes"):
                await sandbox.hibernate(keep="files")
            assert status(sandbox) == "running"

    wall.inside(with_a_volume)
    wall.store.remove("data")

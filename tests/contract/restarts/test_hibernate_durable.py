"""A hibernated sandbox outlives its engine, if that is asked for, and is checked when it wakes.

What a later engine does not allow, or cannot go on with, is told, and stays for one that does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellwall import AsyncSandbox, Engine
from cellwall.engine.policy.levels import Floor
from cellwall.engine.state.durable import DurableSnapshots
from cellwall.engine.state.snapshot_files import SnapshotFiles
from cellwall.engine.state.snapshot_header import Header
from cellwall.model.errors import (
    CapacityError,
    CellwallError,
    Conflict,
    SandboxBroken,
    SandboxUnavailable,
    UsageError,
)
from kit.copies.hibernated import status
from kit.copies.killed import settings
from kit.copies.steps import chosen
from kit.places import ROOT, TESTS
from kit.servers import state_of

pytestmark = [pytest.mark.root]
SMALL = {"memory_mb": 128}
STEPS = int(os.environ.get("CELLWALL_TEST_STEPS", "8"))
"""Most steps before which an engine is killed; 100000 is each of them."""
SLEEPER = Path(__file__).parents[2] / "kit" / "copies" / "killed_sleeper.py"


@contextlib.asynccontextmanager
async def _engine(folder: Path, *, keeps: bool = True, **more: Any) -> AsyncIterator[Engine]:
    made = Engine(state_of(folder), settings(folder, **more), keeps_hibernated=keeps)
    try:
        yield made
    finally:
        await made.aclose()


async def _said(sandbox: AsyncSandbox, code: str = "print(x, open('f').read())") -> str:
    done = await sandbox.run(code)
    assert done.verdict.value == "ok", done.stderr
    return done.stdout.strip()


async def _asleep(engine: Engine, x: int = 41, **options: Any) -> AsyncSandbox:
    """A hibernated sandbox."""
    keep = options.pop("keep", "session")
    sandbox = await engine.create_sandbox(limits=SMALL, **options)
    await _said(sandbox, f"x = {x}; _ = open('f', 'w').write('file')")
    await sandbox.hibernate(keep=keep)
    return sandbox


async def _arrived(engine: Engine) -> AsyncSandbox:
    (sandbox,) = (await engine.take_over()).sandboxes
    return sandbox


def _images(folder: Path) -> list[str]:
    place = folder / "snapshots"
    return sorted(each.name for each in place.iterdir()) if place.exists() else []


async def _gone(folder: Path) -> None:
    """Files are removed in the background."""
    async with asyncio.timeout(10):
        while _images(folder):  # noqa: ASYNC110 - a thread tells nothing
            await asyncio.sleep(0.02)


def _change(folder: Path, change: Callable[[Header], Header]) -> None:
    files = SnapshotFiles(folder / "snapshots", None)
    (found,) = files.ids()
    header = files.header(found)
    assert header is not None
    files.change(change(header))


def test_it_is_itself_in_the_next_engine(tmp_path: Path) -> None:
    """Its id, its clocks, what it had used, its contexts; its walls are those of a fresh one."""

    async def before() -> tuple[str, float, float]:
        async with _engine(tmp_path) as engine:
            sandbox = await engine.create_sandbox(
                limits={**SMALL, "life_s": 900}, env={"OWN": "mine"}, network=["example.org"]
            )
            await _said(sandbox, "x = sum(range(3_000_000)); _ = open('f', 'w').write('file')")
            await sandbox.run("y=5", "bash")
            await sandbox.hibernate(drop=True)
            await sandbox.extend(600)
            return sandbox.id, sandbox.created_at, sandbox.live.read_cpu_s()

    async def after(name: str, created_at: float, cpu_s: float) -> None:
        async with _engine(tmp_path) as engine:
            sandbox = await _arrived(engine)
            assert (sandbox.id, sandbox.created_at, status(sandbox)) == (
                name, created_at, "hibernated",
            )  # fmt: skip
            assert engine.sandbox(name) is sandbox
            assert engine.statistics().hibernated == 1
            assert 0 < engine.statistics().hibernated_bytes < 5 << 20
            assert sandbox.live.read_cpu_s() == cpu_s
            assert abs(sandbox.ends_at - time.time() - 600) < 1
            assert sandbox.network.as_json()["allow"]
            assert (await sandbox.network_usage()).connections == 0
            assert await sandbox.network_log() == []
            assert await sandbox.contexts.list() == ["python"]
            assert engine.copies.snapshots("") == []
            assert status(sandbox) == "hibernated"  # looking wakes nothing
            told = await _said(sandbox, "import os\nprint(x, os.environ['OWN'])")
            assert told == f"{sum(range(3_000_000))} mine"
            assert sandbox.live.read_cpu_s() > cpu_s
            again = await sandbox.run("echo $y", "bash")
            assert again.stdout == "\n"
            assert "without its state" in str(again.outcome.notes)
            fresh = await engine.create_sandbox(limits=SMALL, network=["example.org"])
            assert sandbox.isolation == fresh.isolation
            assert sandbox.isolation.posture_digest
            await _gone(tmp_path)
            await sandbox.close()
            await engine.wait_settled()
            assert engine.copies_room.used_bytes == 0

    asyncio.run(after(*asyncio.run(before())))


@pytest.mark.parametrize("place", ["unasked", "without a place"])
def test_control_otherwise_it_ends_with_its_engine(tmp_path: Path, place: str) -> None:
    async def ended() -> None:
        async with _engine(tmp_path, keeps=place != "unasked") as engine:
            if place != "unasked":
                engine.settings = replace(engine.settings, snapshots_dir="")
            sandbox = await _asleep(engine)
            assert not sandbox.hibernation.is_stored
            assert _images(tmp_path) == []
        with pytest.raises(SandboxUnavailable, match="it was closed"):
            await sandbox.run("x")
        async with _engine(tmp_path) as engine:
            assert (await engine.take_over()).sandboxes == ()

    asyncio.run(ended())


def test_closed_ones_leave_nothing_in_either_engine(tmp_path: Path) -> None:
    async def closed() -> None:
        async with _engine(tmp_path) as engine:
            sandbox = await _asleep(engine)
            assert _images(tmp_path) == [sandbox.id]
            await sandbox.close()
            await _gone(tmp_path)
            assert engine.copies_room.used_bytes == 0
            await _asleep(engine, network=["example.org"])
        async with _engine(tmp_path) as engine:
            sandbox = await _arrived(engine)
            assert engine.copies_room.used_bytes > 0
            await sandbox.close()
            await engine.wait_settled()
            await _gone(tmp_path)
            assert engine.copies_room.used_bytes == 0
            with pytest.raises(SandboxUnavailable):
                await sandbox.run("x")

    asyncio.run(closed())


def test_bound_of_pauses_ends_it_in_the_next_engine(tmp_path: Path) -> None:
    async def ended() -> None:
        async with _engine(tmp_path, paused_s=4.0) as engine:
            await _asleep(engine)
        async with _engine(tmp_path, paused_s=4.0) as engine:
            sandbox = await _arrived(engine)
            ended = asyncio.Event()
            sandbox.on_ended(lambda _reason: ended.set())
            await asyncio.wait_for(ended.wait(), 4.0)
            with pytest.raises(SandboxUnavailable, match="it was paused for 4 s"):
                await sandbox.run("x")
            await _gone(tmp_path)

    asyncio.run(ended())


def test_one_whose_pauses_are_over_does_not_arrive(tmp_path: Path) -> None:
    """The bound is the one that the operator has set now."""

    async def over() -> None:
        async with _engine(tmp_path) as engine:
            name = (await _asleep(engine)).id
        async with _engine(tmp_path, paused_s=0.01) as engine:
            arrived = await engine.take_over()
            assert arrived.sandboxes == ()
            assert arrived.refused == {name: "it was paused for 0.01 s"}
            await _gone(tmp_path)
            assert engine.copies_room.used_bytes == 0

    asyncio.run(over())


async def _refused(
    folder: Path, error: type[CellwallError], match: str, floor: Floor | None = None, **more: Any
) -> CellwallError:
    """The error of a request in a later engine; the sandbox stays as it is."""
    async with _engine(folder, **more) as engine:
        sandbox = await _arrived(engine)
        if floor is not None:
            sandbox.hibernation.floor = lambda: floor
        with pytest.raises(error, match=match):
            await sandbox.run("x")
        assert status(sandbox) == "hibernated"
        with pytest.raises(error, match=match) as caught:
            await sandbox.resume()
        assert status(sandbox) == "hibernated"
        return caught.value


def test_what_is_not_allowed_now_is_refused_and_stays(tmp_path: Path) -> None:
    async def refused() -> None:
        async with _engine(tmp_path) as engine:
            await _asleep(engine, network=["example.org"])
        await _refused(tmp_path, UsageError, "network", network="none")
        await _refused(tmp_path, UsageError, "least", least_isolation="kernel")
        floor = Floor("kernel", None, "for tier 'strict'")
        await _refused(tmp_path, UsageError, "for tier 'strict'", floor)
        async with _engine(tmp_path) as engine:  # the control
            assert await _said(await _arrived(engine)) == "41 file"

    asyncio.run(refused())


def test_session_of_another_host_keeps_its_files(tmp_path: Path) -> None:
    """After an upgrade of the kernel, or of the template, the session cannot go on."""

    async def refused() -> None:
        async with _engine(tmp_path) as engine:
            await _asleep(engine)
        right: list[Header] = []

        def other_kernel(header: Header) -> Header:
            right.append(header)
            return replace(header, fingerprint={**header.fingerprint, "kernel": "Linux 1.0"})

        _change(tmp_path, other_kernel)
        error = await _refused(tmp_path, Conflict, "the kernel is of another release")
        assert "hibernate(keep='files')" in str(error.remedy)
        _change(tmp_path, lambda _: replace(right[0], template_digest="0" * 32))
        await _refused(tmp_path, Conflict, "the template 'python' is another")
        async with _engine(tmp_path) as engine:
            sandbox = await _arrived(engine)
            assert await sandbox.hibernate(keep="files") == ("context 'python'",)
            assert {each.name for each in (tmp_path / "snapshots" / sandbox.id).iterdir()} == {
                "header", "archive",
            }  # fmt: skip
        async with _engine(tmp_path) as engine:
            sandbox = await _arrived(engine)
            assert sandbox.hibernation.keeps == "files"
            assert await _said(sandbox, "print('x' in globals(), open('f').read())") == "False file"

    asyncio.run(refused())


def test_failed_wake_leaves_its_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room, without processes, and where the image cannot be removed."""

    async def failed() -> None:
        async with _engine(tmp_path) as engine:
            name = (await _asleep(engine)).id
        async with _engine(tmp_path) as engine:
            sandbox = await _arrived(engine)

            async def full(*_: Any, **__: Any) -> Any:
                raise CapacityError("make the copy: no memory", retry_after_s=1.0)

            with monkeypatch.context() as changed:
                changed.setattr(engine.copies, "become", full)
                with pytest.raises(CapacityError, match="no memory"):
                    await sandbox.run("x")
            assert _images(tmp_path) == [name]
            with monkeypatch.context() as changed:
                changed.setattr(SnapshotFiles, "take_away", lambda *_: None)
                with pytest.raises(SandboxBroken, match="cannot be removed"):
                    await sandbox.run("x += 1")
            assert status(sandbox) == "hibernated"
            assert _images(tmp_path) == [name]
        async with _engine(tmp_path) as engine:
            assert await _said(await _arrived(engine)) == "41 file"

    asyncio.run(failed())


def test_disk_that_is_full_keeps_it_in_this_engine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def kept() -> None:
        async with _engine(tmp_path) as engine:

            async def full(*_: Any) -> Any:
                raise CapacityError("snapshot: write it to disk: No space", retry_after_s=60.0)

            monkeypatch.setattr(DurableSnapshots, "begin", full)
            sandbox = await _asleep(engine)
            assert not sandbox.hibernation.is_stored
            assert await _said(sandbox) == "41 file"
            monkeypatch.undo()
            await sandbox.hibernate()
            assert sandbox.hibernation.is_stored

    asyncio.run(kept())


def test_request_while_it_is_stored_keeps_it_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked after the image was written must not be undone by it."""

    async def used() -> None:
        async with _engine(tmp_path) as engine:
            sandbox = await engine.create_sandbox(limits=SMALL)
            await _said(sandbox, "x = 1")
            begin = DurableSnapshots.begin

            async def and_a_file(*given: Any) -> Any:
                begun = await begin(*given)
                await sandbox.files.write("late", "text")
                return begun

            monkeypatch.setattr(DurableSnapshots, "begin", and_a_file)
            with pytest.raises(Conflict, match="it was used meanwhile"):
                await sandbox.hibernate()
            assert status(sandbox) == "running"
            await _gone(tmp_path)
            assert engine.copies_room.used_bytes == 0

    asyncio.run(used())


def test_engine_of_another_home_leaves_it_until_it_is_over(tmp_path: Path) -> None:
    """Two servers may use one directory for snapshots."""
    other = tmp_path / "other"
    other.mkdir()

    async def left() -> None:
        async with _engine(tmp_path) as engine:
            name = (await _asleep(engine)).id
        for is_over in (False, True):
            if is_over:
                _change(tmp_path, lambda header: replace(header, expires_at=1.0))
            elsewhere = Engine(state_of(other), settings(tmp_path), keeps_hibernated=True)
            assert (await elsewhere.take_over()).sandboxes == ()
            elsewhere.copies.open()
            if not is_over:
                assert _images(tmp_path) == [name]
                assert elsewhere.copies_room.used_bytes == 0
            await elsewhere.aclose()
        await _gone(tmp_path)

    asyncio.run(left())


def test_engine_of_before_refuses_it_with_the_reason(tmp_path: Path) -> None:
    """And reads the headers of snapshots, which are as they were."""

    async def stored() -> None:
        async with _engine(tmp_path) as engine:
            sandbox = await engine.create_sandbox(limits=SMALL)
            await sandbox.snapshot("kept")
            await sandbox.hibernate()

    asyncio.run(stored())
    formats = {}
    for each in (tmp_path / "snapshots").iterdir():
        facts = json.loads((each / "header").read_bytes().partition(b"\n")[0])
        formats[facts["format"]] = facts
    assert set(formats) == {1, 2}
    assert "asleep" not in formats[1]
    assert formats[2]["asleep"]["home"]


@pytest.mark.timeout(120 + 20 * min(STEPS, 500))
def test_killed_at_any_step_it_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """Never as it was before something that was answered; and nothing of it is left."""
    _, said = _killed(tmp_path / "0", 0)
    (count,) = (int(words[1]) for words in said if words[0] == "count")
    for at in chosen(count, STEPS):
        folder = tmp_path / str(at)
        code, said = _killed(folder, at)
        words = {each[0] for each in said}
        found = asyncio.run(_found(folder))
        if "answered" in words:
            assert found is None, f"step {at}: what it was before its last answer"
        elif "hibernated" in words and "waking" not in words:
            assert found == "41 file", f"step {at}"
        else:
            assert found in (None, "41 file"), f"step {at}"
        assert code == -signal.SIGKILL or "count" in words


def _killed(folder: Path, step: int) -> tuple[int, list[list[str]]]:
    """An engine that hibernates and wakes a sandbox and kills itself at a step; what it said."""
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{TESTS}"}
    environment["CELLWALL_STATE_DIR"] = str(state_of(folder))
    argv = [sys.executable, str(SLEEPER), str(folder), str(step)]
    ended = subprocess.run(
        argv, stdout=subprocess.PIPE, text=True, env=environment, timeout=60, check=False
    )
    return ended.returncode, [line.split() for line in ended.stdout.splitlines()]


async def _found(folder: Path) -> str | None:
    """What a later engine has of it, after which nothing is left."""
    async with _engine(folder) as engine:
        engine.copies.open()
        arrived = await engine.take_over()
        assert arrived.refused == {}
        assert arrived.unread == {}
        told = None
        for sandbox in arrived.sandboxes:
            told = await _said(sandbox)
            await sandbox.close()
        await _gone(folder)
        assert engine.copies_room.used_bytes == 0
        return told

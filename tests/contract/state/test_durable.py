"""Snapshots outlive their engine, and are refused with the reason where they cannot go on."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellwall import AsyncSandbox, Engine
from cellwall.engine.policy.levels import Floor, Trust, trust_table
from cellwall.engine.state import snapshot_header
from cellwall.engine.state.part_seal import PartSeal
from cellwall.engine.state.snapshot_files import SnapshotFiles, locked
from cellwall.model.errors import (
    CapacityError,
    CellwallError,
    Conflict,
    NotFound,
    UsageError,
)
from cellwall.model.network import NetworkPolicy
from cellwall.model.snapshot import Snapshot
from cellwall.runtimes.jail.stored.fingerprint import TRAITS
from kit.arena import MADE_BY_A_TEST
from kit.copies.hostile import KEEPS_FILES, LOCKS
from kit.copies.killed import answers, programs, run_killed, settings

pytestmark = [pytest.mark.root]
SMALL = {"memory_mb": 128}
PROGRAMS = 30


@contextlib.asynccontextmanager
async def _engine(folder: Path, **more: object) -> AsyncIterator[Engine]:
    made = Engine(settings=settings(folder, **more))
    try:
        yield made
    finally:
        await made.aclose()


async def _said(sandbox: AsyncSandbox, code: str) -> str:
    done = await sandbox.run(code)
    assert done.verdict.value == "ok", done.stderr
    return done.stdout.strip()


async def _kept(folder: Path, name: str = "kept", code: str = "x = 41", **more: object) -> Snapshot:
    """A snapshot of an engine that has ended."""
    async with _engine(folder, **more) as engine:
        sandbox = await engine.create_sandbox(limits=SMALL, env={"OWN": "mine"})
        await _said(sandbox, f"{code}; open('f', 'w').write('file')")
        return await sandbox.snapshot(name)


@contextlib.asynccontextmanager
async def _restored(engine: Engine, wanted: str = "kept") -> AsyncIterator[AsyncSandbox]:
    made = await engine.copies.restore(wanted, "")
    try:
        yield made
    finally:
        await made.close()


async def _goes_on(engine: Engine, wanted: str = "kept") -> None:
    async with _restored(engine, wanted) as sandbox:
        assert await _said(sandbox, "print(x + 1, open('f').read())") == "42 file"


def _refused(folder: Path, error: type[CellwallError], match: str, **more: object) -> CellwallError:
    """The error of a restore in a new engine."""

    async def refused() -> CellwallError:
        async with _engine(folder, **more) as engine:
            with pytest.raises(error, match=match) as caught:
                await engine.copies.restore("kept", "")
            await engine.wait_settled()
            assert not engine.statistics().sandboxes
            return caught.value

    return asyncio.run(refused())


def _folder_of(folder: Path, made: Snapshot) -> Path:
    return folder / "snapshots" / made.id


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one snapshot, which tests copy."""
    folder = tmp_path_factory.mktemp("stored")
    asyncio.run(_kept(folder))
    return folder


@pytest.fixture
def copied(stored: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A directory with a snapshot of its own, and the snapshot's folder."""
    shutil.copytree(stored / "snapshots", tmp_path / "snapshots", copy_function=shutil.copy2)
    (found,) = (tmp_path / "snapshots").iterdir()
    return tmp_path, found


# -- what goes on ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("rehearsed")  # as users' are: those that are not may differ by an arena
@pytest.mark.parametrize(
    "seeds", [range(4), pytest.param(range(4, PROGRAMS), marks=pytest.mark.slow)]
)
def test_programs_of_a_killed_engine_go_on_in_another(tmp_path: Path, seeds: range) -> None:
    run_killed(tmp_path, seeds)

    async def compared() -> None:
        async with _engine(tmp_path) as engine:
            assert [each.name for each in engine.copies.snapshots("")] == [f"p{n}" for n in seeds]
            for seed in seeds:
                restored = await engine.copies.restore(f"p{seed}", "", reseed=False)
                found = await answers(restored, programs(seed)[2])
                await restored.close()
                wanted = json.loads((tmp_path / f"{seed}.json").read_text(encoding="utf-8"))
                assert json.loads(json.dumps(found)) == wanted, seed

    asyncio.run(compared())


def test_snapshot_goes_on_in_any_later_engine(tmp_path: Path) -> None:
    """And what goes on can be kept and forked again, with the base of the first engine."""

    async def twice() -> None:
        first = await _kept(tmp_path)
        assert first.durable
        for name, other in (("kept", "second"), ("second", "third")):
            async with _engine(tmp_path) as engine, _restored(engine, name) as sandbox:
                assert await _said(sandbox, "print(x, open('f').read())") == "41 file"
                env = await sandbox.commands.run("echo $OWN")
                assert env.stdout == "mine\n"
                (fork,) = await sandbox.fork()
                assert await _said(fork.sandbox, "print(x)") == "41"
                await sandbox.snapshot(other)

    asyncio.run(twice())
    bases = [each.stat() for each in tmp_path.glob("snapshots/*/base")]
    assert [each.st_nlink for each in bases] == [3, 3, 3]


@pytest.mark.parametrize("which", [0, 1], ids=["image", "base"])
def test_stored_files_carry_no_word_from_one_sandbox_to_another(tmp_path: Path, which: int) -> None:
    """M09: two sandboxes of one snapshot have its image, and its base with those of all tenants."""
    look = f"print(locked(fcntl.LOCK_SH), os.lseek(kept[{which}], 0, os.SEEK_CUR))"

    async def spoken() -> None:
        await _kept(tmp_path, code=KEEPS_FILES)
        async with _engine(tmp_path) as engine, _restored(engine) as one, _restored(engine) as two:
            for each in (one, two):
                await _said(each, LOCKS.format(which=which))
            before = await _said(two, look)
            assert before.endswith("0"), before  # the control: it has the file, and tried
            await _said(two, "locked(fcntl.LOCK_UN)")
            await _said(one, f"locked(fcntl.LOCK_EX); os.lseek(kept[{which}], 1234, 0)")
            assert await _said(two, look) == before

    asyncio.run(spoken())


def test_restored_sandbox_is_confined_as_a_fresh_one(tmp_path: Path) -> None:
    async def compared() -> None:
        await _kept(tmp_path)
        async with _engine(tmp_path) as engine, _restored(engine) as restored:
            fresh = await engine.create_sandbox(limits=SMALL)
            assert restored.isolation == fresh.isolation
            assert restored.limits == fresh.limits
            other = await engine.create_sandbox(limits={**SMALL, "open_files": 64})
            assert restored.limits != other.limits  # the control

    asyncio.run(compared())


def test_engines_of_one_directory_see_what_the_other_keeps_and_deletes(tmp_path: Path) -> None:
    async def seen() -> None:
        async with _engine(tmp_path) as one, _engine(tmp_path) as two:
            sandbox = await one.create_sandbox(limits=SMALL)
            await _said(sandbox, "x = 41; open('f', 'w').write('file')")
            made = await sandbox.snapshot("kept")
            assert [each.id for each in two.copies.snapshots("")] == [made.id]
            await _goes_on(two)
            two.copies.delete("kept", "")
            with pytest.raises(NotFound):
                one.copies.get("kept", "")
            assert (one.copies_room.used_bytes, two.copies_room.used_bytes) == (0, 0)

    asyncio.run(seen())


def test_tools_of_the_host_are_named_as_left_behind(tmp_path: Path) -> None:
    async def left() -> None:
        async with _engine(tmp_path) as engine:
            sandbox = await engine.create_sandbox(tools={"look_up": lambda: 1})
            await sandbox.snapshot("kept")
        async with _engine(tmp_path) as engine, _restored(engine) as sandbox:
            done = await sandbox.run("tools.look_up()")
            assert done.verdict.value != "ok"
            assert engine.copies.get("kept", "").left_behind == ("tool 'look_up' of the host",)

    asyncio.run(left())


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["memory", "archive", "base", "maps"])
def test_changed_byte_is_noticed_before_it_is_used(copied: tuple[Path, Path], part: str) -> None:
    folder, found = copied
    with (found / part).open("r+b") as file:
        file.seek(4096 if part in ("memory", "base") else 100)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    _refused(folder, Conflict, f"the snapshot is damaged: its {part} is not what was written")


@pytest.mark.parametrize("part", ["memory", "archive", "base", "maps"])
def test_part_that_is_cut_off_or_missing_is_noticed(copied: tuple[Path, Path], part: str) -> None:
    folder, found = copied
    os.truncate(found / part, (found / part).stat().st_size - 1)
    _refused(folder, Conflict, f"the snapshot is damaged: its {part} is not what was written")
    (found / part).unlink()
    _refused(folder, Conflict, f"the snapshot is damaged: its {part} is missing")
    (found / part).symlink_to("/etc/passwd")
    _refused(folder, Conflict, f"the snapshot is damaged: its {part}: Too many levels")


def test_part_that_has_grown_is_noticed(copied: tuple[Path, Path]) -> None:
    folder, found = copied
    with (found / "memory").open("ab") as file:
        file.write(b"x")
    _refused(folder, Conflict, "the snapshot is damaged: its memory: it is longer")


def test_changed_header_is_not_believed(
    copied: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """It has no owner that could be told: the operator is."""
    folder, found = copied
    text = (found / "header").read_bytes()
    (found / "header").write_bytes(text.replace(b'"tenant":""', b'"tenant":"b"'))
    _refused(folder, NotFound, "there is none")
    assert "its header is not what was written" in caplog.text


def test_header_of_another_snapshot_is_not_believed(copied: tuple[Path, Path]) -> None:
    folder, found = copied
    found.rename(found.with_name("b" * 26))
    _refused(folder, NotFound, "there is none")


def _change(
    found: Path, change: Callable[[snapshot_header.Header], snapshot_header.Header]
) -> None:
    """Write a header with a right digest."""
    header = snapshot_header.decoded((found / "header").read_bytes(), found.name, None)
    (found / "header").write_bytes(snapshot_header.encoded(change(header), None))


@pytest.mark.parametrize("name", TRAITS)
def test_what_is_not_the_same_is_named_with_a_remedy(copied: tuple[Path, Path], name: str) -> None:
    folder, found = copied
    _change(found, lambda header: replace(header, fingerprint={**header.fingerprint, name: "x"}))
    error = _refused(folder, Conflict, f"cannot go on here: {TRAITS[name].what}")
    assert error.remedy == TRAITS[name].remedy


def test_fingerprint_with_a_trait_less_or_more_is_another(copied: tuple[Path, Path]) -> None:
    folder, found = copied
    _change(found, lambda header: replace(header, fingerprint={**header.fingerprint, "new": "1"}))
    _refused(folder, Conflict, "made by another version of cellwall")
    _change(found, lambda header: replace(header, fingerprint={}))
    _refused(folder, Conflict, "the template is another; .*the kernel is of another release")


def test_other_template_is_refused(copied: tuple[Path, Path]) -> None:
    folder, found = copied
    _change(found, lambda header: replace(header, template_digest="0" * 32))
    _refused(folder, Conflict, "the template 'python' is another")


def test_what_a_sandbox_would_be_refused_now_is_refused(copied: tuple[Path, Path]) -> None:
    """The operator has changed what is allowed: the network, profiles, or the isolation."""
    folder, found = copied
    policy = NetworkPolicy.of(["example.org"]).as_json()
    _change(found, lambda header: replace(header, network=policy))
    _refused(folder, UsageError, "network", network="none")
    _change(
        found, lambda h: replace(h, network={"mode": "none"}, spec={**h.spec, "profile": "debug"})
    )
    _refused(folder, UsageError, "does not permit 'debug'")
    _change(found, lambda h: replace(h, spec={**h.spec, "profile": "default"}, trust="untrusted"))
    strict = {**trust_table(), "untrusted": Trust("kernel")}
    _refused(folder, UsageError, "means isolation", trust=strict)
    _change(found, lambda header: replace(header, trust=None))
    _refused(folder, UsageError, "least", least_isolation="kernel")

    async def below_the_floor() -> None:
        async with _engine(folder) as engine:
            floor = Floor("kernel", None, "for tier 'strict'")
            with pytest.raises(UsageError, match="for tier 'strict'"):
                await engine.copies.restore("kept", "", floor=floor)
            await _goes_on(engine)  # the control

    asyncio.run(below_the_floor())


def test_other_tenant_finds_none(stored: Path) -> None:
    async def looked() -> None:
        async with _engine(stored) as engine:
            made = engine.copies.get("kept", "")
            assert not engine.copies.snapshots("another")
            with pytest.raises(NotFound):
                await engine.copies.restore(made.id, "another")
            with pytest.raises(NotFound):
                engine.copies.delete(made.id, "another")
            await _goes_on(engine)  # the control

    asyncio.run(looked())


# -- room and time ---------------------------------------------------------------------------------


def test_expired_snapshots_are_removed_by_the_next_engine(tmp_path: Path) -> None:
    async def expired() -> None:
        async with _engine(tmp_path) as engine:
            sandbox = await engine.create_sandbox(limits=SMALL)
            for name, expires_s in (("short", 0.5), ("long", 60)):
                await sandbox.snapshot(name, expires_s=expires_s)
        await asyncio.sleep(0.5)
        async with _engine(tmp_path) as engine:
            engine.copies.open()
            await asyncio.sleep(0.1)
            assert [each.name for each in engine.copies.snapshots("")] == ["long"]
        assert len(list((tmp_path / "snapshots").iterdir())) == 1

    asyncio.run(expired())


def test_what_is_stored_counts_in_the_next_engine(tmp_path: Path) -> None:
    async def counted() -> None:
        async with _engine(tmp_path) as engine:
            sandbox = await engine.create_sandbox(limits=SMALL)
            await _said(sandbox, "import os; x = os.urandom(20 << 20)")
            await sandbox.snapshot("kept")
        async with _engine(tmp_path, snapshots_mb=60) as engine:
            sandbox = await engine.create_sandbox(limits=SMALL)
            await _said(sandbox, "import os; x = os.urandom(20 << 20)")
            engine.copies.open()
            assert engine.copies_room.taken_mb("") >= 20
            with pytest.raises(CapacityError):
                await sandbox.snapshot("more")
            engine.copies.delete("kept", "")
            assert engine.copies_room.used_bytes == 0
            await sandbox.snapshot("more")  # the control

    asyncio.run(counted())


def test_without_room_for_the_base_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes are counted before they are on the disk."""
    written: list[str] = []
    prepare = SnapshotFiles.prepare

    def noted(files: SnapshotFiles, header: Any, *more: Any) -> Any:
        written.append(header.name)
        return prepare(files, header, *more)

    monkeypatch.setattr(SnapshotFiles, "prepare", noted)

    async def refused() -> None:
        for room, names in ((16, []), (64, ["kept"])):  # the second is the control
            async with _engine(tmp_path, snapshots_mb=room) as engine:
                sandbox = await engine.create_sandbox(limits=SMALL)
                with contextlib.suppress(CapacityError):
                    await sandbox.snapshot("kept")
                assert written == names
                assert (engine.copies_room.used_bytes > 0) == bool(names)

    asyncio.run(refused())


def test_full_disk_refuses_a_snapshot_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    place = tmp_path / "snapshots"
    place.mkdir(mode=0o700)
    made = ["-t", "tmpfs", "-o", "size=64m,mode=700", MADE_BY_A_TEST, str(place)]
    subprocess.run(["mount", *made], check=True)

    async def refused() -> None:
        async with _engine(tmp_path) as engine:
            sandbox = await engine.create_sandbox(limits={"memory_mb": 256})
            await _said(sandbox, "import os; x = os.urandom(60 << 20)")
            with pytest.raises(CapacityError, match="write it to disk: No space left") as caught:
                await sandbox.snapshot("kept")
            assert "snapshots_dir" in str(caught.value.remedy)
            assert not list(place.iterdir())
            assert engine.copies_room.used_bytes == 0
            assert not engine.copies.snapshots("")
            await _said(sandbox, "x = 41; open('f', 'w').write('file')")
            await sandbox.snapshot("kept")  # the control
            await _goes_on(engine)

    try:
        asyncio.run(refused())
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("step", ["rename", "header"])
def test_crash_while_it_is_written_leaves_no_half_snapshot(tmp_path: Path, step: str) -> None:
    run_killed(tmp_path, [0], CRASH=step)
    (left,) = (tmp_path / "snapshots").iterdir()
    assert left.name.startswith(".coming-")
    files = SnapshotFiles(tmp_path / "snapshots", None)
    with locked(left):  # as its writer has it, while it lives
        assert files.sweep() == 0
        assert left.exists()

    async def swept() -> None:
        async with _engine(tmp_path) as engine:
            assert not engine.copies.snapshots("")
            assert not left.exists()
            assert engine.copies_room.used_bytes == 0

    asyncio.run(swept())


def test_snapshot_deleted_while_it_is_restored(stored: Path, tmp_path: Path) -> None:
    """The sandbox is right, or there is none; never half of one. Nothing stays counted."""

    async def both() -> None:
        ends = set()
        for turn in range(LAST + 1):
            shutil.copytree(stored / "snapshots", tmp_path / f"{turn}" / "snapshots")
            async with _engine(tmp_path / f"{turn}") as engine:
                restoring = asyncio.ensure_future(engine.copies.restore("kept", ""))
                await (_loaded(engine) if turn == LAST else asyncio.sleep(turn * 0.05))
                with contextlib.suppress(NotFound):
                    engine.copies.delete("kept", "")
                ends.add(await _end_of(restoring))
                await engine.wait_settled()
                assert engine.copies_room.used_bytes == 0
        assert ends <= {"right", "none"}
        assert "right" in ends

    asyncio.run(both())


LAST = 5


async def _loaded(engine: Engine) -> None:
    kept = engine.copies._kept[engine.copies.get("kept", "").id]
    await asyncio.sleep(0)
    async with kept.loading:  # which the restore holds meanwhile
        assert kept.written is not None


async def _end_of(restoring: Awaitable[AsyncSandbox]) -> str:
    try:
        sandbox = await restoring
    except NotFound:
        return "none"
    found = await _said(sandbox, "print(x)")
    await sandbox.close()
    return "right" if found == "41" else found


# -- encrypted -------------------------------------------------------------------------------------


def _key(folder: Path, name: str = "key") -> str:
    path = folder / name
    path.write_text(os.urandom(32).hex(), encoding="ascii")
    path.chmod(0o600)
    return str(path)


MARK = "a-word-that-is-nowhere-else"
"""What a session has; `_begins` makes it of two parts, so that the test's own files lack it."""


def test_encrypted_snapshot_goes_on_with_its_key_alone(tmp_path: Path) -> None:
    key, other = _key(tmp_path), _key(tmp_path, "other")
    code = f"x = 41; mark = '{MARK[:7]}' + '{MARK[7:]}' * 1; big = [mark.upper() for _ in range(9)]"
    made = asyncio.run(_kept(tmp_path, code=code, snapshots_key_file=key))
    found = _folder_of(tmp_path, made)
    for part in ("memory", "archive", "header"):
        assert MARK.upper().encode() not in (found / part).read_bytes()
        assert b'"OWN"' not in (found / part).read_bytes()
    _refused(tmp_path, Conflict, "encrypted with another key", snapshots_key_file=other)
    _refused(tmp_path, Conflict, "this engine has no key")

    async def goes_on() -> None:
        async with _engine(tmp_path, snapshots_key_file=key) as engine:
            assert not _written_down()
            async with _restored(engine) as sandbox:
                assert await _said(sandbox, "print(x, open('f').read())") == "41 file"
                assert _written_down() == {"/memfd:session (deleted)"}

    asyncio.run(goes_on())


def _written_down() -> set[str]:
    """This process's files of sessions that have no name, but for bases."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path, data = os.readlink(f"/proc/self/fd/{number}"), b""
            if path.endswith("(deleted)"):
                data = Path(f"/proc/self/fd/{number}").read_bytes()
            if MARK.upper().encode() in data:
                found.add(path)
    return found


def test_control_without_a_key_its_content_is_on_the_disk(tmp_path: Path) -> None:
    code = f"x = 41; mark = '{MARK[:7]}' + '{MARK[7:]}' * 1; big = [mark.upper() for _ in range(9)]"
    made = asyncio.run(_kept(tmp_path, code=code))
    assert MARK.upper().encode() in (_folder_of(tmp_path, made) / "memory").read_bytes()
    assert b"OWN" in (_folder_of(tmp_path, made) / "header").read_bytes()
    _refused(tmp_path, Conflict, "written without a key", snapshots_key_file=_key(tmp_path))


def test_header_that_was_changed_without_the_key_is_refused(tmp_path: Path) -> None:
    """With a right digest: another tenant, or other limits, are not for its changer to give."""
    key = _key(tmp_path)
    made = asyncio.run(_kept(tmp_path, snapshots_key_file=key))
    path = _folder_of(tmp_path, made) / "header"
    line = path.read_bytes().partition(b"\n")[0]
    facts = json.loads(line) | {"trust": "trusted"}
    changed = snapshot_header._line(facts)
    path.write_bytes(changed + b"\n" + hashlib.sha256(changed).hexdigest().encode() + b"\n")
    _refused(tmp_path, Conflict, "or its header was changed", snapshots_key_file=key)


def test_parts_cannot_be_exchanged_between_snapshots() -> None:
    """A file is bound to its snapshot, its name, its order and its end."""
    seal, data = PartSeal(b"k" * 32), [b"a" * (1 << 20), b"b" * (1 << 20), b"c"]
    salt, *chunks = seal.encrypted(iter(data), "one memory")
    assert list(seal.decrypted(iter([salt, *chunks]), "one memory")) == data
    for wrong, purpose in (
        ([salt, *chunks], "two memory"),
        ([salt, *chunks], "one archive"),
        ([salt, chunks[1], chunks[0], chunks[2]], "one memory"),
        ([salt, *chunks[:-1]], "one memory"),
        ([salt], "one memory"),
        ([], "one memory"),
    ):
        with pytest.raises(ValueError, match="does not open"):
            list(seal.decrypted(iter(wrong), purpose))


# -- the place -------------------------------------------------------------------------------------


def test_place_that_others_may_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "snapshots").mkdir(mode=0o755)
    _refused(tmp_path, UsageError, "others than its owner may read it")


def test_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    key = _key(tmp_path)
    os.chmod(key, 0o644)
    _refused(
        tmp_path, UsageError, "snapshots: the key in .*: others may read it", snapshots_key_file=key
    )
    _refused(
        tmp_path, UsageError, "there is no such file", snapshots_key_file=str(tmp_path / "none")
    )

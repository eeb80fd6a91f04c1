"""Groups C and O: the file door against a hostile tree, and hostile archives through it.

The host never opens a path inside a sandbox: so a link planted there leads to the sandbox's own
files. The witness is a canary on the host, unchanged and in no answer; the control reads the same
link outside, where it must lead to the canary.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import secrets
import tarfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cellwall import AsyncSandbox, FileError, UsageError
from cellwall.runtimes.channel.replies import GuestRefused
from kit.arena import Arena, fresh_peak_kib, peak_kib, unconfined

pytestmark = pytest.mark.attack


class Canary:
    """W1: a host file with a random token that nothing inside may read or change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.token = secrets.token_hex(16)
        path.write_text(self.token, encoding="ascii")
        path.chmod(0o666)  # only the wall protects it

    @property
    def is_unchanged(self) -> bool:
        return self.path.read_text(encoding="ascii") == self.token


@pytest.fixture
def canary(open_folder: Path) -> Iterator[Canary]:
    found = Canary(open_folder / "canary")
    yield found
    assert found.is_unchanged
    assert set(os.listdir(open_folder)) <= {"canary"}


async def _refusal(work: Any, within_s: float = 20.0) -> str:
    """The reason for which a file operation was refused."""
    with pytest.raises(FileError) as caught:
        async with asyncio.timeout(within_s):
            await work
    return caught.value.reason


async def _soon(arena: Arena, ask: Callable[[], Awaitable[object]]) -> str:
    """The same within a second; what hangs never ends.

    Where a question goes through a daemon or another kernel a busy machine may need a second try.
    """
    for _ in range(2 if arena.choice else 0):
        with contextlib.suppress(TimeoutError):
            return await _refusal(ask(), within_s=1.0)
    return await _refusal(ask(), within_s=1.0)


@pytest.mark.parametrize("case", ["C01"])
def test_link_to_a_host_file_reads_nothing_of_the_host(
    arena: Arena, canary: Canary, case: str
) -> None:
    async def attack() -> None:
        async with arena.sandbox() as sandbox:
            plant = f"import os\nos.symlink({str(canary.path)!r}, 'out')"
            assert (await sandbox.run(plant)).ok
            assert await _refusal(sandbox.files.read("out")) == "not_found"
            await sandbox.run("os.remove('out'); os.symlink('/etc/shadow', 'out')")
            assert await _refusal(sandbox.files.read("out")) in {"not_found", "permission"}

    arena.do(attack())
    assert canary.token in unconfined(f"print(open({str(canary.path)!r}).read())").stdout


@pytest.mark.parametrize("case", ["C02"])
def test_directory_link_lists_and_downloads_nothing_of_the_host(
    arena: Arena, canary: Canary, tmp_path: Path, case: str
) -> None:
    async def attack() -> None:
        async with arena.sandbox() as sandbox:
            await sandbox.run(
                "import os\nos.mkdir('d')\nopen('d/own', 'w').write('own')\n"
                f"os.symlink('/', 'd/root')\nos.symlink({str(canary.path.parent)!r}, 'd/host')"
            )
            inner = f"d/root{canary.path}"
            # gVisor of 2022 takes a link to / for the end of the path: the sandbox's own root.
            assert await _refusal(sandbox.files.read(inner)) in {"not_found", "is_directory"}
            assert await _refusal(sandbox.files.list("d/host")) == "not_found"
            assert await sandbox.files.download_dir("d", tmp_path / "down") == 1

    arena.do(attack())
    assert os.listdir(tmp_path / "down") == ["own"]


_FLIP = """
import os, threading
os.mkdir('a'); os.symlink({host!r}, 'b')
def flip():
    while True:
        try:
            os.rename('a', 'c'); os.rename('b', 'a'); os.rename('a', 'b'); os.rename('c', 'a')
        except OSError: pass
threading.Thread(target=flip, daemon=True).start()
"""


@pytest.mark.parametrize("case", ["C04"])
def test_flipping_a_parent_directory_moves_no_upload_outside(
    arena: Arena, canary: Canary, case: str
) -> None:
    async def attack() -> tuple[int, int]:
        written = refused = 0
        async with arena.sandbox() as sandbox:
            assert (await sandbox.run(_FLIP.format(host=str(canary.path.parent)))).ok
            for number in range(400):
                try:
                    await sandbox.files.write(f"a/{number}", "inside")
                    written += 1
                except FileError:
                    refused += 1
        return written, refused

    written, refused = arena.do(attack())
    assert written + refused == 400
    assert written  # the race was run, not refused as a whole


@pytest.mark.parametrize("name", ["main.sh", "result", "data.txt"])
def test_link_at_a_name_that_is_written_leads_nowhere(
    arena: Arena, canary: Canary, name: str
) -> None:
    async def attack() -> None:
        async with arena.sandbox() as sandbox:
            await sandbox.run(f"import os\nos.symlink({str(canary.path)!r}, {name!r})")
            assert await _refusal(sandbox.files.write(name, "forged")) == "not_found"
            await sandbox.run(f"import os\nos.symlink('/etc/passwd', 'x{name}')")
            refused = await _refusal(sandbox.files.write(f"x{name}", "forged"))
            assert refused in {"permission", "invalid"}
            assert (await sandbox.run("echo fine", language="bash")).stdout == "fine\n"

    arena.do(attack())


_SPECIAL = [
    pytest.param("os.mkfifo('x')", id="C07"),
    pytest.param("socket.socket(socket.AF_UNIX).bind('x')", id="C08-socket"),
    pytest.param("os.symlink('/dev/zero', 'x')", id="C08-zero"),
    pytest.param("os.symlink('/dev/urandom', 'x')", id="C08-urandom"),
    pytest.param("os.symlink('/proc/self/mem', 'x')", id="C08-mem"),
    pytest.param("os.symlink('x', 'x')", id="C08-loop"),
]


@pytest.mark.parametrize("plant", _SPECIAL)
def test_special_file_is_refused_within_a_second(arena: Arena, plant: str) -> None:
    async def attack() -> None:
        async with arena.sandbox() as sandbox:
            planted = await sandbox.run(f"import os, socket\n{plant}")
            assert planted.ok, planted
            refused = await _soon(arena, lambda: sandbox.files.read("x"))
            assert refused in {"invalid", "permission", "not_found"}
            assert (await sandbox.files.stat("x")).name == "x"  # the agent is well

    arena.do(attack())


_MOVING = """
import os, threading
fd = os.open('x', os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 8 << 20)
def move():
    while True: {step}
threading.Thread(target=move, daemon=True).start()
"""


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("os.pwrite(fd, b'x' * 65536, os.fstat(fd).st_size)", id="C09"),
        pytest.param("os.ftruncate(fd, 0); os.ftruncate(fd, 8 << 20)", id="C10"),
    ],
)
def test_file_that_changes_while_read_comes_to_an_end(arena: Arena, step: str) -> None:
    async def attack() -> None:
        limits = {"file_mb": 64, "disk_mb": 128, "memory_mb": 256}
        async with arena.sandbox(limits=limits) as sandbox:
            await sandbox.run(_MOVING.format(step=step))
            before = fresh_peak_kib()
            async with asyncio.timeout(20):
                data = await sandbox.files.read_bytes("x")
            assert len(data) <= 64 << 20
            assert peak_kib() - before <= 160 * 1024  # the file twice and a little
            assert (await sandbox.files.stat("x")).type == "file"

    with arena.leaving_nothing():
        arena.do(attack())


@pytest.mark.parametrize("case", ["C11"])
def test_directory_of_a_hundred_thousand_files_is_listed_within_bounds(
    arena: Arena, case: str
) -> None:
    async def attack() -> None:
        limits = {"inodes": 120_000, "disk_mb": 512, "memory_mb": 512}
        async with arena.sandbox(limits=limits) as sandbox:
            make = "import os\nos.mkdir('d')\nfor n in range(10**5): os.mknod(f'd/{n:06}')"
            assert (await sandbox.run(make, timeout=20)).ok
            assert len(await sandbox.files.list("d", limit=1000)) == 1000
            before = fresh_peak_kib()
            assert len(await sandbox.files.list("d", limit=10_000)) <= 10_000
            assert await _refusal(sandbox.files.list("d", limit=10**6)) == "invalid"
            assert peak_kib() - before < 64 * 1024

    with arena.leaving_nothing():
        arena.do(attack())


_BAD_NAMES = [
    pytest.param(name, id=f"C13-{label}")
    for label, name in {
        "absolute": "/etc/passwd",
        "up": "../x",
        "middle": "a/../../x",
        "nul": "a\0b",
        "empty": "",
        "slash": "a/",
    }.items()
]


@pytest.mark.parametrize("name", _BAD_NAMES)
def test_upload_name_that_leads_outside_is_rejected_before_a_start(arena: Arena, name: str) -> None:
    with pytest.raises(UsageError, match="files"):
        arena.run("0", files={name: "x"})
    with pytest.raises(UsageError, match="collect"):
        arena.run("0", collect=[name])


@pytest.mark.parametrize("name", ["a\\..\\b", "%2e%2e%2fx", "~", "-rf", "a b", "\u202e"])
def test_odd_upload_name_is_taken_literally(arena: Arena, name: str) -> None:
    listed = "import os\nprint([each for each in os.listdir() if each != 'main.py'])"
    ended = arena.run(listed, files={name: "x"}, collect=[name])
    assert ended.stdout.endswith(f"\n{[name]!r}\n"), ended
    assert ended.files == {name: b"x"}


@pytest.mark.parametrize("name", [pytest.param("n" * 4096, id="C13-long")])
def test_upload_name_that_no_kernel_takes_is_refused(arena: Arena, name: str) -> None:
    with pytest.raises(FileError) as caught:
        arena.run("0", files={name: "x"})
    assert caught.value.reason == "invalid"


@pytest.mark.parametrize("case", ["C16"])
def test_links_to_one_large_file_count_each(arena: Arena, case: str) -> None:
    code = (
        "import os\nwith open('0', 'wb') as f: f.write(bytes(20 << 20))\n"
        "for n in range(1, 20): os.link('0', str(n))"
    )
    before = fresh_peak_kib()
    limits = {"memory_mb": 256, "disk_mb": 64}
    ended = arena.run(code, collect=[str(n) for n in range(20)], limits=limits, timeout=10)
    assert ended.ok
    assert sum(map(len, ended.files.values())) <= 64 << 20
    assert set(ended.files) == {"0", "1", "2"}
    assert len([note for note in ended.outcome.notes if "collect" in note]) == 17
    assert peak_kib() - before < 160 * 1024


@pytest.mark.parametrize("case", ["C17"])
def test_sparse_giant_is_refused_as_an_artifact(arena: Arena, case: str) -> None:
    code = "import os\nos.truncate(os.open('x', os.O_CREAT | os.O_RDWR), 1 << 40)"
    limits = {"file_mb": 1_048_576}
    before = fresh_peak_kib()
    ended = arena.run(code, limits=limits, collect=["x"], timeout=20)
    assert (ended.ok, dict(ended.files)) == (True, {}), ended
    assert "more than" in " ".join(ended.outcome.notes)
    assert peak_kib() - before < 160 * 1024


# -- archives --------------------------------------------------------------------------------


def _tar(*members: tuple[str, bytes, dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data, fields in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in fields.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


async def _put(sandbox: AsyncSandbox, archive: bytes) -> Mapping[str, Any]:
    """Send an archive as it is, past the library's own packing."""
    channel = sandbox.live.channel
    number, reply = channel.open_transfer("tree_put", {"path": "tree"})
    try:
        for start in range(0, len(archive), 1 << 20):
            if reply.done():
                break
            channel.send({"op": "chunk", "id": number}, archive[start : start + (1 << 20)])
            await channel.wait_writable()
        channel.send({"op": "chunk_end", "id": number})
        async with asyncio.timeout(20):
            return (await reply).header
    finally:
        channel.forget(number)


_LINK = {"type": tarfile.SYMTYPE}
_HOSTILE = [
    pytest.param([("/abs", b"x", {})], id="O01-absolute"),
    pytest.param([("../up", b"x", {})], id="O01-up"),
    pytest.param([("a/../../up", b"x", {})], id="O01-middle"),
    pytest.param(
        [("l", b"", {**_LINK, "linkname": "/tmp"}), ("l/x", b"x", {})], id="O02-absolute-link"
    ),
    pytest.param(
        [("d/l", b"", {**_LINK, "linkname": "../.."}), ("d/l/x", b"x", {})], id="O02-relative-link"
    ),
    pytest.param(
        [("l", b"", {**_LINK, "linkname": "."}), ("l/x", b"x", {})], id="O02-through-own-link"
    ),
    pytest.param([("h", b"", {"type": tarfile.LNKTYPE, "linkname": "../h"})], id="O02-hard-link"),
    pytest.param([("dev", b"", {"type": tarfile.CHRTYPE, "devmajor": 1})], id="O07-device"),
    pytest.param([("pipe", b"", {"type": tarfile.FIFOTYPE})], id="O07-fifo"),
]


@pytest.mark.parametrize("members", _HOSTILE)
def test_hostile_archive_is_refused_and_writes_nothing_beside_its_tree(
    arena: Arena, members: list[tuple[str, bytes, dict[str, Any]]]
) -> None:
    async def attack() -> None:
        async with arena.sandbox() as sandbox:
            await sandbox.files.mkdir("tree")  # else it is removed with what had come
            with pytest.raises(GuestRefused) as caught:
                await _put(sandbox, _tar(("fine", b"1", {}), *members))
            assert caught.value.reason in {"invalid", "not_directory", "not_found", "permission"}
            beside = {entry.name for entry in await sandbox.files.list(".")}
            assert beside <= {"tree"}
            assert await sandbox.files.read("tree/fine") == "1"  # the control: it did unpack

    arena.do(attack())


@pytest.mark.parametrize("case", ["O07-setuid"])
def test_setuid_bits_do_not_travel(arena: Arena, case: str) -> None:
    async def attack() -> None:
        async with arena.sandbox() as sandbox:
            await _put(sandbox, _tar(("tool", b"x", {"mode": 0o6755})))
            assert (await sandbox.files.stat("tree/tool")).mode & 0o7777 == 0o755

    arena.do(attack())


@pytest.mark.parametrize("case", ["O06"])
def test_archive_of_too_many_entries_ends_at_the_inode_limit(arena: Arena, case: str) -> None:
    archive = _tar(*((f"{number}", b"", {}) for number in range(3000)))

    async def attack() -> None:
        async with arena.sandbox(limits={"inodes": 1000}) as sandbox:
            with pytest.raises(GuestRefused) as caught:
                await _put(sandbox, archive)
            assert caught.value.reason == "no_space"
        async with arena.sandbox(limits={"inodes": 8000}) as sandbox:
            assert (await _put(sandbox, archive))["files"] == 3000
            doubled = _tar(("A", b"1", {}), ("A", b"2", {}), ("a", b"3", {}))
            await _put(sandbox, doubled)
            assert await sandbox.files.read("tree/A") == "2"

    with arena.leaving_nothing():
        arena.do(attack())


@pytest.mark.parametrize("case", ["O05"])
def test_archive_that_is_too_large_ends_at_the_disk_limit(arena: Arena, case: str) -> None:
    archive = _tar(*((f"{number}", bytes(1 << 20), {}) for number in range(24)))

    async def attack() -> None:
        async with arena.sandbox(limits={"disk_mb": 16}) as sandbox:
            with pytest.raises(GuestRefused) as caught:
                await _put(sandbox, archive)
            assert caught.value.reason == "no_space"
            assert await sandbox.files.list(".") == []  # what had come is gone
        async with arena.sandbox(limits={"disk_mb": 48}) as sandbox:
            assert (await _put(sandbox, archive))["files"] == 24

    with arena.leaving_nothing():
        arena.do(attack())


_CORRUPT = [
    pytest.param(b"\x00" * 511 + b"\xff" * 100_000, id="O14-noise"),
    pytest.param(_tar(("a", b"x" * 100_000, {}))[:5000], id="O14-truncated"),
    pytest.param(b"PK\x03\x04" + bytes(2000), id="O14-zip"),
]


@pytest.mark.parametrize("archive", _CORRUPT)
def test_corrupt_archive_is_refused_and_the_agent_lives(arena: Arena, archive: bytes) -> None:
    async def attack() -> None:
        async with arena.sandbox() as sandbox:
            with pytest.raises(GuestRefused) as caught:
                await _put(sandbox, archive)
            assert caught.value.reason == "invalid"
            assert (await sandbox.run("6 * 7")).text == "42"

    with arena.leaving_nothing():
        arena.do(attack())

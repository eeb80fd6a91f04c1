"""Hostile layers: what they ask for happens in their own tree, or not at all.

Each is the second layer of an image whose first is benign, unpacked by the real process. The
witnesses: a bait beside the store, the owners of what is on disk, and what is left when it is
refused. The control of each is its benign twin at the end, which unpacks.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import signal
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellwall.engine.templates.store import state_dir
from cellwall.images.archive import read_archive
from cellwall.images.image import Image, ImageInvalid, Layer
from cellwall.linux.uid_ranges import IMAGE_BASE
from cellwall.runtimes.jail.runtime import JailRuntime
from cellwall.runtimes.roots import ImageBounds, UnpackedImage
from kit import controls, waiting
from kit.images import archives
from kit.images.archives import directory, hard_link, layer, link, member

pytestmark = [pytest.mark.attack, pytest.mark.root]
BASE = layer(
    [
        directory("etc"),
        member("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\napp:x:5:6::/home/app:/bin/sh\n"),
        directory("data"),
        member("data/old", b"old"),
        directory("data/sub"),
        member("data/sub/deep", b"deep"),
        link("way", "data"),
    ]
)


class Store:
    """A place to unpack to, with a bait beside it.

    With `shares`, the first of several layers is another image, and the others are unpacked over
    its tree, with which the new one shares files.
    """

    def __init__(self, place: Path, shares: bool) -> None:
        self.place = place
        self.shares = shares
        self.tree = place / "store" / "own" / "tree"
        self.tree.parent.mkdir(mode=0o700, parents=True)
        self.lower = place / "store" / "below" / "tree"
        self.was: list[object] = []
        self.bait = place / "bait"
        self.bait.write_text("untouched", encoding="ascii")
        self.bait.chmod(0o600)

    def image(self, *layers: bytes, config: bytes | None = None) -> Image:
        return read_archive(archives.docker_archive(self.place / "i.tar", layers, config))

    def unpack(self, image: Image, **bounds: Any) -> UnpackedImage:
        async def done() -> UnpackedImage:
            runtime = JailRuntime(state_dir())
            wanted = ImageBounds(**bounds)
            try:
                if not self.shares or len(image.layers) < 2:
                    return await runtime.unpack_image(image, self.tree, wanted)
                if not self.was:
                    first = replace(image, layers=image.layers[:1])
                    await runtime.unpack_image(first, self.lower, ImageBounds())
                    self.was = described(self.lower)
                more = replace(image, layers=image.layers[1:])
                return await runtime.unpack_image(more, self.tree, wanted, self.lower)
            finally:
                await runtime.aclose()

        return asyncio.run(done())

    def over(self, *members: tuple[tarfile.TarInfo, bytes], **bounds: Any) -> UnpackedImage:
        return self.unpack(self.image(BASE, layer(members)), **bounds)

    def refused(self, image: Image, match: str, **bounds: Any) -> None:
        with pytest.raises(ImageInvalid, match=match):
            self.unpack(image, **bounds)
        assert os.listdir(self.tree.parent) == []

    def check(self) -> None:
        """The bait is as it was, and everything in the store belongs to an image's ids."""
        found = self.bait.stat()
        assert self.bait.read_text(encoding="ascii") == "untouched"
        assert (found.st_uid, stat.S_IMODE(found.st_mode), found.st_nlink) == (0, 0o600, 1)
        assert not self.was or described(self.lower) == self.was
        for folder, names, files in os.walk(self.tree):
            for name in (*names, *files):
                owner = os.lstat(os.path.join(folder, name))
                assert IMAGE_BASE <= owner.st_uid < IMAGE_BASE + 65_536
                assert IMAGE_BASE <= owner.st_gid < IMAGE_BASE + 65_536


def described(tree: Path) -> list[object]:
    """What is in a tree: names, owners, modes, times and contents."""
    found: list[object] = []
    for folder, names, files in os.walk(tree):
        names.sort()
        for name in (".", *sorted([*names, *files])):
            path = Path(folder, name)
            status = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            mode = (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns)
            found.append((str(path.relative_to(tree)), *mode, content))
    return found


@pytest.fixture(params=[False, True], ids=["alone", "shared"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    made = Store(tmp_path, request.param)
    yield made
    made.check()


def test_benign_layers(store: Store) -> None:
    """The control: every kind of thing comes as it was written."""
    found = store.over(
        directory("new", mode=0o2750, uid=7, gid=8),
        member("new/program", b"#!", mode=0o4755, uid=1000, gid=65_535, mtime=1_600_000_000),
        link("new/relative", "program"),
        link("new/absolute", "/etc/passwd"),
        hard_link("new/same", "new/program"),
        member("new/pipe", type=tarfile.FIFOTYPE),
        member("way/through", b"a link in the path leads within the tree"),
        member("data/old", b"replaced"),
    )
    new = store.tree / "new"
    program = new / "program"
    status = program.stat()
    assert (status.st_uid, status.st_gid) == (IMAGE_BASE + 1000, IMAGE_BASE + 65_535)
    assert (stat.S_IMODE(status.st_mode), status.st_mtime) == (0o4755, 1_600_000_000)
    assert stat.S_IMODE(new.stat().st_mode) == 0o2750
    assert (new / "same").stat().st_ino == status.st_ino
    assert [os.readlink(new / name) for name in ("relative", "absolute")] == [
        "program",
        "/etc/passwd",
    ]
    assert stat.S_ISFIFO((new / "pipe").lstat().st_mode)
    assert (store.tree / "data/through").exists()
    assert (store.tree / "data/old").read_text() == "replaced"
    assert found.accounts.users == {"root": (0, 0, "/root"), "app": (5, 6, "/home/app")}
    assert (store.tree / "etc/resolv.conf").read_text() == ""


@pytest.mark.parametrize(
    ("members", "gone", "kept"),
    [
        pytest.param([member("data/.wh.old")], ["data/old"], ["data/sub/deep"], id="file"),
        pytest.param([member("data/.wh.sub")], ["data/sub"], ["data/old"], id="directory"),
        pytest.param(
            [member("data/new", b"x"), member("data/.wh..wh..opq")],
            ["data/old", "data/sub"],
            ["data/new"],
            id="opaque-after",
        ),
        pytest.param(
            [member("data/.wh..wh..opq"), member("data/new", b"x")],
            ["data/old", "data/sub"],
            ["data/new"],
            id="opaque-before",
        ),
        pytest.param([member(".wh.way")], ["way"], ["data/old"], id="a-link-not-its-target"),
        pytest.param([member("data", b"now a file")], ["data/old"], ["data"], id="file-for-tree"),
        pytest.param([member("none/.wh.x")], ["none/x"], ["data/old"], id="of-nothing"),
        pytest.param(
            [member("data/sub/new", b"x"), member("data/.wh..wh..opq")],
            ["data/old", "data/sub/deep"],
            ["data/sub/new"],
            id="opaque-over-a-directory-that-is-not-named",
        ),
        pytest.param(
            [member("way/new", b"x"), member("data/.wh..wh..opq")],
            ["data/old", "data/sub"],
            ["data/new"],
            id="opaque-and-a-path-through-a-link",
        ),
        pytest.param(
            [member("data/sub/new", b"x"), member("data/.wh.sub")],
            ["data/sub/deep"],
            ["data/sub/new"],
            id="directory-that-the-layer-makes-again",
        ),
    ],
)
def test_whiteouts(store: Store, members: list[Any], gone: list[str], kept: list[str]) -> None:
    store.over(*members)
    assert not any((store.tree / path).exists() for path in gone)
    assert all((store.tree / path).exists() for path in kept)
    assert not [name for _, _, names in os.walk(store.tree) for name in names if ".wh." in name]


@pytest.mark.parametrize(
    ("members", "match"),
    [
        pytest.param([member("../bait", b"x")], "no path", id="up"),
        pytest.param([member("a/../../bait", b"x")], "no path", id="up-inside"),
        pytest.param([member("a/..", b"x")], "no path", id="up-last"),
        pytest.param([member("a/.wh...")], "hides nothing", id="whiteout-up"),
        pytest.param([member("a/.wh.")], "hides nothing", id="whiteout-of-nothing"),
        pytest.param([member("a/.wh..")], "hides nothing", id="whiteout-here"),
        pytest.param([member("a/.wh..wh.x")], "hides nothing", id="whiteout-of-one"),
        pytest.param([hard_link("x", "../../bait")], "no path", id="hard-link-up"),
        pytest.param([hard_link("x", "none")], "is no file", id="hard-link-to-nothing"),
        pytest.param([hard_link("x", "data")], "is no file", id="hard-link-to-a-directory"),
        pytest.param([hard_link("x", "/proc/self/exe")], "is no file", id="hard-link-to-proc"),
        pytest.param([member("x", b"x", uid=65_536)], "belongs to id", id="foreign-user"),
        pytest.param([member("x", b"x", gid=1 << 31)], "belongs to id", id="foreign-group"),
        pytest.param([member("d/" * 300 + "x")], "too deep", id="deep"),
        pytest.param([member("x" * 300)], "too long", id="long-name"),
        pytest.param([member("/".join(["y" * 200] * 30))], "too long", id="long-path"),
        pytest.param([member("data/old/x")], "is no directory", id="file-as-directory"),
        pytest.param([link("l", "l"), member("l/x")], "Too many levels|no directory", id="loop"),
        pytest.param([member("/", b"x")], "root of a layer", id="root-is-a-file"),
        pytest.param([member(".wh.data/x")], "below a whiteout", id="below-a-whiteout"),
        pytest.param(
            [link("long", "n" * 256), member("long/x")], "too long|no directory", id="long-target"
        ),
    ],
)
def test_refusals(store: Store, members: list[Any], match: str) -> None:
    with pytest.raises(Exception, match=match):
        store.over(*members)
    assert os.listdir(store.tree.parent) == []


@pytest.mark.parametrize(
    "members",
    [
        pytest.param([link("out", "/"), member("out/etc/shadow", b"x")], id="absolute"),
        pytest.param([link("out", "../../.."), member("out/bait", b"x")], id="relative"),
        pytest.param([link("etc", "/"), member("etc/bait", b"x")], id="for-a-directory"),
        pytest.param([link("proc", "/data"), member("proc/bait", b"x")], id="for-a-mount-point"),
        pytest.param([link("dev", "/data")], id="dev"),
        pytest.param([link("opt", "/data"), directory("opt/cellwall")], id="opt"),
        pytest.param([link("etc/resolv.conf", "/data/old")], id="for-a-file-of-ours"),
        pytest.param([link("bait", "/bait"), member("bait", b"x")], id="for-a-file"),
    ],
)
def test_links_lead_nowhere_else(store: Store, members: list[Any]) -> None:
    """What goes through a link lands in the tree; what is mounted over is a directory."""
    store.over(*members)
    for name in ("proc", "sys", "dev", "dev/pts", "dev/shm", "opt/cellwall", "tmp", "etc"):
        assert stat.S_ISDIR((store.tree / name).lstat().st_mode)
    assert stat.S_ISREG((store.tree / "etc/resolv.conf").lstat().st_mode)
    assert (store.tree / "etc/resolv.conf").read_text() == ""


def test_absolute_names_land_in_the_tree(store: Store) -> None:
    store.over(
        member("/bait", b"inside"), member("//tmp/bait", b"inside"), hard_link("/b", "/bait")
    )
    assert [(store.tree / name).read_bytes() for name in ("bait", "tmp/bait", "b")] == [
        b"inside"
    ] * 3


def test_set_uid_files_of_a_layer_have_no_effect_outside(store: Store) -> None:
    """Their owner on the host's disk is nobody; a copy that is root's own is the control."""
    program = Path("/usr/bin/id").read_bytes()
    store.over(member("usr/bin/who", program, mode=0o4755, uid=0))
    who, own = store.tree / "usr/bin/who", store.place / "own"
    own.write_bytes(program)
    own.chmod(0o4755)
    said = []
    with tempfile.TemporaryDirectory(prefix="bait-") as name:  # where a throw-away user may look
        Path(name).chmod(0o755)
        for number, path in enumerate((who, own)):
            seen = Path(name, str(number))
            shutil.copy2(path, seen)
            os.chown(seen, path.stat().st_uid, path.stat().st_gid)
            seen.chmod(0o4755)
            code = f"import subprocess; print(subprocess.check_output([{str(seen)!r}, '-u']))"
            said.append(controls.run_in("user", code).splitlines()[-1])
    assert said == [f"b'{IMAGE_BASE}\\n'", "b'0\\n'"]


def test_devices_and_attributes_do_not_come(store: Store) -> None:
    found = store.over(
        member("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        member("disk", type=tarfile.BLKTYPE, devmajor=8, devminor=0),
        member("x", b"x", pax_headers={"SCHILY.xattr.security.capability": "\x01\0\0\x02"}),
    )
    assert found.skipped == {"devices": 2, "attributes": 1}
    assert not (store.tree / "null").exists()
    assert os.listxattr(store.tree / "x") == []


def test_bounds_are_named(store: Store) -> None:
    many = layer(member(f"f{number}") for number in range(300))
    store.refused(store.image(many), "more than 100 files", most_inodes=100)
    large = layer([member("large", b"\0" * (3 << 20))])
    store.refused(store.image(large), "more than 1048576 bytes", most_bytes=1 << 20)
    store.unpack(store.image(large, many))


def _gzipped(image: Image, place: Path, data: bytes) -> Image:
    path = place / "layer.gz"
    path.write_bytes(data)
    made = Layer(image.layers[0].diff_id, "gzip", path, 0, len(data))
    return Image(image.config, (made, *image.layers[1:]))


def test_bomb_ends_at_its_ratio(store: Store, tmp_path: Path) -> None:
    """A hundred megabytes of zeros in a hundred kilobytes: above 64 MiB the ratio counts."""
    bomb = layer([member("zeros", b"\0" * (100 << 20))])
    image = _gzipped(store.image(bomb), tmp_path, gzip.compress(bomb, 9))
    store.refused(image, "larger than its compressed size allows", most_ratio=100)
    store.unpack(image, most_ratio=5000)


def test_content_that_is_not_what_was_said(store: Store, tmp_path: Path) -> None:
    good = gzip.compress(BASE)
    for data, match in (
        (gzip.compress(BASE.replace(b"old", b"new")), "another digest"),
        (good[: len(good) // 2], "another digest|no tar"),
        (b"\x1f\x8bnothing of gzip", "no gzip"),
        (gzip.compress(os.urandom(4096)), "another digest"),
    ):
        store.refused(_gzipped(store.image(BASE), tmp_path, data), match)
    store.unpack(_gzipped(store.image(BASE), tmp_path, good + gzip.compress(b"")))


def test_damaged_header_is_not_the_end(store: Store) -> None:
    """Behind the first member, too: half a layer is none."""
    whole = layer([member("a", b"1"), member("b", b"2"), member("c", b"3")])
    damaged = bytearray(whole)
    damaged[1024:1124] = b"\xff" * 100
    cut = whole[:1024] + whole[1024:1300]
    for hostile in (bytes(damaged), cut):
        store.refused(store.image(hostile), "damaged header|no tar")
    store.unpack(store.image(whole))


def test_directories_that_no_entry_names_count(store: Store) -> None:
    deep = layer([member("/".join(["d"] * 200) + "/x")])
    store.refused(store.image(deep), "more than 100 files", most_inodes=100)
    store.unpack(store.image(deep), most_inodes=300)


def test_image_below_is_as_it_was(store: Store) -> None:
    """Whatever a layer does to files of the image with which its own one shares them."""
    store.over(
        member("data/old", b"replaced"),
        hard_link("data/again", "data/sub/deep"),
        directory("data/sub", mode=0o700, uid=9),
        member(".wh.way"),
        member("etc/.wh..wh..opq"),
    )
    assert store.was == (described(store.lower) if store.shares else [])
    assert (store.tree / "data/again").read_bytes() == b"deep"
    assert sorted(os.listdir(store.tree / "data")) == ["again", "old", "sub"]
    assert not (store.tree / "etc/passwd").exists()


def test_zeros_take_no_room(store: Store) -> None:
    """A file of zeros is a hole; around it, and at its end, the content is what it was."""
    content = b"begin" + bytes(9 << 20) + b"end"
    store.over(member("zeros", bytes(8 << 20)), member("holes", content), member("none"))
    zeros, holes = store.tree / "zeros", store.tree / "holes"
    assert zeros.read_bytes() == bytes(8 << 20)
    assert holes.read_bytes() == content
    assert (store.tree / "none").stat().st_size == 0
    assert zeros.stat().st_blocks < 16
    assert holes.stat().st_blocks * 512 < 4 << 20


def test_directory_that_was_hidden_and_came_back(store: Store) -> None:
    store.over(member("data/.wh.sub"), directory("data/sub"), member("data/sub/new", b"new"))
    assert os.listdir(store.tree / "data/sub") == ["new"]


def test_accounts_are_bounded(store: Store) -> None:
    lines = b"".join(b"u%d:x:%d:1::/:/bin/sh\n" % (n, n % 60_000) for n in range(1_000_000))
    odd = b"\xff\xfe:x:1:1::/:/\nno line\nbig:x:70000:1::/:/\nrel:x:9:9::home:/bin/sh\n"
    found = store.over(member("etc/passwd", odd + lines))
    assert 0 < len(found.accounts.users) <= 1000
    assert "big" not in found.accounts.users
    assert found.accounts.users["rel"] == (9, 9, "/")


def _unpacking(folder: Path) -> int:
    """Wait until a file has been unpacked; return the pid of the process that does it."""
    waiting.wait_until(lambda: any(folder.glob("*/f1")), "a file is unpacked")
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    (pid,) = [
        int(word) for word in children if b"unpack" in Path(f"/proc/{word}/cmdline").read_bytes()
    ]
    return pid


def test_killed_unpacker_leaves_nothing(store: Store) -> None:
    """kill -9 of the process in the middle: the caller hears of it, and the tree has no name."""
    image = store.image(layer(member(f"f{number}", b"x" * 10_000) for number in range(20_000)))

    async def killed() -> None:
        runtime = JailRuntime(state_dir())
        task = asyncio.ensure_future(runtime.unpack_image(image, store.tree, ImageBounds()))
        os.kill(await asyncio.to_thread(_unpacking, store.tree.parent), signal.SIGKILL)
        with pytest.raises(Exception, match="unpacks"):
            await task
        await runtime.aclose()

    asyncio.run(killed())
    assert os.listdir(store.tree.parent) == []

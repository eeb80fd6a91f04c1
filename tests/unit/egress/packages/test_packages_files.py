"""Files: fetched once, checked before the last byte, kept by content, never another's path."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall.egress.packages.broker import BrokerRequest
from cellwall.egress.packages.cache import Cache
from cellwall.egress.packages.downloads import Following
from cellwall.egress.packages.listings.listing import Digest
from cellwall.egress.packages.pins import Pins
from cellwall.model.errors import UsageError
from cellwall.model.packages import PackagePolicy
from kit.packages import made, registries
from kit.packages.asking import Got, ask, brokering
from kit.packages.brokers import ON, upstreams
from kit.packages.made import Made
from kit.packages.registries import Asked, Registry, Reply

LARGE = made.wheel("large", padding=os.urandom(1_000_000))
SMALL = made.wheel("small")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellwall.egress.packages.downloads._DELAY_S", 0.001)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with registries.running() as started:
        yield started


def target(wheel: Made, digest: str = "") -> str:
    return f"/files/pypi/{digest or wheel.sha256}/{wheel.file_name}"


def whole_files(place: Path) -> set[str]:
    cache = place / "cache"
    return {path.name for path in cache.glob("sha*/*/*")} | {
        path.name for path in (cache / "parts").iterdir()
    }


def in_parts(content: bytes, *, until: int, size: int = 65_536) -> Callable[[], Iterator[bytes]]:
    """Give out a content that breaks off after `until` bytes."""

    def pieces() -> Iterator[bytes]:
        for start in range(0, until, size):
            yield content[start : min(start + size, until)]

    return pieces


# ── one download ──────────────────────────────────────────────────────────────────────────────


def test_fifty_that_ask_share_one_download(registry: Registry, tmp_path: Path) -> None:
    path = registry.add(LARGE)

    async def run() -> list[Got]:
        async with brokering(tmp_path, upstreams(registry)) as broker:
            got = await asyncio.gather(*(ask(broker, target(LARGE)) for _ in range(50)))
            assert broker.fetched == 1
            return [*got, await ask(broker, target(LARGE))]

    got = asyncio.run(run())
    assert {hashlib.sha256(each.content).hexdigest() for each in got} == {LARGE.sha256}
    assert registry.count(path) == 1
    assert whole_files(tmp_path) == {LARGE.sha256}


def test_file_of_the_cache_outlives_the_process(registry: Registry, tmp_path: Path) -> None:
    path = registry.add(LARGE)

    async def run() -> Got:
        async with brokering(tmp_path, upstreams(registry)) as broker:
            return await ask(broker, target(LARGE))

    assert asyncio.run(run()).content == asyncio.run(run()).content == LARGE.content
    assert registry.count(path) == 1


def test_first_client_reads_before_the_last_byte_is_there(
    registry: Registry, tmp_path: Path
) -> None:
    path = registry.add(LARGE)
    half, go_on = len(LARGE.content) // 2, asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    def pieces() -> Iterator[bytes]:
        yield LARGE.content[:half]
        asyncio.run_coroutine_threadsafe(go_on.wait(), loops[0]).result(30)
        yield LARGE.content[half:]

    registry.replies[path] = Reply(headers=_length(LARGE), pieces=pieces)

    async def run() -> bytes:
        loops.append(asyncio.get_running_loop())
        async with brokering(tmp_path, upstreams(registry)) as broker:
            answer = await broker.answer(BrokerRequest("GET", target(LARGE)), PackagePolicy.of(ON))
            assert isinstance(answer.body, Following)
            assert answer.length == len(LARGE.content)
            content = b""
            async for piece in answer.body.pieces():
                content += piece
                go_on.set()  # only now comes the second half
            answer.close()
            return content

    assert asyncio.run(run()) == LARGE.content


def test_connection_that_breaks_is_taken_up_where_it_broke(
    registry: Registry, tmp_path: Path
) -> None:
    path, half = registry.add(LARGE), len(LARGE.content) // 2

    def resuming(asked: Asked) -> Reply:
        begun = asked.headers.get("range")
        if begun is None:
            return Reply(headers=_length(LARGE), pieces=in_parts(LARGE.content, until=half))
        start = int(begun.removeprefix("bytes=").removesuffix("-"))
        end = len(LARGE.content)
        return Reply(
            LARGE.content[start:], 206, {"Content-Range": f"bytes {start}-{end - 1}/{end}"}
        )

    registry.replies[path] = resuming
    assert _got(registry, tmp_path).content == LARGE.content
    assert [each.headers.get("range") is None for each in _asked(registry, path)] == [True, False]


def test_registry_that_cannot_take_up_begins_anew(registry: Registry, tmp_path: Path) -> None:
    path, half, calls = registry.add(LARGE), len(LARGE.content) // 2, []

    def again(asked: Asked) -> Reply:
        calls.append(asked)
        until = half if len(calls) == 1 else len(LARGE.content)
        return Reply(headers=_length(LARGE), pieces=in_parts(LARGE.content, until=until))

    registry.replies[path] = again
    assert _got(registry, tmp_path).content == LARGE.content


def test_registry_that_gives_another_part_is_not_believed(
    registry: Registry, tmp_path: Path
) -> None:
    path, half = registry.add(LARGE), len(LARGE.content) // 2

    def wrong(asked: Asked) -> Reply:
        if "range" not in asked.headers:
            return Reply(headers=_length(LARGE), pieces=in_parts(LARGE.content, until=half))
        return Reply(LARGE.content[:10], 206, {"Content-Range": "bytes 0-9/10"})

    registry.replies[path] = wrong
    got = _got(registry, tmp_path)
    assert "another part" in got.broken
    assert got.content != LARGE.content
    assert whole_files(tmp_path) == set()


def test_download_that_no_client_follows_ends(registry: Registry, tmp_path: Path) -> None:
    path = registry.add(LARGE)
    stuck, loops = asyncio.Event(), list[asyncio.AbstractEventLoop]()

    def pieces() -> Iterator[bytes]:
        yield LARGE.content[:500_000]
        asyncio.run_coroutine_threadsafe(stuck.wait(), loops[0]).result(30)

    registry.replies[path] = Reply(headers=_length(LARGE), pieces=pieces)

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        async with brokering(tmp_path, upstreams(registry)) as broker:
            broker._downloads._lonely_s = 0
            answer = await broker.answer(BrokerRequest("GET", target(LARGE)), PackagePolicy.of(ON))
            assert len(broker._downloads._running) == 1
            answer.close()
            await broker._downloads._tasks.wait_empty()
            assert broker._downloads._running == {}
            assert whole_files(tmp_path) == set()
            registry.replies[path] = Reply(LARGE.content)
            assert (await ask(broker, target(LARGE))).content == LARGE.content
            stuck.set()

    asyncio.run(run())


def test_descriptors_are_given_back(registry: Registry, tmp_path: Path) -> None:
    registry.add(LARGE)
    registry.replies[registry.add(SMALL)] = Reply(b"other")

    async def run() -> None:
        async with brokering(tmp_path, upstreams(registry)) as broker:
            await ask(broker, target(SMALL))
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(20):
                await ask(broker, target(LARGE))
                await ask(broker, target(SMALL))
            await broker._downloads._tasks.wait_empty()
            await asyncio.sleep(0)
            assert len(os.listdir("/proc/self/fd")) <= before + 4, "kept connections apart"

    asyncio.run(run())


# ── content ───────────────────────────────────────────────────────────────────────────────────


def test_wrong_content_is_never_given_out_as_whole(registry: Registry, tmp_path: Path) -> None:
    path = registry.add(LARGE)
    registry.replies[path] = Reply(LARGE.content[:-1] + b"?")
    got = _got(registry, tmp_path)
    assert (got.status, got.broken) == (200, "its content is not what the registry's page promises")
    assert len(got.content) < len(LARGE.content)
    assert whole_files(tmp_path) == set()
    registry.replies[path] = Reply(LARGE.content)
    assert _got(registry, tmp_path).content == LARGE.content


def test_small_wrong_content_is_a_sentence(registry: Registry, tmp_path: Path) -> None:
    registry.replies[registry.add(SMALL)] = Reply(b"other")
    got = _got(registry, tmp_path, SMALL)
    assert (got.status, b"other" in got.content) == (424, False)
    assert "its content is not what the registry's page promises" in got.reason


def test_weak_digest_is_checked_as_well(registry: Registry, tmp_path: Path) -> None:
    tarball = made.tarball("left")
    path = registry.add_npm(tarball, integrity=None)
    address = "/npm/left/-/left-1.0.0.tgz"
    registry.replies[path] = Reply(b"other")

    async def run() -> Got:
        async with brokering(tmp_path, upstreams(registry)) as broker:
            return await ask(broker, address)

    assert asyncio.run(run()).status == 424
    registry.replies[path] = Reply(tarball.content)
    assert asyncio.run(run()).content == tarball.content


def test_metadata_is_checked_against_its_own_digest(registry: Registry, tmp_path: Path) -> None:
    digest = hashlib.sha256(SMALL.metadata).hexdigest()
    path = registry.add(SMALL, metadata={"sha256": digest})
    registry.replies[f"{path}.metadata"] = Reply(b"Name: evil")

    async def run() -> Got:
        async with brokering(tmp_path, upstreams(registry)) as broker:
            return await ask(broker, f"{target(SMALL)}.metadata")

    assert asyncio.run(run()).status == 424
    registry.replies[f"{path}.metadata"] = Reply(SMALL.metadata)
    assert asyncio.run(run()).content == SMALL.metadata


def test_file_without_a_digest_is_pinned_when_it_first_comes(
    registry: Registry, tmp_path: Path
) -> None:
    """Also over a restart, and after it was evicted."""
    path = registry.add(SMALL, with_hash=False)

    async def run() -> Got:
        async with brokering(tmp_path, upstreams(registry)) as broker:
            return await ask(broker, target(SMALL, "unhashed"))

    assert asyncio.run(run()).content == SMALL.content
    (tmp_path / "cache" / "sha256" / SMALL.sha256[:2] / SMALL.sha256).unlink()
    registry.replies[path] = Reply(b"other")
    got = asyncio.run(run())
    assert (got.status, "when it first came" in got.reason) == (424, True)
    registry.replies[path] = Reply(SMALL.content)
    assert asyncio.run(run()).content == SMALL.content


def test_first_pin_counts_and_a_torn_line_is_none(tmp_path: Path) -> None:
    path = str(tmp_path / "pins")
    one, two = Digest("sha256", "1" * 64), Digest("sha256", "2" * 64)
    pins, key = Pins(path), Pins.key("https://a.test/", "x.whl")
    assert pins.get(key) is None
    with open(path, "w") as file:
        file.write(f"{key} {'3' * 30}")
    assert pins.put(key, one) == one
    assert pins.put(key, two) == one
    assert Pins(path).get(key) == one
    assert Pins(path).get(Pins.key("https://b.test/", "x.whl")) is None


@pytest.mark.parametrize("says_length", [True, False])
def test_file_beyond_its_bound_is_refused(
    registry: Registry, tmp_path: Path, says_length: bool
) -> None:
    wheel = made.wheel("huge", padding=bytes(2 * 1024**2))
    path = registry.add(wheel, size=None)
    if not says_length:
        registry.replies[path] = Reply(
            pieces=in_parts(wheel.content, until=len(wheel.content)), headers={}
        )
    got = _got(registry, tmp_path, wheel, largest_file_mb=1)
    assert "larger" in got.reason + got.broken
    assert len(got.content) <= 1024**2 + 300_000
    assert _got(registry, tmp_path, wheel, largest_file_mb=3).content == wheel.content
    assert "larger" in _got(registry, tmp_path, wheel, largest_file_mb=1).reason, "kept, too"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Reply(b"", 404), "does not have the file"),
        (Reply(b"", 403), "credentials"),
        (Reply(b"", 500), "status 500"),
        (Reply(b"", 302, {"Location": "file:///etc/passwd"}), "redirects"),
        (Reply(headers={"Content-Length": "1000"}, pieces=lambda: iter([b"x"])), "broke off"),
    ],
    ids=["404", "403", "500", "redirect", "broken"],
)
def test_file_that_does_not_come_is_a_sentence(
    registry: Registry, tmp_path: Path, reply: Reply, why: str
) -> None:
    registry.replies[registry.add(SMALL)] = reply
    got = _got(registry, tmp_path, SMALL)
    assert (got.status, why in got.reason) == (424, True), got.reason
    assert whole_files(tmp_path) == set()


def test_full_disk_is_a_sentence_and_leaves_nothing(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.add(SMALL)

    def full(fd: int, piece: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("cellwall.egress.packages.downloads._write", full)
        got = _got(registry, tmp_path, SMALL)
    assert (got.status, "cannot be written" in got.reason) == (424, True)
    assert whole_files(tmp_path) == set()
    assert _got(registry, tmp_path, SMALL).content == SMALL.content


def test_cache_that_cannot_be_read_or_written_is_a_sentence(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.add(SMALL)

    def failing(*_: object) -> None:
        raise OSError(5, "Input/output error")

    for method, why in (("open", "cannot be read"), ("part", "cannot be written")):
        with monkeypatch.context() as patched:
            patched.setattr(Cache, method, failing)
            got = _got(registry, tmp_path, SMALL)
        assert (got.status, why in got.reason) == (424, True), got.reason
    assert _got(registry, tmp_path, SMALL).content == SMALL.content


def test_download_that_takes_for_ever_ends(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, go_on = registry.add(LARGE), threading.Event()

    def pieces() -> Iterator[bytes]:
        yield LARGE.content[:100_000]
        go_on.wait(30)

    registry.replies[path] = Reply(headers=_length(LARGE), pieces=pieces)
    monkeypatch.setattr("cellwall.egress.packages.downloads._LONGEST_S", 0.3)
    got = _got(registry, tmp_path)
    go_on.set()
    assert got.broken == "it does not come in time"


def test_page_and_file_are_judged_by_the_policy_of_now(registry: Registry, tmp_path: Path) -> None:
    """A file that was allowed, and is in the cache, is refused from the next request on."""
    registry.add(SMALL)

    async def run() -> None:
        async with brokering(tmp_path, upstreams(registry)) as broker:
            assert (await ask(broker, target(SMALL))).status == 200
            for part in ("", ".metadata"):
                assert (await ask(broker, target(SMALL) + part, deny=["small>=1"])).status == 403
            assert (await ask(broker, target(SMALL))).status == 200

    asyncio.run(run())


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_client_can_put_nothing_into_the_cache(
    registry: Registry, tmp_path: Path, method: str
) -> None:
    registry.add(SMALL)

    async def run() -> None:
        async with brokering(tmp_path, upstreams(registry)) as broker:
            for address in (target(SMALL), "/simple/small/", "/npm/small"):
                assert (await ask(broker, address, method)).status == 405
            assert whole_files(tmp_path) == set()
            assert not registry.asked
            assert (await ask(broker, target(SMALL))).content == SMALL.content

    asyncio.run(run())


def test_digest_that_the_page_does_not_promise_gets_no_file(
    registry: Registry, tmp_path: Path
) -> None:
    registry.add(SMALL)
    registry.add(LARGE)

    async def run() -> None:
        async with brokering(tmp_path, upstreams(registry)) as broker:
            assert (await ask(broker, target(LARGE))).status == 200
            got = await ask(broker, target(SMALL, LARGE.sha256))
            assert (got.status, got.broken) == (403, "")

    asyncio.run(run())


# ── the directory ─────────────────────────────────────────────────────────────────────────────


def kept(cache: Cache, content: bytes) -> Digest:
    part = cache.part()
    os.write(part.fd, content)
    digest = Digest("sha256", hashlib.sha256(content).hexdigest())
    cache.keep(part, digest)
    cache.count(digest)
    os.close(part.fd)
    return digest


def has(cache: Cache, digest: Digest) -> bool:
    file = cache.open(digest)
    if file is not None:
        file.close()
    return file is not None


def test_files_unused_for_longest_are_evicted_first(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path / "cache"), most_bytes=250)
    one, two = kept(cache, b"1" * 100), kept(cache, b"2" * 100)
    assert has(cache, one)
    three = kept(cache, b"3" * 100)
    assert [has(cache, each) for each in (one, two, three)] == [True, False, True]
    assert cache.size == 200
    os.utime(tmp_path / "cache" / "sha256" / three.hex[:2] / three.hex, (1, 1))
    again = Cache(str(tmp_path / "cache"), most_bytes=250)
    assert again.size == 200
    kept(again, b"4" * 100)
    assert [has(again, each) for each in (one, three)] == [True, False], "used as last time"


def test_file_that_is_read_stays_whole_when_it_is_evicted(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path / "cache"), most_bytes=150)
    file = cache.open(kept(cache, b"1" * 100))
    kept(cache, b"2" * 100)
    assert file is not None
    assert os.pread(file.fd, 200, 0) == b"1" * 100
    file.close()


def test_parts_of_ended_writers_are_removed_and_those_of_others_stay(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path / "cache"), most_bytes=1000)
    ours, left = cache.part(), cache.part()
    fcntl.flock(left.fd, fcntl.LOCK_UN)
    Cache(str(tmp_path / "cache"), most_bytes=1000)
    assert os.listdir(tmp_path / "cache" / "parts") == [ours.name]
    os.close(ours.fd)
    os.close(left.fd)


@pytest.mark.parametrize(
    "digest",
    [
        Digest("sha256", "../" * 21 + "a"),
        Digest("sha256", "A" * 64),
        Digest("sha1", "a" * 40),
        Digest("..", "a" * 64),
        Digest("sha256", "a" * 63 + "\n"),
    ],
    ids=repr,
)
def test_what_is_no_digest_is_no_path(tmp_path: Path, digest: Digest) -> None:
    cache = Cache(str(tmp_path / "cache"), most_bytes=1000)
    with pytest.raises(ValueError, match="no digest"):
        cache.open(digest)


def test_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path / "cache"), most_bytes=1000)
    digest = kept(cache, b"x")
    path = tmp_path / "cache" / "sha256" / digest.hex[:2] / digest.hex
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic"):
        cache.open(digest)


def test_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "cache"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(UsageError, match="may write"):
        Cache(str(place), most_bytes=1000)
    place.chmod(0o700)
    Cache(str(place), most_bytes=1000)


def _length(wheel: Made) -> dict[str, str]:
    return {"Content-Length": str(len(wheel.content))}


def _got(registry: Registry, place: Path, wheel: Made = LARGE, **policy: Any) -> Got:
    async def run() -> Got:
        async with brokering(place, upstreams(registry)) as broker:
            return await ask(broker, target(wheel), **policy)

    return asyncio.run(run())


def _asked(registry: Registry, path: str) -> list[Asked]:
    return [each for each in registry.asked if each.path == path]

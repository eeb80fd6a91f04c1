"""Files on their way from a registry: each fetched once, however many clients wait for it.

A download writes into a part of the cache; each client reads from that part as it grows, so that
the first client does not wait for the last byte. The last bytes are held back until the content has
the digest that the page promised. The invariant: a file whose content is another is never given
out as whole: its readers get `Broken`, and nothing of it is kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

from cellwall.egress.packages.cache import Cache, Part
from cellwall.egress.packages.fetching import Fetched, Fetcher, Trouble
from cellwall.egress.packages.listings.listing import Digest
from cellwall.egress.packages.pins import Pins
from cellwall.egress.packages.upstream import Upstream
from cellwall.surface.shared.tasks import Tasks

_HELD_BYTES = 64 * 1024
"""Bytes at the end of a file that no client gets before they are checked."""
_PIECE_BYTES = 256 * 1024
_TRIES = 3
_DELAY_S = 0.3
_AT_ONCE = 32
_LONELY_S = 3.0
_LONGEST_S = 3600.0
_FAILED_S = 5.0
_MOST_FAILED = 10_000
_NOT_WRITTEN = "the cache of packages cannot be written"

_log = logging.getLogger("cellwall")


class Broken(Exception):
    """A download ended without a whole file; the text says why, for the client's screen."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to fetch, and what it must be."""

    url: str
    upstream: Upstream
    most_bytes: int
    strong: Digest | None = None
    weak: Digest | None = None
    pin: str = ""
    """Key of `Pins`, which counts where there is no strong digest."""

    @property
    def name(self) -> str:
        """What those that want the same share one download by."""
        return self.strong.hex if self.strong else self.pin


class Download:
    """One file under way, and the part it is written to until nothing reads or writes it."""

    def __init__(self, name: str, part: Part) -> None:
        self.name = name
        self.part = part
        self.total: int | None = None
        """Bytes of the whole file, as soon as the registry says."""
        self.written = 0
        self.is_checked = False
        self.broken: Broken | None = None
        self.followers = 0
        self.is_over = False
        """Whether its task has ended, after which only followers use the part."""
        self.task: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()

    @property
    def _visible(self) -> int:
        return self.written if self.is_checked else max(0, self.written - _HELD_BYTES)

    def move(self) -> None:
        """Wake those that wait for more."""
        self._moved.set()
        self._moved = asyncio.Event()

    async def begin(self) -> None:
        """Wait until there is something to give out; `Broken` if there never will be."""
        while not self._visible and not self.is_checked:
            if self.broken is not None:
                raise self.broken
            await self._moved.wait()

    async def pieces(self, most_bytes: int) -> AsyncIterator[bytes]:
        """Yield the content as it comes; `Broken` if it does not come whole."""
        offset = 0
        while True:
            if offset > most_bytes:
                raise Broken("its file is larger than is allowed")
            if self.broken is not None:
                raise self.broken
            if offset < self._visible:
                size = min(_PIECE_BYTES, self._visible - offset)
                piece = os.pread(self.part.fd, size, offset)
                offset += len(piece)
                yield piece
            elif self.is_checked:
                return
            else:
                await self._moved.wait()


class Downloads:
    """All downloads of one broker. Lives on one event loop."""

    def __init__(
        self, fetcher: Fetcher, cache: Cache, pins: Pins, lonely_s: float = _LONELY_S
    ) -> None:
        """`lonely_s` is for how many seconds a download goes on that no client follows."""
        self._lonely_s = lonely_s
        self._fetcher = fetcher
        self._cache = cache
        self._pins = pins
        self._running: dict[str, Download] = {}
        self._failed: dict[str, Broken] = {}
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._tasks = Tasks()
        self.fetched = 0
        """Number of downloads that were begun."""

    def follow(self, wanted: Wanted) -> Following:
        """Return a hold of the one download of a file, begun if it is not under way. `Broken`."""
        found = self._running.get(wanted.name)
        if found is None and (broken := self._failed.get(wanted.name)) is not None:
            raise broken
        if found is None:
            found = Download(wanted.name, self._part())
            self._running[wanted.name] = found
            self.fetched += 1
            found.task = self._tasks.spawn(self._run(found, wanted))
            # Also when it is cancelled before its first step.
            found.task.add_done_callback(lambda _: self._end(found))
        found.followers += 1
        return Following(self, found, wanted.most_bytes)

    def _part(self) -> Part:
        try:
            return self._cache.part()
        except OSError as error:
            _log.error("package cache: a file was not made: %s", error)
            raise Broken(_NOT_WRITTEN) from None

    def leave(self, download: Download) -> None:
        """End one reader's interest; a download without any ends soon."""
        download.followers -= 1
        if download.followers > 0:
            return
        if download.is_over:
            os.close(download.part.fd)
        else:
            # uv reads the first bytes of a wheel without metadata, hangs up and asks for all of it.
            asyncio.get_running_loop().call_later(self._lonely_s, self._end_lonely, download)

    def _end_lonely(self, download: Download) -> None:
        if download.followers or download.is_checked or download.task is None:
            return
        if self._running.get(download.name) is download:
            del self._running[download.name]  # what asks from now on begins anew
        download.task.cancel()

    async def _run(self, download: Download, wanted: Wanted) -> None:
        try:
            async with self._free, asyncio.timeout(_LONGEST_S):
                hashes = await self._fetch(download, wanted)
            digest = self._checked(hashes, wanted)
            download.is_checked = True
            download.move()
            await self._keep(download, digest)
        except (Trouble, Broken) as error:
            download.broken = Broken(str(error))
            self._remember(download.name, download.broken)
        except TimeoutError:
            download.broken = Broken("it does not come in time")
        except OSError as error:
            _log.error("package cache: a file was not written: %s", error)
            download.broken = Broken(_NOT_WRITTEN)

    def _remember(self, name: str, broken: Broken) -> None:
        """Let a client whose connection was cut, and that tries again, hear why."""
        if len(self._failed) < _MOST_FAILED:
            self._failed[name] = broken
            asyncio.get_running_loop().call_later(_FAILED_S, self._failed.pop, name, None)

    def _end(self, download: Download) -> None:
        if not download.is_checked and download.broken is None:
            download.broken = Broken("its download was broken off")
        if self._running.get(download.name) is download:
            del self._running[download.name]
        self._cache.drop(download.part)
        download.is_over = True
        if download.followers == 0:
            os.close(download.part.fd)
        download.move()

    async def _keep(self, download: Download, digest: Digest) -> None:
        """Move the part into the cache; its readers have all they want already."""
        try:
            await asyncio.to_thread(self._cache.keep, download.part, digest)
        except OSError as error:
            _log.error("package cache: a file was not kept: %s", error)
        else:
            self._cache.count(digest)

    async def _fetch(self, download: Download, wanted: Wanted) -> _Hashes:
        """Write the whole content; a connection that breaks is taken up where it broke."""
        hashes = _Hashes(wanted)
        for number in range(_TRIES):
            try:
                await self._fetch_rest(download, wanted, hashes)
                return hashes
            except Trouble as error:
                if not error.may_pass or number + 1 == _TRIES:
                    raise
                await asyncio.sleep(_DELAY_S)
        raise AssertionError

    async def _fetch_rest(self, download: Download, wanted: Wanted, hashes: _Hashes) -> None:
        begun_at = download.written
        headers = {"Range": f"bytes={begun_at}-"} if begun_at else {}
        async with self._fetcher.get(wanted.url, wanted.upstream, headers) as fetched:
            skip = _skipped(fetched, begun_at)
            if fetched.length is not None:
                download.total = fetched.length + (begun_at - skip)
            if (download.total or 0) > wanted.most_bytes:
                raise Broken("its file is larger than is allowed")
            async for piece in fetched.body:
                fresh = piece[skip:]
                skip -= len(piece) - len(fresh)
                if fresh:
                    hashes.update(fresh)
                    _write(download.part.fd, fresh)
                    download.written += len(fresh)
                    download.move()
                if download.written > wanted.most_bytes:
                    raise Broken("its file is larger than is allowed")
        if download.total is not None and download.written != download.total:
            raise Trouble("its answer broke off", may_pass=True)

    def _checked(self, hashes: _Hashes, wanted: Wanted) -> Digest:
        """Return the digest under which to keep the file; `Broken` if it has another."""
        for promised in (wanted.strong, wanted.weak):
            if promised is not None and hashes.of(promised.algorithm) != promised.hex:
                raise Broken("its content is not what the registry's page promises")
        if wanted.strong is not None:
            return wanted.strong
        own = Digest("sha256", hashes.of("sha256"))
        if self._pins.put(wanted.pin, own) != own:
            raise Broken("its content is not what it was when it first came")
        return own

    async def aclose(self) -> None:
        """Break off what is under way; what is checked is kept first."""
        for download in list(self._running.values()):
            if download.task is not None and not download.is_checked:
                download.task.cancel()
        await self._tasks.wait_empty()


@dataclass(frozen=True, slots=True)
class Following:
    """One reader's hold of a download; the holder closes it."""

    _downloads: Downloads
    _download: Download
    _most_bytes: int

    async def begin(self) -> None:
        """Wait until there is something to give out; `Broken` if there never will be."""
        await self._download.begin()
        if (self.length or 0) > self._most_bytes:
            raise Broken("its file is larger than is allowed")

    @property
    def length(self) -> int | None:
        """Bytes of the whole file; None: the registry has not said."""
        download = self._download
        return download.written if download.is_checked else download.total

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the content as it comes; `Broken` if it does not come whole."""
        return self._download.pieces(self._most_bytes)

    def close(self) -> None:
        """Let go."""
        self._downloads.leave(self._download)


class _Hashes:
    """Digests of the content so far: those that were promised, and one for a pin."""

    def __init__(self, wanted: Wanted) -> None:
        promised = {each.algorithm for each in (wanted.strong, wanted.weak) if each is not None}
        own = set() if wanted.strong is not None else {"sha256"}
        self._states = {name: hashlib.new(name, usedforsecurity=False) for name in promised | own}

    def update(self, piece: bytes) -> None:
        for state in self._states.values():
            state.update(piece)

    def of(self, algorithm: str) -> str:
        return self._states[algorithm].hexdigest()


def _skipped(fetched: Fetched, begun_at: int) -> int:
    """Return how many bytes of an answer are there already; `Trouble` if it is no file."""
    if fetched.status == 206 and begun_at:
        start = fetched.headers.get("content-range", "").removeprefix("bytes ").partition("-")[0]
        if start != str(begun_at):
            raise Trouble("it gives another part of the file than was asked for")
        return 0
    if fetched.status in {404, 410}:
        raise Trouble("it does not have the file that its page names")
    if fetched.status in {401, 403, 407}:
        raise Trouble("it does not accept the operator's credentials for this file")
    if fetched.status != 200:
        may_pass = fetched.status >= 500 or fetched.status in {408, 425, 429}
        raise Trouble(f"it answers with status {fetched.status}", may_pass=may_pass)
    return begun_at


def _write(fd: int, piece: bytes) -> None:
    left = memoryview(piece)
    while left:
        left = left[os.write(fd, left) :]

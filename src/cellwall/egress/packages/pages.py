"""What registries say about names, kept for a short while.

A page is fetched once however many ask for it, and an old one is better than none while its
registry does not answer. The invariant against confused dependencies: the first registry that knows
a name owns it, and one that gives no usable answer ends the search, because the next one's package
of that name could be another's.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cellwall.egress.packages.fetching import Fetched, Fetcher, Trouble, joined
from cellwall.egress.packages.listings import npm_page, python_page
from cellwall.egress.packages.listings.listing import Malformed, Page
from cellwall.egress.packages.listings.paths import npm_path
from cellwall.egress.packages.upstream import Upstream, asked_for
from cellwall.model.packages import Registry
from cellwall.surface.shared.tasks import Tasks

_DELAYS_S = (0.2, 0.6)
"""Between tries of one registry; there is one try more."""
_AT_ONCE = 16
_MISSING = frozenset({404, 410})
_THREAD_FROM_BYTES = 128 * 1024
"""Larger pages are read on a thread, so that the loop relays on."""


@dataclass(frozen=True, slots=True)
class PageSettings:
    """How long pages are kept."""

    fresh_s: float = 300.0
    """Seconds for which a page is given out without asking its registry again."""
    unknown_s: float = 30.0
    """The same for a name that no registry knows."""
    trouble_s: float = 5.0
    """The same for the failure of a registry; clients that try again are answered at once."""
    stale_s: float = 7 * 86_400.0
    """Seconds for which a page is given out when its registry gives no usable answer."""
    most_bytes: int = 32 * 1024 * 1024
    """Sum of the pages as they came, which in memory are several times as large; the longest unused
    are forgotten."""
    most_names: int = 20_000
    total_s: float = 12.0
    """Seconds in which a registry has to have given a page, all tries together: pip itself gives
    up after 15."""


class TooLarge(Exception):
    """What a registry says about a name is beyond the asker's bound."""


@dataclass(frozen=True, slots=True)
class Known:
    """A page and whose it is."""

    page: Page
    upstream: Upstream
    size: int
    """Bytes as it came."""
    stale_s: float = 0.0
    """Seconds since it was fetched, if its registry has given no newer one since it was due."""


@dataclass(frozen=True, slots=True)
class _Kept:
    known: Known | None
    """None: no registry knows the name."""
    trouble: Trouble | None
    fetched_at: float
    due_at: float
    etag: str | None = None


_Key = tuple[Registry, str, bool]


class Pages:
    """The pages of one broker's registries. Lives on one event loop."""

    def __init__(
        self,
        upstreams: Sequence[Upstream],
        fetcher: Fetcher,
        settings: PageSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` gives seconds."""
        self._upstreams = tuple(upstreams)
        self._fetcher = fetcher
        self._settings = settings
        self._clock = clock
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._size = 0
        self._flights: dict[tuple[_Key, int], asyncio.Future[_Kept]] = {}
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._tasks = Tasks()

    def has_upstream(self, registry: Registry) -> bool:
        """Report whether any registry of this kind is configured."""
        return any(upstream.registry == registry for upstream in self._upstreams)

    async def get(
        self, registry: Registry, name: str, *, with_times: bool, most_bytes: int
    ) -> Known | None:
        """Return the page of a name; None if no registry knows it. `Trouble`, `TooLarge`.

        `with_times`: npm's registries say since when versions are there in a longer form only.
        """
        key = (registry, name, with_times and registry == "npm")
        kept = self._kept.get(key)
        if kept is None or self._clock() >= kept.due_at:
            kept = await self._fetched(key, most_bytes)
        else:
            self._kept.move_to_end(key)
        if kept.known is not None and kept.known.size > most_bytes:
            raise TooLarge
        if kept.trouble is not None:
            return self._stale(kept)
        return kept.known

    def _stale(self, kept: _Kept) -> Known:
        age_s = self._clock() - kept.fetched_at
        if kept.known is None or age_s > self._settings.stale_s:
            assert kept.trouble is not None  # noqa: S101 - for the type checker only
            raise kept.trouble
        return replace(kept.known, stale_s=max(age_s, 1.0))

    async def _fetched(self, key: _Key, most_bytes: int) -> _Kept:
        """Wait for the one fetch of this page that is under way."""
        flight = self._flights.get((key, most_bytes))
        if flight is None:
            flight = asyncio.get_running_loop().create_future()
            self._flights[key, most_bytes] = flight
            self._tasks.spawn(self._fly(key, flight, most_bytes))
        return await asyncio.shield(flight)

    async def _fly(self, key: _Key, flight: asyncio.Future[_Kept], most_bytes: int) -> None:
        try:
            kept = await self._kept_of(key, most_bytes)
            self._keep(key, kept)
            flight.set_result(kept)
        except TooLarge as error:
            flight.set_exception(error)
            flight.exception()  # it counts as seen if all that waited have gone
        finally:
            del self._flights[key, most_bytes]
            if not flight.done():
                # Closing, or a defect, which the log has.
                flight.set_exception(Trouble("its page was not fetched"))
                flight.exception()

    async def _kept_of(self, key: _Key, most_bytes: int) -> _Kept:
        settings, old = self._settings, self._kept.get(key)
        try:
            async with self._free, asyncio.timeout(settings.total_s):
                known, etag = await self._first_that_knows(key, old, most_bytes)
        except TimeoutError:
            trouble = Trouble("it does not answer in time", may_pass=True)
        except Trouble as error:
            trouble = error
        else:
            now = self._clock()
            fresh_s = settings.unknown_s if known is None else settings.fresh_s
            return _Kept(known, None, now, now + fresh_s, etag)
        now = self._clock()
        due_at = now + settings.trouble_s
        return replace(old or _Kept(None, None, now, now), trouble=trouble, due_at=due_at)

    async def _first_that_knows(
        self, key: _Key, old: _Kept | None, most_bytes: int
    ) -> tuple[Known | None, str | None]:
        registry, name, with_times = key
        for upstream in asked_for(self._upstreams, registry, name):
            same = old if old and old.known and old.known.upstream == upstream else None
            found = await self._tried(upstream, name, with_times, same, most_bytes)
            if found is not None:
                return found
        return None, None

    async def _tried(
        self, upstream: Upstream, name: str, with_times: bool, old: _Kept | None, most_bytes: int
    ) -> tuple[Known, str | None] | None:
        for delay_s in (*_DELAYS_S, None):
            try:
                return await self._asked(upstream, name, with_times, old, most_bytes)
            except Trouble as error:
                if not error.may_pass or delay_s is None:
                    raise
                await asyncio.sleep(delay_s)
        raise AssertionError

    async def _asked(
        self, upstream: Upstream, name: str, with_times: bool, old: _Kept | None, most_bytes: int
    ) -> tuple[Known, str | None] | None:
        """Ask one registry once; None if it does not know the name."""
        if upstream.registry == "pypi":
            url, accept = joined(upstream, f"{name}/"), python_page.ACCEPT
        else:
            url = joined(upstream, npm_path(name))
            accept = npm_page.ACCEPT_FULL if with_times else npm_page.ACCEPT_SHORT
        headers = {"Accept": accept}
        if old and old.etag:
            headers["If-None-Match"] = old.etag
        async with self._fetcher.get(url, upstream, headers) as fetched:
            if fetched.status in _MISSING:
                return None
            if fetched.status == 304 and old and old.known:
                return old.known, old.etag
            _check_status(fetched)
            content = await _content(fetched, most_bytes)
        page = await _read(upstream, name, content, fetched)
        return Known(page, upstream, len(content)), _etag(fetched)

    def _keep(self, key: _Key, kept: _Kept) -> None:
        self._forget(key)
        self._kept[key] = kept
        self._size += kept.known.size if kept.known else 0
        most = self._settings
        while len(self._kept) > most.most_names or self._size > most.most_bytes:
            self._forget(next(iter(self._kept)))

    def _forget(self, key: _Key) -> None:
        gone = self._kept.pop(key, None)
        self._size -= gone.known.size if gone and gone.known else 0

    async def aclose(self) -> None:
        """Break off what is under way."""
        await self._tasks.cancel()


def _check_status(fetched: Fetched) -> None:
    if fetched.status in {401, 403, 407}:
        raise Trouble("it does not accept the operator's credentials for this package")
    if fetched.status != 200:
        may_pass = fetched.status >= 500 or fetched.status in {408, 425, 429}
        raise Trouble(f"it answers with status {fetched.status}", may_pass=may_pass)
    if fetched.headers.get("content-encoding", "identity").lower() != "identity":
        raise Trouble("its answer is encoded, which was not asked for")


async def _content(fetched: Fetched, most_bytes: int) -> bytes:
    if (fetched.length or 0) > most_bytes:
        raise TooLarge
    parts, size = [], 0
    async for part in fetched.body:
        parts.append(part)
        size += len(part)
        if size > most_bytes:
            raise TooLarge
    return b"".join(parts)


async def _read(upstream: Upstream, name: str, content: bytes, fetched: Fetched) -> Page:
    def read() -> Page:
        if upstream.registry == "npm":
            return npm_page.read(content, fetched.url, name)
        media_type = fetched.headers.get("content-type", "")
        return python_page.read(content, media_type, fetched.url, name)

    try:
        return await asyncio.to_thread(read) if len(content) > _THREAD_FROM_BYTES else read()
    except Malformed as error:
        raise Trouble(f"what it says about this package cannot be read: {error}") from None


def _etag(fetched: Fetched) -> str | None:
    etag = fetched.headers.get("etag", "")
    return etag if 0 < len(etag) <= 200 and etag.isascii() and etag.isprintable() else None

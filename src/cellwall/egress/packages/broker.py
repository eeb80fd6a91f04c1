"""Each answer to pip, uv and npm: a page, a file, or a refusal that reaches the screen.

Not HTTP on a connection (`serving`). What makes a client print a sentence at once, without trying
again, is what it does with each status; that was measured with each of them:

* pip prints no status of an index page, but that of a file. So a page lists the real versions of a
  refused name, or stand-ins where nothing is known of them, whose metadata and file answer 403.
  pip names the versions it found when none fits, which is why a stand-in's has words in it.
* uv prints the reason of both, and of 404 a sentence of its own. A version that is refused beside
  allowed ones is listed as withdrawn, with the reason: ranges pass it over, a pin leads to the
  file, and uv prints the reason in both cases.
* npm prints `{"error": …}` and adds no advice of its own to 451; what is refused beside allowed
  versions is `policyRestrictions` of the packument, which npm knows.
* 502 costs pip and uv 8 s, npm 70 s, and hides the sentence; so a registry's failure is 424 after
  tries of our own.

The invariants: a page and the file behind it are judged alike, each time, by the policy of now; and
no registry is asked for a name that the policy refuses whatever the answer, since a program can
write into a name what it wants to send out.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cellwall.egress.packages.cache import Cache, CachedFile
from cellwall.egress.packages.downloads import Broken, Downloads, Following, Wanted
from cellwall.egress.packages.fetching import Fetcher, Times, Trouble
from cellwall.egress.packages.listings import npm_page, offers, sentences
from cellwall.egress.packages.listings.listing import Listed, Page
from cellwall.egress.packages.listings.paths import (
    Ask,
    PackageFile,
    SimplePage,
    ask_of,
)
from cellwall.egress.packages.pages import Known, Pages, PageSettings, TooLarge
from cellwall.egress.packages.pins import Pins
from cellwall.egress.packages.refusals import Kind, Refusal
from cellwall.egress.packages.rules import Judge
from cellwall.egress.packages.upstream import Upstream
from cellwall.egress.posting import Resolve
from cellwall.model.packages import PackagePolicy

_THREAD_FROM_FILES = 500
_METADATA_BYTES = 4 * 1024 * 1024
_HOST = re.compile(r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9a-fA-F:.]{2,45}\])(?::\d{1,5})?", re.ASCII)
_NOT_KEPT = ("Cache-Control", "no-store")
_ASK_AGAIN = ("Cache-Control", "no-cache")
_KEPT = ("Cache-Control", "public, max-age=31536000, immutable")
_NAME_REFUSED = {
    sentences.DENIED: "it.is.denied.here",
    sentences.NOT_ALLOWED: "it.is.not.allowed.here",
}
"""The reasons against a name in a version's letters, for pip."""

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class HeadOnly:
    """In place of a file that is not here, where only its length was asked for."""

    length: int | None

    def close(self) -> None:
        """Do nothing."""


Body = bytes | CachedFile | Following | HeadOnly


@dataclass(frozen=True, slots=True)
class BrokerRequest:
    """What a client inside asks for."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    """By name in lower case."""


@dataclass(frozen=True, slots=True)
class BrokerAnswer:
    """What it gets; `close` it."""

    status: int
    reason: str
    """One line of printable ASCII."""
    headers: Headers
    body: Body

    def close(self) -> None:
        """Give back what the body holds."""
        if not isinstance(self.body, bytes):
            self.body.close()

    @property
    def length(self) -> int | None:
        """Bytes of the body; None: not known before it has come."""
        return len(self.body) if isinstance(self.body, bytes) else self.body.length


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """What the operator says beside the registries."""

    listed: tuple[str, ...] = ()
    """Networks that pages and redirects of registries may name beside public ones."""
    pages: PageSettings = field(default_factory=PageSettings)
    times: Times = field(default_factory=Times)


class Broker:
    """Answers for all sandboxes; each request comes with the policy of its own. On one loop."""

    def __init__(
        self,
        upstreams: Sequence[Upstream],
        cache: Cache,
        settings: BrokerSettings | None = None,
        *,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives seconds since the epoch, for the age of files."""
        settings = settings or BrokerSettings()
        self._clock = clock
        self._cache = cache
        self._pins = Pins(cache.pins_path)
        self._fetcher = Fetcher(
            upstreams, listed=settings.listed, resolve=resolve, tls=tls, times=settings.times
        )
        self._pages = Pages(upstreams, self._fetcher, settings.pages)
        self._downloads = Downloads(self._fetcher, cache, self._pins)

    @property
    def fetched(self) -> int:
        """Number of files that were fetched from registries."""
        return self._downloads.fetched

    async def answer(self, request: BrokerRequest, policy: PackagePolicy) -> BrokerAnswer:
        """Return the answer; an error is a defect."""
        ask = ask_of(request.target)
        if request.method not in {"GET", "HEAD"}:
            return _said(405, sentences.ONLY_READ, ("Allow", "GET, HEAD"))
        if ask is None:
            return _said(404, sentences.NOTHING)
        known = await self._known(ask, policy)
        if isinstance(ask, PackageFile):
            return await self._file(ask, known, policy, is_head=request.method == "HEAD")
        # The largest pages take 50 ms to write; the loop relays on meanwhile.
        is_large = isinstance(known, Known) and len(known.page.files) > _THREAD_FROM_FILES
        make = self._simple if isinstance(ask, SimplePage) else self._packument
        if is_large:
            return await asyncio.to_thread(make, ask.name, known, policy, request.headers)
        return make(ask.name, known, policy, request.headers)

    async def _known(self, ask: Ask, policy: PackagePolicy) -> Known | Refusal:
        """Return the page of a name, or why there is none for this policy."""
        if ask.registry not in policy.registries:
            return Refusal(Kind.REFUSED, sentences.is_off(ask.registry), "packages.are.off.here")
        # SECURITY: before anything is asked outside, by the name alone.
        why = Judge(policy, ask.registry, ask.name).refusal_of_name()
        if why is not None:
            words = _NAME_REFUSED[why]
            return Refusal(Kind.REFUSED, sentences.name_refused(ask.name, why), words)
        if not self._pages.has_upstream(ask.registry):
            said = sentences.no_index(ask.registry)
            return Refusal(Kind.REFUSED, said, "no.registry.is.configured.here")
        known = await self._asked(ask, policy)
        if isinstance(known, Known) and not known.page.files:
            return Refusal(Kind.MISSING, sentences.no_files(ask.name), "there.are.no.files")
        return known

    async def _asked(self, ask: Ask, policy: PackagePolicy) -> Known | Refusal:
        try:
            known = await self._pages.get(
                ask.registry,
                ask.name,
                with_times=policy.min_age_days > 0,
                most_bytes=policy.largest_page_bytes,
            )
        except TooLarge:
            said = sentences.page_too_large(ask.name, policy.largest_page_mb)
            return Refusal(Kind.REFUSED, said, "its.page.is.too.large")
        except Trouble as error:
            said = sentences.trouble(ask.name, str(error))
            return Refusal(Kind.TROUBLE, said, "its.registry.does.not.answer")
        said = sentences.unknown(ask.registry, ask.name)
        return known or Refusal(Kind.MISSING, said, "there.is.no.such.package")

    # ── pages ─────────────────────────────────────────────────────────────────────────────────

    def _simple(
        self, name: str, known: Known | Refusal, policy: PackagePolicy, headers: Mapping[str, str]
    ) -> BrokerAnswer:
        is_pip = headers.get("user-agent", "").startswith("pip/")
        if isinstance(known, Refusal):
            if not is_pip:
                return _said(known.on_a_page, known.sentence)
            is_known = known.kind is not Kind.MISSING
            listed = offers.stand_ins(name, known.words, of_all_ranges=is_known)
            fields: Headers = (_NOT_KEPT,)
        else:
            refused = self._refused(known.page, policy)
            listed = offers.offered(known.page, refused)
            if is_pip:
                listed += offers.hint(known.page, refused)
            fields = (_ASK_AGAIN, *_staleness(known))
        media_type, write = offers.negotiated(headers.get("accept", ""))
        content = write(name, listed)
        return BrokerAnswer(200, "OK", (("Content-Type", media_type), *fields), content)

    def _refused(self, page: Page, policy: PackagePolicy) -> dict[str, str]:
        """Return why a file is refused, by name, of those that are."""
        judge, now = Judge(policy, page.registry, page.name), self._clock()
        found = ((file, judge.refusal(each.release, now)) for file, each in page.files.items())
        return {file: why for file, why in found if why is not None}

    def _packument(
        self, name: str, known: Known | Refusal, policy: PackagePolicy, headers: Mapping[str, str]
    ) -> BrokerAnswer:
        if isinstance(known, Refusal):
            return _npm_refusal(known)
        by_file = self._refused(known.page, policy)
        refused = {known.page.files[file].release.version: why for file, why in by_file.items()}
        if len(refused) == len(known.page.files):
            said = sentences.of_versions(name, npm_page.newest_first(refused))
            return _npm_refusal(Refusal(Kind.REFUSED, said))
        host = headers.get("host", "")
        if not _HOST.fullmatch(host):
            return _said(400, "the request names no host")
        content = npm_page.written(known.page, refused, f"http://{host}")
        fields = (("Content-Type", "application/json"), _ASK_AGAIN, *_staleness(known))
        return BrokerAnswer(200, "OK", fields, content)

    # ── files ─────────────────────────────────────────────────────────────────────────────────

    async def _file(
        self, ask: PackageFile, known: Known | Refusal, policy: PackagePolicy, *, is_head: bool
    ) -> BrokerAnswer:
        if isinstance(known, Refusal):
            return _file_refusal(ask, known)
        listed = known.page.files.get(ask.file_name)
        if listed is None or (listed.strong and ask.digest not in {None, listed.strong.hex}):
            return _file_refusal(ask, self._not_listed(known.page, policy))
        why = Judge(policy, ask.registry, ask.name).refusal(listed.release, self._clock())
        if why is not None:
            said = sentences.refused(ask.name, listed.release.version, why)
            return _file_refusal(ask, Refusal(Kind.REFUSED, said))
        wanted = _wanted(known, listed, policy, is_metadata=ask.is_metadata)
        size = None if ask.is_metadata else listed.release.size
        try:
            body: Body | None = self._cached(wanted)
            if body is None:
                body = HeadOnly(size) if is_head else await self._following(wanted)
        except Broken as error:
            said = sentences.broken(ask.file_name, str(error))
            return _file_refusal(ask, Refusal(Kind.TROUBLE, said))
        kept = _KEPT if listed.strong else _ASK_AGAIN
        headers = (("Content-Type", "application/octet-stream"), kept)
        return BrokerAnswer(200, "OK", headers, body)

    def _not_listed(self, page: Page, policy: PackagePolicy) -> Refusal:
        """Say what a stand-in stands for, if there is one."""
        refused = offers.by_version(page, self._refused(page, policy))
        said = sentences.of_versions(page.name, refused) if refused else ""
        return Refusal(Kind.MISSING, said or sentences.not_listed(page.name))

    def _cached(self, wanted: Wanted) -> CachedFile | None:
        try:
            digest = wanted.strong or self._pins.get(wanted.pin)
            cached = self._cache.open(digest) if digest else None
        except OSError:
            raise Broken("the cache of packages cannot be read") from None
        if cached is not None and cached.length > wanted.most_bytes:
            cached.close()
            raise Broken("its file is larger than is allowed")
        return cached

    async def _following(self, wanted: Wanted) -> Following:
        following = self._downloads.follow(wanted)
        try:
            await following.begin()
        except BaseException:
            following.close()
            raise
        return following

    async def aclose(self) -> None:
        """Break off downloads and close connections to registries."""
        await self._downloads.aclose()
        await self._pages.aclose()
        await self._fetcher.aclose()


def _wanted(known: Known, listed: Listed, policy: PackagePolicy, *, is_metadata: bool) -> Wanted:
    url, upstream = listed.url, known.upstream
    if is_metadata:
        path, question, query = url.partition("?")
        return Wanted(
            url=f"{path}.metadata{question}{query}",
            upstream=upstream,
            most_bytes=_METADATA_BYTES,
            strong=listed.metadata,
            pin=Pins.key(upstream.url, f"{listed.file_name}.metadata"),
        )
    pin = Pins.key(upstream.url, listed.file_name)
    return Wanted(url, upstream, policy.largest_file_bytes, listed.strong, listed.weak, pin)


def _staleness(known: Known) -> Headers:
    return (("Cellwall-Stale", f"{known.stale_s:.0f}"),) if known.stale_s else ()


def _said(status: int, sentence: str, *headers: tuple[str, str]) -> BrokerAnswer:
    """Return a sentence where each client looks for it: as reason phrase and as JSON."""
    reason = sentences.cleaned(sentence)
    content = json.dumps({"error": reason}).encode()
    fields = (("Content-Type", "application/json"), _NOT_KEPT, *headers)
    return BrokerAnswer(status, reason, fields, content)


def _npm_refusal(refusal: Refusal) -> BrokerAnswer:
    return _said(refusal.on_npm, refusal.sentence)


def _file_refusal(ask: PackageFile, refusal: Refusal) -> BrokerAnswer:
    is_npm = ask.registry == "npm"
    return _said(refusal.on_npm if is_npm else refusal.on_a_file, refusal.sentence)

"""What a page of ours lists, given what is refused: for pip and uv, which read nothing else.

Pure. Why each of it is as it is says `broker`. The invariant: a refused file is never listed so
that a range would choose it while another one is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from packaging.version import Version

from cellwall.egress.packages.listings import python_page, semver, sentences
from cellwall.egress.packages.listings.listing import Page
from cellwall.egress.packages.listings.python_page import Offer

_STAND_IN_RELEASES = (*map(str, range(10)), "9999")


def offered(page: Page, refused: Mapping[str, str]) -> list[Offer]:
    """Return what our page lists; refused files are listed so that a client asks and hears why."""
    is_nothing_left = len(refused) == len(page.files)
    offers = []
    for name, listed in page.files.items():
        why, is_wheel = refused.get(name), not listed.release.is_source
        if why is None:
            offer = Offer(
                name, listed.release.version, listed.strong, listed, listed.yanked,
                listed.has_metadata, listed.metadata, is_refused=False,
            )  # fmt: skip
        else:
            said = sentences.refused(page.name, listed.release.version, why)
            yanked = listed.yanked if is_nothing_left else said
            offer = Offer(
                name, listed.release.version, listed.strong, listed, yanked, has_metadata=is_wheel
            )
        offers.append(offer)
    return offers


def stand_ins(name: str, words: str, *, of_all_ranges: bool) -> list[Offer]:
    """Return wheels that are none: pip asks for one and hears why, or prints their versions.

    `of_all_ranges`: most ranges find one among them. Where none fits, pip tries older versions of
    what wants the package, until one does without it, which may be years old.
    """
    releases = _STAND_IN_RELEASES if of_all_ranges else _STAND_IN_RELEASES[:1]
    return [_stand_in(name, f"{release}+{words}") for release in releases]


def _stand_in(name: str, version: str, yanked: str | None = None) -> Offer:
    file_name = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return Offer(file_name, version, yanked=yanked, has_metadata=True)


def hint(page: Page, refused: Mapping[str, str]) -> list[Offer]:
    """Return what tells pip of refused versions where a range wants one of them.

    It is withdrawn, so that pip passes it over; and left out where only early versions are allowed,
    which pip takes only if there is no other one.
    """
    allowed = {each.release.version for name, each in page.files.items() if name not in refused}
    gone = {each: why for each, why in by_version(page, refused).items() if each not in allowed}
    if not gone or all(Version(each).is_prerelease for each in allowed):
        return []
    newest = re.sub("[^a-z0-9]+", ".", next(iter(gone)).lower())
    more = f".and.{len(gone) - 1}.more.are" if len(gone) > 1 else ".is"
    said = sentences.of_versions(page.name, gone)
    return [_stand_in(page.name, f"0+{newest}{more}.refused.here", said)]


def by_version(page: Page, refused: Mapping[str, str]) -> dict[str, str]:
    """Return why by version, the newest first."""
    found = {page.files[name].release.version: why for name, why in refused.items()}
    order = semver.order if page.registry == "npm" else Version
    return {each: found[each] for each in sorted(found, key=order, reverse=True)}


def negotiated(accept: str) -> tuple[str, Callable[[str, Iterable[Offer]], bytes]]:
    """Return the page's type that a client likes best of those we write, and what writes it."""
    liked = {}
    for part in accept.split(",")[:20]:
        media_type, _, parameters = part.partition(";")
        quality = parameters.strip().lower().removeprefix("q=") if parameters else "1"
        liked[media_type.strip().lower()] = _number(quality)
    json_quality = liked.get(python_page.JSON, 0.0)
    html_quality = max(liked.get(each, 0.0) for each in (python_page.HTML, "text/html", "*/*"))
    if json_quality and json_quality >= html_quality:
        return python_page.JSON, python_page.as_json
    media_type = python_page.HTML if python_page.HTML in liked else "text/html; charset=utf-8"
    return media_type, python_page.as_html


def _number(text: str) -> float:
    return float(text) if re.fullmatch(r"[01](?:\.\d{1,3})?", text, re.ASCII) else 1.0

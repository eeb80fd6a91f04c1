"""A simple index page: read from a registry as JSON or HTML, written for pip and uv as either.

PEP 503, 592, 629, 658, 691, 700 and 714. Not who may have what (`rules`), nor where pages are kept
(`pages`). The invariant: a file that belongs to another name, that is no wheel and no source
distribution, or that has a URL of another scheme than http is left out when a page is read.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urldefrag

from cellwall.egress.packages.listings import sentences
from cellwall.egress.packages.listings.listing import (
    MOST_FILES,
    Digest,
    Listed,
    Malformed,
    Page,
    Release,
    digests,
    file_url,
    moment_of,
    seconds_of,
)
from cellwall.egress.packages.listings.paths import name_and_version, python_target

JSON = "application/vnd.pypi.simple.v1+json"
HTML = "application/vnd.pypi.simple.v1+html"
ACCEPT = f"{JSON}, {HTML};q=0.2, text/html;q=0.1"

# Each repetition ends at a character that begins none, so that the time of a search is linear
# whatever a page says: a quote or an angle bracket that is not closed ends the attempt at once.
_ANCHOR = re.compile(r"<a\s((?:[^<>\"']|\"[^\"<]*\"|'[^'<]*')*)>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"([a-zA-Z-]+)(?:\s*=\s*(?:\"([^\"<]*)\"|'([^'<]*)'|([^\s\"'<>]+)))?")
_encode = json.JSONEncoder(separators=(",", ":")).encode
_PRINTABLE = re.compile(r"[\x20-\x7e]{1,200}")


def read(content: bytes, media_type: str, url: str, name: str) -> Page:
    """Return the page of the package `name` that came from `url`; `Malformed` if it is none."""
    kind = media_type.partition(";")[0].strip().lower()
    if kind in {JSON, "application/json"}:
        found = _json_entries(content)
    elif kind in {HTML, "text/html"}:
        found = _html_entries(content)
    else:
        raise Malformed("its type is neither JSON nor HTML")
    files: dict[str, Listed] = {}
    for entry in found:
        listed = _listed(entry, url, name)
        if listed is not None:
            files.setdefault(listed.file_name, listed)
    return Page("pypi", name, files)


def _json_entries(content: bytes) -> Iterable[Mapping[str, Any]]:
    try:
        page = json.loads(content)
        version, files = page["meta"]["api-version"], page["files"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise Malformed("it is no page of the simple index") from None
    if not isinstance(version, str) or version.partition(".")[0] != "1":
        raise Malformed("its version is not 1")
    if not isinstance(files, list) or len(files) > MOST_FILES:
        raise Malformed("its files are no list, or too many")
    return (entry for entry in files if isinstance(entry, dict))


def _html_entries(content: bytes) -> Iterable[Mapping[str, Any]]:
    text = content.decode("utf-8", "replace")
    for number, anchor in enumerate(_ANCHOR.finditer(text)):
        if number >= MOST_FILES:
            raise Malformed("its files are too many")
        yield _html_entry(anchor[1])


def _html_entry(anchor: str) -> dict[str, Any]:
    """Return an anchor's attributes under the names that JSON has for them."""
    found: dict[str, str] = {}
    for name, *values in _ATTRIBUTE.findall(anchor):
        found.setdefault(name.lower(), html.unescape("".join(values)))
    url, fragment = urldefrag(found.get("href", ""))
    algorithm, _, digest = fragment.partition("=")
    metadata = found.get("data-core-metadata", found.get("data-dist-info-metadata"))
    return {
        "filename": unquote(url.rpartition("/")[2]),
        "url": url,
        "hashes": {algorithm: digest},
        "requires-python": found.get("data-requires-python"),
        "yanked": found.get("data-yanked", False),
        "core-metadata": False if metadata is None else _html_metadata(metadata),
    }


def _html_metadata(value: str) -> bool | dict[str, str]:
    algorithm, equals, digest = value.partition("=")
    return {algorithm: digest} if equals else value.lower() != "false"


def _listed(entry: Mapping[str, Any], page_url: str, name: str) -> Listed | None:
    file_name, url = entry.get("filename"), entry.get("url")
    if not isinstance(file_name, str) or not isinstance(url, str):
        return None
    parsed, whole_url = name_and_version(file_name), file_url(page_url, url)
    if parsed is None or parsed[0] != name or whole_url is None:
        return None
    size, hashes = entry.get("size"), entry.get("hashes")
    strong, weak = digests(hashes if isinstance(hashes, dict) else {})
    metadata = entry.get("core-metadata", entry.get("dist-info-metadata", False))
    requires = entry.get("requires-python")
    return Listed(
        release=Release(
            registry="pypi",
            name=name,
            version=str(parsed[1]),
            is_source=not file_name.endswith(".whl"),
            uploaded_at=seconds_of(entry.get("upload-time")),
            size=size if isinstance(size, int) and size >= 0 else None,
        ),
        file_name=file_name,
        url=whole_url,
        strong=strong,
        weak=weak,
        requires_python=requires
        if isinstance(requires, str) and _PRINTABLE.fullmatch(requires)
        else None,
        yanked=_yanked(entry.get("yanked", False)),
        has_metadata=metadata is True or isinstance(metadata, dict),
        metadata=digests(metadata)[0] if isinstance(metadata, dict) else None,
    )


def _yanked(value: object) -> str | None:
    if isinstance(value, str):
        return sentences.cleaned(value) if value.strip() else ""
    return "" if value is True else None


@dataclass(frozen=True, slots=True)
class Offer:
    """A file on a page of ours, or what stands there for one that is refused."""

    file_name: str
    version: str
    digest: Digest | None = None
    """What the client is told to check; it names the file in our target as well."""
    listed: Listed | None = None
    yanked: str | None = None
    has_metadata: bool = False
    metadata: Digest | None = None
    is_refused: bool = True
    """Whether it is anything but what the registry lists."""


def as_json(name: str, offers: Iterable[Offer]) -> bytes:
    """Return a page as JSON."""
    listed = list(offers)
    page = {
        "meta": {"api-version": "1.1"},
        "name": name,
        "versions": sorted({offer.version for offer in listed}),
    }
    files = ",".join(map(_json_text, listed))
    return f'{_encode(page)[:-1]},"files":[{files}]}}'.encode()


def _json_text(offer: Offer) -> str:
    if offer.is_refused or offer.listed is None:
        return _encode(_json_file(offer))
    # A page of thousands of files is asked for again and again, and hardly changes.
    texts = offer.listed.texts
    if "json" not in texts:
        texts["json"] = _encode(_json_file(offer))
    return texts["json"]


def _json_file(offer: Offer) -> dict[str, object]:
    release = offer.listed.release if offer.listed else None
    file: dict[str, object] = {
        "filename": offer.file_name,
        "url": _target(offer),
        "hashes": {offer.digest.algorithm: offer.digest.hex} if offer.digest else {},
        "yanked": offer.yanked or (offer.yanked is not None),
        "core-metadata": {offer.metadata.algorithm: offer.metadata.hex}
        if offer.metadata
        else offer.has_metadata,
    }
    if release and release.size is not None:
        file["size"] = release.size
    if release and release.uploaded_at is not None:
        file["upload-time"] = moment_of(release.uploaded_at)
    if offer.listed and offer.listed.requires_python:
        file["requires-python"] = offer.listed.requires_python
    return file


def as_html(name: str, offers: Iterable[Offer]) -> bytes:
    """Return a page as HTML."""
    lines = [
        "<!DOCTYPE html><html><head>",
        '<meta name="pypi:repository-version" content="1.1">',
        f"<title>{html.escape(name)}</title></head><body>",
        *map(_html_file, offers),
        "</body></html>",
    ]
    return "\n".join(lines).encode()


def _html_file(offer: Offer) -> str:
    url = _target(offer)
    if offer.digest:
        url += f"#{offer.digest.algorithm}={offer.digest.hex}"
    attributes = {"href": url}
    if offer.listed and offer.listed.requires_python:
        attributes["data-requires-python"] = offer.listed.requires_python
    if offer.yanked is not None:
        attributes["data-yanked"] = offer.yanked
    if offer.has_metadata:
        value = f"{offer.metadata.algorithm}={offer.metadata.hex}" if offer.metadata else "true"
        attributes["data-core-metadata"] = attributes["data-dist-info-metadata"] = value
    written = " ".join(f'{key}="{html.escape(value)}"' for key, value in attributes.items())
    return f"<a {written}>{html.escape(offer.file_name)}</a><br>"


def _target(offer: Offer) -> str:
    return python_target(offer.digest.hex if offer.digest else None, offer.file_name)

"""Fetch the newest wheel of one project that runs here: fetch_wheel.py INDEX PROJECT DIRECTORY.

Not an installer: it is what `bootstrap` falls back to on a machine without uv, pip and venv, for
an index the user has configured. Standard library only. A file whose SHA-256 is not the one the
index announces is never kept.
"""

from __future__ import annotations

import hashlib
import platform
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from html.parser import HTMLParser
from pathlib import Path


class _Links(HTMLParser):
    """The `href` of every link of a simple index page (PEP 503)."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect links that are not withdrawn (PEP 592)."""
        values = dict(attrs)
        if tag == "a" and values.get("href") and "data-yanked" not in values:
            self.found.append(values["href"] or "")


def _get(url: str) -> bytes:
    if not url.startswith(("https://", "http://", "file://")):
        raise ValueError(f"{url}: neither https, http nor file")
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - checked above
        content: bytes = answer.read()
        return content


def _version(name: str) -> tuple[int, ...] | None:
    """Return the version of a wheel for this machine, or None for any other file."""
    libc = "musllinux" if not platform.libc_ver()[0] else "manylinux"
    parts = name.removesuffix(".whl").split("-")
    fits = name.endswith(".whl") and libc in parts[-1] and parts[-1].endswith(platform.machine())
    if not fits or not re.fullmatch(r"\d+(\.\d+)*", parts[1]):
        return None
    return tuple(int(number) for number in parts[1].split("."))


def fetch(index: str, project: str, directory: Path) -> Path:
    """Download the newest fitting wheel into `directory` and return its path."""
    page = f"{index.rstrip('/')}/{project}/"
    links = _Links()
    # A directory that serves as an index has no server to add the page's name.
    links.feed(_get(page + ("index.html" if page.startswith("file:") else "")).decode())
    best: tuple[tuple[int, ...], str] | None = None
    for link in links.found:
        url = urllib.parse.urljoin(page, link)
        version = _version(urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2]))
        if version is not None and (best is None or version > best[0]):
            best = (version, url)
    if best is None:
        raise ValueError(f"{page}: no wheel of {project} for {platform.machine()}")
    url, _, fragment = best[1].partition("#")
    content = _get(url)
    _check(url, content, fragment)
    target = directory / urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
    target.write_bytes(content)
    return target


def _check(url: str, content: bytes, fragment: str) -> None:
    algorithm, _, expected = fragment.partition("=")
    # An index over plain http without digests could hand us anything.
    if algorithm == "sha256" and hashlib.sha256(content).hexdigest() != expected:
        raise ValueError(f"{url}: the content is not what the index announced")
    if algorithm != "sha256" and url.startswith("http:"):
        raise ValueError(f"{url}: plain http and no digest; use https")


if __name__ == "__main__":
    try:
        fetch(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    except (OSError, ValueError, urllib.error.URLError) as error:
        sys.exit(f"fetch {sys.argv[2]} from {sys.argv[1]}: {error}")

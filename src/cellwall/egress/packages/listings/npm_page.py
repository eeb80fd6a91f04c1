"""A packument: read from a registry of npm packages, written for npm.

What npm needs to choose and install a version; the rest of what a registry says stays out. Refused
versions stand under `policyRestrictions`, a key that npm knows: a range skips them, a version asked
for by its number is refused with the sentence. The invariant: every `dist.tarball` of an answer is
a target of ours.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from typing import Any

from cellwall.egress.packages.listings import semver, sentences
from cellwall.egress.packages.listings.listing import (
    MOST_FILES,
    STRONG,
    WEAK,
    Listed,
    Malformed,
    Page,
    Release,
    digests,
    file_url,
    moment_of,
    seconds_of,
)
from cellwall.egress.packages.listings.paths import is_npm, npm_target

SHORT = "application/vnd.npm.install-v1+json"
"""What npm needs to install; says nothing of the age of a version."""
ACCEPT_SHORT = f"{SHORT}, application/json;q=0.8"
ACCEPT_FULL = "application/json"

_OF_A_VERSION = (
    "name", "version", "dependencies", "optionalDependencies", "devDependencies",
    "peerDependencies", "peerDependenciesMeta", "bundleDependencies", "bundledDependencies", "bin",
    "directories", "engines", "os", "cpu", "libc", "deprecated", "hasInstallScript",
    "_hasShrinkwrap",
)  # fmt: skip
_OF_A_FILE = ("integrity", "shasum", "fileCount", "unpackedSize")


def read(content: bytes, url: str, name: str) -> Page:
    """Return the page of the package `name` that came from `url`; `Malformed` if it is none."""
    try:
        page = json.loads(content)
    except (ValueError, RecursionError):
        raise Malformed("it is no JSON") from None
    if not isinstance(page, dict) or page.get("name") != name:
        raise Malformed("it is about no package, or another")
    versions, times = page.get("versions", {}), page.get("time", {})
    if not isinstance(versions, dict) or len(versions) > MOST_FILES:
        raise Malformed("its versions are no object, or too many")
    found = dict(_versions(name, versions, times if isinstance(times, dict) else {}, url))
    tags = page.get("dist-tags", {})
    return Page(
        "npm",
        name,
        {listed.file_name: listed for listed, _ in found.values()},
        {version: manifest for version, (_, manifest) in found.items()},
        {
            str(tag): version
            for tag, version in (tags.items() if isinstance(tags, dict) else ())
            if isinstance(version, str) and version in found
        },
    )


def _versions(
    name: str, versions: Mapping[str, Any], times: Mapping[str, Any], url: str
) -> Iterator[tuple[str, tuple[Listed, Mapping[str, Any]]]]:
    for version, manifest in versions.items():
        dist = manifest.get("dist") if isinstance(manifest, dict) else None
        if not isinstance(dist, dict) or not is_npm(name, version):
            continue
        tarball = file_url(url, dist.get("tarball"))
        if tarball is None or manifest.get("version") != version:
            continue
        strong, weak = digests(_hashes(dist))
        release = Release("npm", name, version, False, seconds_of(times.get(version)), None)
        listed = Listed(release, f"{name}@{version}.tgz", tarball, strong, weak)
        kept = {key: manifest[key] for key in _OF_A_VERSION if key in manifest}
        kept["dist"] = {key: dist[key] for key in _OF_A_FILE if key in dist}
        yield version, (listed, kept)


def _hashes(dist: Mapping[str, Any]) -> dict[str, object]:
    """Return hexadecimal digests by algorithm out of `integrity` and `shasum`."""
    found: dict[str, object] = {"sha1": dist.get("shasum")}
    integrity = dist.get("integrity")
    for word in integrity.split()[:10] if isinstance(integrity, str) else ():
        algorithm, _, value = word.partition("?")[0].partition("-")
        if algorithm in STRONG or algorithm in WEAK:
            try:
                found[algorithm] = base64.b64decode(value, validate=True).hex()
            except (ValueError, binascii.Error):
                continue
    return found


def written(page: Page, refused: Mapping[str, str], base: str) -> bytes:
    """Return the packument for a client that reaches us at `base`; `refused` is why, by version."""
    allowed: dict[str, dict[str, Any]] = {}
    restricted: dict[str, dict[str, Any]] = {}
    for listed in page.files.values():
        version = listed.release.version
        target = npm_target(page.name, version)
        manifest = dict(page.manifests[version])
        manifest["dist"] = {**manifest["dist"], "tarball": base + target}
        (restricted if version in refused else allowed)[version] = manifest
    answer: dict[str, Any] = {
        "name": page.name,
        "dist-tags": _tags(page.tags, allowed),
        "versions": allowed,
    }
    times = {
        each.release.version: each.release.uploaded_at
        for each in page.files.values()
        if each.release.uploaded_at is not None and each.release.version in allowed
    }
    if restricted:
        message = sentences.of_versions(page.name, newest_first(refused))
        answer["policyRestrictions"] = {"versions": restricted, "message": message}
    if times:
        answer["time"] = {version: moment_of(at) for version, at in times.items()}
    return json.dumps(answer, separators=(",", ":")).encode()


def newest_first(reasons: Mapping[str, str]) -> dict[str, str]:
    """Return what is known by version in the order of versions, the newest first."""
    return {each: reasons[each] for each in sorted(reasons, key=semver.order, reverse=True)}


def _tags(tags: Mapping[str, str], allowed: Mapping[str, object]) -> dict[str, str]:
    """Return the tags whose version is allowed; `latest` moves to an older one if it is not."""
    found = {tag: version for tag, version in tags.items() if version in allowed}
    latest = tags.get("latest")
    if "latest" not in found and allowed:
        before = [
            each for each in allowed if latest is None or semver.order(each) <= semver.order(latest)
        ]
        fit = before or list(allowed)
        released = [each for each in fit if not semver.is_early(each)]
        found["latest"] = max(released or fit, key=semver.order)
    return found

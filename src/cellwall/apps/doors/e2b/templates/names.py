"""Names of templates: E2B's `name:tag` and ids of builds, as names of a tenant's own templates.

Each build is `NAME:build-ID`, each tag `NAME:TAG`, and both mean an image, so that what a client of
E2B built can be used by every other, and the other way round. The invariant: no tag of a client's
is taken for a build.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from cellwall.apps.doors.e2b.answers import refused
from cellwall.client.connection.transport import Ask

if TYPE_CHECKING:
    from cellwall.client.asynchronous import AsyncClient

DEFAULT_TAG = "default"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}")
_BUILD = re.compile(r"build-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_LATEST = "latest"
_NO_BUILD = str(UUID(int=0))
"""Id of the build of a template that the operator has."""

Own = Mapping[str, Any]
"""A template of a tenant's, as `GET /templates` shows it."""


class Called(NamedTuple):
    """A name of a client's, taken apart."""

    stem: str
    tag: str | None


def called(text: str, field_name: str = "name") -> Called:
    """Take a name apart. Raises the 400 for one that cannot be kept."""
    stem, colon, tag = text.partition(":")
    if not _NAME.fullmatch(stem):
        raise refused(
            field_name, "use up to 63 of a-z, 0-9, '.', '_' and '-', before a ':' and tag"
        )
    return Called(stem, checked_tag(tag, field_name) if colon else None)


def checked_tag(tag: str, field_name: str = "tags") -> str:
    """Return a tag. Raises the 400 for one that cannot be kept."""
    if not _TAG.fullmatch(tag) or _BUILD.fullmatch(tag):
        raise refused(field_name, "a tag is up to 63 letters, digits, '.', '_' and '-'")
    return tag


def of_build(stem: str, build_id: str) -> str:
    """Return the name by which a build is kept."""
    return f"{stem}:build-{build_id}"


@dataclass(frozen=True, slots=True)
class Shelf:
    """The templates that one tenant has built."""

    own: Mapping[str, Own] = field(default_factory=dict)
    """By their whole names."""

    @classmethod
    async def of(cls, client: AsyncClient) -> Shelf:
        """Return the caller's."""
        found = await client.transport.json(Ask("GET", "/templates"))
        return cls.parse(found["own"])

    @classmethod
    def parse(cls, own: Iterable[Own]) -> Shelf:
        """Take in a list as the server gives it."""
        return cls({str(each["name"]): each for each in own})

    def stems(self) -> set[str]:
        """Return the names without tags."""
        return {name.partition(":")[0] for name in self.own}

    def meant(self, text: str) -> Own | None:
        """Return the template that a client means by a name, a tag of it, or the id of a build."""
        stem, colon, tag = text.partition(":")
        if not colon:
            return self.own.get(f"{stem}:{DEFAULT_TAG}") or self.own.get(f"{stem}:{_LATEST}")
        found = self.own.get(text) or self.own.get(of_build(stem, tag))
        if found is None:
            found = next((each for _, each in self.tags(stem) if _derived(each) == tag), None)
        return found

    def of_stem(self, stem: str) -> list[Own]:
        """Return all builds and tags of a name."""
        return [each for name, each in self.own.items() if name.partition(":")[0] == stem]

    def tags(self, stem: str) -> list[tuple[str, Own]]:
        """Return the tags of a name."""
        found = [(str(each["name"]).partition(":")[2], each) for each in self.of_stem(stem)]
        return [(tag, each) for tag, each in found if not _BUILD.fullmatch(tag)]

    def builds(self, stem: str) -> dict[str, Own]:
        """Return the builds of a name by their ids."""
        found = {}
        for each in self.of_stem(stem):
            said = _BUILD.fullmatch(str(each["name"]).partition(":")[2])
            if said is not None:
                found[said[1]] = each
        return found

    def build_of(self, own: Own) -> str:
        """Return the id of the build that a tag means.

        Of several with the same image it is the one that was named at the same moment, or the
        newest. A template that another door made has an id by its image.
        """
        stem, _, tag = str(own["name"]).partition(":")
        said = _BUILD.fullmatch(tag)
        if said is not None:
            return said[1]
        same = {
            build_id: each
            for build_id, each in self.builds(stem).items()
            if each["image"] == own["image"]
        }
        for build_id, each in same.items():
            if each["built_at"] == own["built_at"]:
                return build_id
        newest = max(same, key=lambda build_id: same[build_id]["built_at"], default=None)
        return _derived(own) if newest is None else newest


def _derived(own: Own) -> str:
    digits = str(own["image"]).removeprefix("sha256:")[:32]
    return str(UUID(digits)) if re.fullmatch("[0-9a-f]{32}", digits) else _NO_BUILD

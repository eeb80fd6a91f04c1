"""The record of a kept sandbox: what the next server has to know of it, as JSON.

Values only; the session keeper holds the text and does not read it. SECURITY: it holds no
environment, no secret and no output: nothing that the next server could not find out, or must not.
The invariant: a record of another format, of another guest protocol or of another posture is
recognised before anything is done with the sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from cellwall.guest.channel.handshake import PROTOCOL
from cellwall.linux.cgroups.hierarchies import Hierarchy, Layout
from cellwall.linux.cgroups.sandbox_groups import Groups
from cellwall.model.errors import SandboxBroken
from cellwall.model.limits import Limits
from cellwall.model.template import BuiltTemplate, Template
from cellwall.runtimes.base import SandboxSpec

FORMAT = 3
_READABLE = (1, 2, FORMAT)
"""Formats that this version takes over; 1 has no commands, 2 and 1 have no base."""


class Upgraded(SandboxBroken):
    """A kept sandbox was made by a version whose sandboxes this one does not take over."""


@dataclass(frozen=True, slots=True)
class KeptGroups:
    """The cgroups of a sandbox, and what was counted before it began."""

    paths: Mapping[str, str]
    """Directory by hierarchy, as `_key` names it."""
    applied: Mapping[str, str]
    peak_before: int
    cpu_before_s: float

    @classmethod
    def of(cls, groups: Groups) -> KeptGroups:
        """Describe cgroups."""
        paths = {_key(hierarchy): path for hierarchy, path in groups.paths}
        return cls(paths, groups.applied, groups.peak_before, groups.cpu_before_s)

    def found(self, layout: Layout) -> Groups:
        """Return the cgroups; raises SandboxBroken if this process has not the same hierarchies."""
        by_key = {_key(hierarchy): hierarchy for hierarchy in layout.hierarchies}
        if by_key.keys() != self.paths.keys():
            raise SandboxBroken(
                f"kept sandbox: it is in cgroups of {sorted(self.paths)}, this server has "
                f"{sorted(by_key)}",
                remedy="give the service the same delegation as before",
            )
        pairs = tuple((by_key[key], path) for key, path in self.paths.items())
        groups = Groups(pairs, dict(self.applied), self.peak_before, self.cpu_before_s)
        groups.is_incomplete = True  # another engine's: removed, and never used again
        return groups


def _key(hierarchy: Hierarchy) -> str:
    return f"v{hierarchy.version}:{','.join(sorted(hierarchy.controllers))}"


@dataclass(frozen=True, slots=True)
class KeptIds:
    """The ids of a sandbox and of its fork-server, on the host."""

    index: int
    user: tuple[int, int]
    root: tuple[int, int] | None
    """Ids that are called root inside, if any are."""


@dataclass(frozen=True, slots=True)
class KeptSandbox:
    """One record."""

    pid: int
    posture: str
    """Digest of its posture."""
    policy: str
    """Digest of its system call filter."""
    hardness: Mapping[str, str]
    ids: KeptIds
    namespaces: Mapping[str, str]
    """Namespaces of its fork-server."""
    groups: KeptGroups
    spec: Mapping[str, Any]
    limits: Mapping[str, Any]
    """Limits that apply; those of `spec` were applied at its start."""
    lines: int
    """Number of the last descriptors that are lines to init: the channel and standby lines."""
    owner: Mapping[str, Any]
    """What the engine keeps of it."""
    base: Mapping[str, Any] | None = None
    """What is known of the base that is kept with it; None: there is none."""
    no_base: str = ""
    """Why there is none, if there was to be one."""
    format: int = FORMAT
    protocol: int = PROTOCOL

    def encoded(self) -> bytes:
        """Return the text for the keeper."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        # Not `asdict` of all: it copies each dictionary to its depth, which takes longer than JSON.
        said |= {"ids": asdict(self.ids), "groups": asdict(self.groups)}
        return json.dumps(said, separators=(",", ":")).encode()

    @classmethod
    def decoded(cls, text: bytes) -> KeptSandbox:
        """Read a record. Raises Upgraded, and SandboxBroken for what is none."""
        try:
            found = json.loads(text)
            if found["format"] not in _READABLE or found["protocol"] != PROTOCOL:
                raise Upgraded(
                    f"kept sandbox: format {found['format']} with guest protocol "
                    f"{found['protocol']}, this version has {FORMAT} and {PROTOCOL}"
                )
            ids = found["ids"]
            root = None if ids["root"] is None else _pair(ids["root"])
            found["ids"] = KeptIds(ids["index"], _pair(ids["user"]), root)
            found["groups"] = KeptGroups(**found["groups"])
            if (base := found.get("base")) is not None:
                found["base"] = {"lineage": base["lineage"], "fingerprint": {**base["fingerprint"]}}
            return cls(**found)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise Upgraded(f"kept sandbox: its record cannot be read: {error}") from error

    def with_lines(self, count: int) -> KeptSandbox:
        """Return the same with another number of lines."""
        return replace(self, lines=count)

    def made_as(self) -> SandboxSpec:
        """Return what it was started as, without its variables."""
        said = dict(self.spec)
        template = dict(said.pop("template"))
        definition = dict(template.pop("template"))
        for name in ("packages", "preload", "fonts", "languages"):
            definition[name] = tuple(definition[name])
        built = BuiltTemplate(
            Template(**definition),
            **{**template, "base_mounts": tuple(template["base_mounts"])},
        )
        limits = Limits(**said.pop("limits"))
        return SandboxSpec(
            template=built, limits=limits, **{**said, "contexts": tuple(said["contexts"])}
        )


def _pair(value: list[int]) -> tuple[int, int]:
    first, second = value
    return first, second


def spec_of(spec: SandboxSpec) -> dict[str, Any]:
    """Describe what a sandbox was started as: all but its variables and what is not kept."""
    template = spec.template
    definition = template.template
    return {
        "sandbox_id": spec.sandbox_id,
        "template": {
            "template": {
                "name": definition.name,
                "packages": list(definition.packages),
                "preload": list(definition.preload),
                "python": definition.python,
                "env": dict(definition.env),
                "fonts": list(definition.fonts),
                "languages": list(definition.languages),
            },
            "digest": template.digest,
            "path": template.path,
            "python": template.python,
            "base_python": template.base_python,
            "base_mounts": list(template.base_mounts),
            "size_bytes": template.size_bytes,
        },
        "limits": asdict(spec.limits),
        "contexts": list(spec.contexts),
        "language": spec.language,
        "start": spec.start,
        "has_network": spec.has_network,
        "profile": spec.profile,
    }

"""Facts of a sandbox as E2B's clients know it: what they said of it, and the objects they read.

What they say beyond the fields of every sandbox is kept in its metadata, under names that begin
with `e2b.`, so that it outlives the server wherever the sandbox does. The invariant: such names are
the door's; a client's own metadata is what remains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cellwall.server.core.times import rfc3339

if TYPE_CHECKING:
    from cellwall.client.sandbox import AsyncSandbox
    from cellwall.model.network import NetworkPolicy

ENVD_VERSION = "0.6.13"
"""Release of E2B's daemon whose behaviour the door has; clients choose their requests by it."""
CLIENT_ID = "cellwall"
PREFIX = "e2b."
_TEMPLATE = "e2b.template"
PUBLIC = "e2b.public"
_PAUSE_AT = "e2b.pause_at"
_PAUSE_FILES = "e2b.pause_files"
_MET = "e2b.pause_met"
_USER = "e2b.user"
_MASK = "e2b.mask"
_PORT_WORD = "${PORT}"
"""What stands for the number of the port in the `Host` that a client chooses."""
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252})?(:[0-9]{1,5})?")
_SECONDS = re.compile(r"(\+?)([0-9]{1,12}\.[0-9]{3})")
EVERYWHERE = "0.0.0.0/0"


def state_of(status: str) -> str:
    """Return E2B's word for a sandbox's status: one that is hibernated is paused to clients."""
    return "paused" if status == "hibernated" else status


@dataclass(frozen=True, slots=True)
class Facts:
    """What a client said of a sandbox."""

    template: str
    """Name by which its template, or its snapshot, was asked for."""
    metadata: Mapping[str, str]
    """The client's own."""
    is_public: bool = False
    """Whether its ports are open to requests without a token."""
    pause_at: float | None = None
    """When it is paused, in seconds since the epoch; None: it ends instead."""
    pause_after_s: float | None = None
    """The same in seconds after its creation, for one that is about to be created: a repeated
    request has to be the same."""
    pauses_files: bool = False
    """Whether that pause keeps its files alone."""
    user: str | None = None
    """User of files and commands that name none; None: the sandbox's own."""
    mask: str | None = None
    """What servers inside see as the `Host` of requests, as `host_inside` reads it; None: ours."""

    @classmethod
    def of(cls, sandbox: AsyncSandbox) -> Facts:
        """Return the facts of a sandbox, also of one that another door made."""
        kept = sandbox.metadata
        own = {key: value for key, value in kept.items() if not key.startswith(PREFIX)}
        template = kept.get(_TEMPLATE, sandbox.template)
        at = pause_at(kept, sandbox.created_at)
        is_public, user = kept.get(PUBLIC) == "1", kept.get(_USER)
        files, mask = pauses_files(kept), kept.get(_MASK)
        return cls(template, own, is_public, at, pauses_files=files, user=user, mask=mask)

    def kept(self) -> dict[str, str]:
        """Return the metadata that keeps them."""
        flags = {PUBLIC: self.is_public, _PAUSE_FILES: self.pauses_files}
        said = {name: "1" for name, is_so in flags.items() if is_so}
        at = {}
        if self.pause_at is not None:
            at = {_PAUSE_AT: f"{self.pause_at:.3f}"}
        elif self.pause_after_s is not None:
            at = {_PAUSE_AT: f"+{self.pause_after_s:.3f}"}
        texts = {_USER: self.user, _MASK: self.mask}
        said |= {name: text for name, text in texts.items() if text is not None}
        return {**self.metadata, _TEMPLATE: self.template[:512], **said, **at}


def host_inside(kept: Mapping[str, str], port: int) -> str | None:
    """Return what the server at a port is told as `Host`; None: what it is told by itself."""
    mask = kept.get(_MASK)
    return None if mask is None else mask.replace(_PORT_WORD, str(port))


def is_mask(text: str) -> bool:
    """Report whether a text may be the `Host` of requests to servers inside."""
    return _HOST.fullmatch(text.replace(_PORT_WORD, "1")) is not None


def pause_at(kept: Mapping[str, str], created_at: float) -> float | None:
    """Return when a sandbox with this metadata is to be paused; None: never."""
    found = _SECONDS.fullmatch(kept.get(_PAUSE_AT, ""))
    if found is None:
        return None
    return float(found[2]) + (created_at if found[1] else 0.0)


def is_met(kept: Mapping[str, str]) -> bool:
    """Whether a sandbox with this metadata was paused at the deadline that it still has."""
    return _MET in kept and kept[_MET] == kept.get(_PAUSE_AT)


def met(kept: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a sandbox that has been paused at its deadline."""
    return {**kept, _MET: kept[_PAUSE_AT]}


def pauses_files(kept: Mapping[str, str]) -> bool:
    """Whether the pause of a sandbox with this metadata keeps its files alone."""
    return kept.get(_PAUSE_FILES) == "1"


def cpus(sandbox: AsyncSandbox) -> int:
    """Return the number of processors that a sandbox sees."""
    return max(1, math.ceil(sandbox.limits.cpus))


def listed(sandbox: AsyncSandbox) -> dict[str, Any]:
    """Return a sandbox as an entry of a list."""
    facts, limits = Facts.of(sandbox), sandbox.limits
    at = facts.pause_at
    return {
        "templateID": facts.template,
        "alias": facts.template,
        "sandboxID": sandbox.id,
        "clientID": CLIENT_ID,
        "startedAt": sandbox.facts["created_at"],
        "endAt": sandbox.facts["expires_at"] if at is None else rfc3339(at),
        "cpuCount": cpus(sandbox),
        "memoryMB": limits.memory_mb,
        "diskSizeMB": limits.disk_mb,
        "metadata": dict(facts.metadata),
        "state": state_of(sandbox.status),
        "envdVersion": ENVD_VERSION,
    }


def detail(sandbox: AsyncSandbox) -> dict[str, Any]:
    """Return a sandbox with all that is told of a single one."""
    policy, facts = sandbox.network, Facts.of(sandbox)
    network: dict[str, Any] = {"allowPublicTraffic": facts.is_public}
    if facts.mask is not None:
        network["maskRequestHost"] = facts.mask
    if policy.mode != "open" or policy.denied:
        everything = [] if policy.mode == "open" else [EVERYWHERE]
        network["denyOut"] = everything + [str(each.network or each) for each in policy.denied]
    if policy.rules:
        network["allowOut"] = [str(rule) for rule in policy.rules]
    if policy.headers:
        network["rules"] = _rules(policy)
    shown = listed(sandbox)
    if shown["state"] == "paused":
        is_full = sandbox.facts.get("hibernated_keeps") != "files"
        shown["pauseMode"] = "full" if is_full else "filesystem"
    return {
        **shown,
        "allowInternetAccess": policy.mode != "none",
        "network": network,
        "lifecycle": {
            "autoResume": sandbox.facts.get("resume") == "auto",
            "onTimeout": "kill" if facts.pause_at is None else "pause",
        },
    }


def _rules(policy: NetworkPolicy) -> dict[str, list[dict[str, object]]]:
    """Return what a policy sets in requests, as E2B's rules by host."""
    found: dict[str, list[dict[str, object]]] = {}
    for each in policy.headers:
        found.setdefault(each.name, []).append({"transform": {"headers": dict(each.fields)}})
    return found

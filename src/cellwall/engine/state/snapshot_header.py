"""The header of a stored snapshot: what the host has to know of it, as text.

Pure; `snapshot_files` writes and reads it. The host writes it, and no byte of it comes from a
sandbox but names of things left behind. The invariant: a header is believed only if its digest is
right, and with a key only if it was written with that key.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import Conflict
from cellwall.model.limits import Limits
from cellwall.model.snapshot import Snapshot
from cellwall.runtimes.lineages import stored_lineage

if TYPE_CHECKING:
    from cellwall.engine.state.part_seal import PartSeal

FORMAT = 1
FORMAT_ASLEEP = 2
"""That of hibernated sandboxes, which engines of before refuse."""
MOST_BYTES = 1 << 20
_ANOTHER = "delete it, or restore it with the version that made it"


class Damaged(Conflict):
    """What is stored of a snapshot, or of a hibernated sandbox, is not what was written."""

    def __init__(self, called: str, what: str, *, is_asleep: bool = False) -> None:
        """`called`: its id."""
        kind = "sandbox" if is_asleep else "snapshot"
        stored = "its image" if is_asleep else "the snapshot"
        end = "close it" if is_asleep else "delete it and make another"
        super().__init__(
            f"{kind} {called[:64]!r}: {stored} is damaged: {what}",
            remedy=f"{end}, or bring its files back from a backup",
        )


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a snapshot."""

    size: int
    """Bytes that were put in."""
    stored: int
    """Bytes of the file, which are more if it is sealed."""
    digest: str
    """SHA-256 of the file."""


@dataclass(frozen=True, slots=True)
class Header:
    """Everything that is known of a stored snapshot, or image of a sandbox, besides its parts."""

    id: str
    name: str
    tenant: str
    created_at: float
    expires_at: float
    template: str
    template_digest: str
    runtime: str
    image: Mapping[str, Any]
    """Fields of its `SessionImage`."""
    parts: Mapping[str, Part]
    fingerprint: Mapping[str, str]
    """What has to be the same where it is restored."""
    spec: Mapping[str, Any]
    """What its sandbox was started as, without variables."""
    limits: Limits
    network: Mapping[str, Any]
    trust: str | None
    tools: tuple[str, ...]
    """Names of tools of the host, which ended with their process."""
    auto_pause_s: float | None
    resume: str
    left_behind: tuple[str, ...]
    is_sealed: bool
    private: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Variables of its sandbox; empty if they are sealed and there is no key."""
    hibernate_s: float | None = None
    asleep: Mapping[str, Any] | None = None
    """Fields of `Asleep`, if it is no snapshot but a hibernated sandbox, whose id it has."""
    refusal: str = ""
    """Why it cannot be restored with this key; empty: it can."""

    @property
    def format(self) -> int:
        """Format of its text."""
        return FORMAT if self.asleep is None else FORMAT_ASLEEP

    @property
    def called(self) -> str:
        """What it is of, for messages."""
        return f"{'snapshot' if self.asleep is None else 'sandbox'} {self.id!r}"

    @property
    def has_session(self) -> bool:
        """Whether there is more than files."""
        return bool(self.image["memory_bytes"])

    def damaged(self, what: str) -> Damaged:
        """Return the error that says what is not as it was written."""
        return Damaged(self.id, what, is_asleep=self.asleep is not None)

    @property
    def lineage(self) -> str:
        """Name of what its image was compared with; empty: it has files alone."""
        if not self.has_session:
            return ""
        return stored_lineage(self.parts["base"].digest, self.parts["maps"].digest)

    @property
    def taken_bytes(self) -> int:
        """Bytes of disk that are its own; the base is its fork-server's."""
        return sum(part.stored for name, part in self.parts.items() if name != "base")

    def shown(self) -> Snapshot:
        """Return the snapshot as its owner sees it once its engine has ended."""
        tools = (f"tool {name!r} of the host" for name in self.tools)
        return Snapshot(
            self.id,
            self.name,
            self.template,
            self.created_at,
            self.expires_at,
            int(self.image["memory_bytes"]),
            int(self.image["files_bytes"]),
            (*self.left_behind, *tools),
            durable=True,
        )


def encoded(header: Header, seal: PartSeal | None) -> bytes:
    """Return the text of a header."""
    facts = asdict(header)
    del facts["refusal"]
    if header.asleep is None:
        del facts["asleep"]  # engines of before know no such field
    private = json.dumps(facts.pop("private"), sort_keys=True).encode()
    facts["format"] = header.format
    if seal is None:
        facts["private"] = private.decode()
    else:
        sealed = seal.sealed(private, _line(facts))
        facts["private"] = base64.b64encode(sealed).decode()
    line = _line(facts)
    return line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"


def decoded(text: bytes, folder: str, seal: PartSeal | None) -> Header:
    """Read a header. Raises Damaged, and Conflict for another format."""
    line, _, digest = text.partition(b"\n")
    if hashlib.sha256(line).hexdigest().encode() != digest.strip():
        raise Damaged(folder, "its header is not what was written")
    try:
        facts = json.loads(line)
        form = facts.pop("format")
        if form != (FORMAT_ASLEEP if "asleep" in facts else FORMAT):
            raise Conflict(f"snapshot {folder}: it has another format", remedy=_ANOTHER)
        private = facts.pop("private")
        opened, facts["refusal"] = _opened(private, {**facts, "format": form}, seal)
        facts["private"] = opened
        facts["limits"] = Limits(**facts["limits"])
        facts["parts"] = {name: Part(**part) for name, part in facts["parts"].items()}
        for name in ("tools", "left_behind"):
            facts[name] = tuple(facts[name])
        return Header(**facts)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Damaged(folder, f"its header cannot be read: {error}") from None


def _opened(
    private: str, facts: Mapping[str, Any], seal: PartSeal | None
) -> tuple[dict[str, Any], str]:
    """Return what is private, or why it cannot be restored."""
    if seal is None:
        if facts["is_sealed"]:
            return {}, "it is encrypted, and this engine has no key"
        return json.loads(private), ""
    if not facts["is_sealed"]:
        return {}, "it was written without a key, and this engine has one"
    opened = seal.opened(base64.b64decode(private), _line(facts))
    if opened is None:
        return {}, "it was encrypted with another key, or its header was changed"
    return json.loads(opened), ""


def _line(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()

"""The form of an audit record and the hash that chains it to the one before.

The functions are pure. Records are kept by `store`, written by `writer` and checked by `check`.

A record is one line of JSON with these names in this order, every value a text or a whole number;
nothing else is the same record. Its hash is SHA-256 over the version tag, the previous record's
hash and each value, every one preceded by its length, so that no two records give the same bytes.
The invariant: `sealed` and `read` agree byte for byte, for ever; another form gets another tag.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from cellwall.server.core.times import rfc3339
from cellwall.store.records.changes import AppendAudit
from cellwall.store.records.rows import AuditRow

VERSION = "cellwall-audit-1"
START = bytes(32)
"""Stands for the previous hash of the first record."""
Decision = Literal["allowed", "refused", "noted"]
_LENGTH = struct.Struct(">Q").pack
compact = json.JSONEncoder(separators=(",", ":"), default=str).encode
"""Encodes a value as compact JSON for a record."""


class Entry(NamedTuple):
    """Content of an audit record; its place in the chain is given when it is written."""

    time: float
    """Seconds since the epoch, of the wall clock."""
    mono_ns: int
    """Nanoseconds of the monotonic clock, which cannot be set."""
    tenant: str
    """Tenant; empty for the server itself and for a request without a key."""
    actor: str
    """Id of the key; `address:…` without one; `server`, `cli`."""
    action: str
    """`noun.verb`."""
    object: str = ""
    """Object of the action: an id, a path inside, an address."""
    parameters: str = ""
    """SHA-256 in hexadecimal of the request's parameters; empty without any."""
    decision: Decision = "allowed"
    runtime: str = ""
    posture: str = ""
    """Digest of the confinement as the kernel reported it."""
    result: str = ""
    """Verdict or outcome; empty before the effect."""
    usage: str = ""
    """Resource usage, as compact JSON."""
    details: str = ""
    """Everything else, as compact JSON."""
    request: str = ""
    """Id of the request."""


_NUMBERS = frozenset({"seq", "mono_ns"})
_NAMES = Entry._fields


@dataclass(frozen=True, slots=True)
class Read:
    """A record as it was found."""

    seq: int
    prev: bytes
    hash: bytes
    """Hash computed from the record's own fields."""
    values: Mapping[str, Any]


class Malformed(ValueError):
    """Bytes that no version of this module has written."""


def sealed(entry: Entry) -> Callable[[int, bytes], AuditRow]:
    """Return a function that makes the row of `entry` from its number and the hash before it."""

    def make(seq: int, prev: bytes) -> AuditRow:
        values = _values(entry, seq)
        record = _line(values, prev)
        return AuditRow(seq, record, _hash(values, prev))

    return make


def appending(entry: Entry) -> AppendAudit:
    """Return the change that appends `entry`; a journal can replay it."""
    return AppendAudit(sealed(entry), tuple(entry))


def sealed_again(words: Sequence[Any]) -> Callable[[int, bytes], AuditRow]:
    """Return `sealed` of the entry whose words `appending` has put into a change."""
    return sealed(Entry(*words))


def read(record: bytes) -> Read:
    """Return a record's content and the hash it should have; `Malformed` if it is no record."""
    try:
        found = json.loads(record)
        prev = bytes.fromhex(found["prev"])
        values = {name: found[name] for name in ("v", "seq", *_NAMES)}
        # 1 and "1" would give the same hash.
        is_typed = all(
            type(value) is (int if name in _NUMBERS else str) for name, value in values.items()
        )
        is_ours = found["v"] == VERSION and len(prev) == 32 and is_typed
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Malformed("not an audit record") from None
    if not is_ours or _line(values, prev) != record:
        raise Malformed("not in the form in which it was written")
    return Read(values["seq"], prev, _hash(values, prev), values)


def digest_of(*parts: bytes) -> str:
    """Return SHA-256 in hexadecimal over length-prefixed parts."""
    return hashlib.sha256(
        b"".join([piece for part in parts for piece in (_LENGTH(len(part)), part)])
    ).hexdigest()


def _values(entry: Entry, seq: int) -> dict[str, Any]:
    return {"v": VERSION, "seq": seq, **entry._asdict(), "time": rfc3339(entry.time)}


def _line(values: Mapping[str, Any], prev: bytes) -> bytes:
    whole = {**values, "prev": prev.hex()}
    return compact(whole).replace("\x7f", "\\u007f").encode("ascii")


def _hash(values: Mapping[str, Any], prev: bytes) -> bytes:
    parts = [VERSION.encode(), prev]
    parts += [str(value).encode("utf-8", "surrogatepass") for value in values.values()]
    return bytes.fromhex(digest_of(*parts))

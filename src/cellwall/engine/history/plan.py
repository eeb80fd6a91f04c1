"""The steps that make a work area what it was: what to remove, to make, and to set.

Pure: manifests in, records for the guest's `tree_restore` out. All removals come first, so that
what fitted the work area once fits again; modes and times of directories come last, because making
what is in them changes those.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cellwall.engine.history.manifest import Entry, Manifest
from cellwall.guest.files import tree_records as records

_NEVER_MADE = frozenset({records.SOCKET, records.DEVICE})


@dataclass(slots=True)
class Plan:
    """What a restoration does."""

    removed: list[Entry] = field(default_factory=list)
    """Topmost entries that go, those that are made again among them."""
    made: list[Entry] = field(default_factory=list)
    """What is made, directories before what is in them."""
    dressed: list[Entry] = field(default_factory=list)
    """What stays, with another mode, time or owner."""
    folders: list[Entry] = field(default_factory=list)
    """All directories, the deepest first."""
    left_out: list[Entry] = field(default_factory=list)
    """What only a program can make."""
    retimed: int = 0
    """Number of directories of which only the time changed, which what is in them did."""
    extra: int = 0
    """Number of entries that the checkpoint does not have."""

    @property
    def is_empty(self) -> bool:
        """Whether all is as it was."""
        return not (self.removed or self.made or self.dressed or self.retimed)


def plan(current: Manifest, wanted: Manifest) -> Plan:
    """Return what leads from `current` to `wanted`."""
    made = Plan()
    current_names, wanted_names = _names(current), _names(wanted)
    stays: set[bytes] = set()
    gone = b""
    for path, each in current.entries.items():
        other = wanted.entries.get(path)
        made.extra += other is None
        if gone and path.startswith(gone):
            continue
        is_named_alike = current_names.get(path) == wanted_names.get(path)
        if other is not None and is_named_alike and _may_stay(each, other):
            stays.add(path)
            continue
        made.removed.append(each)
        gone = path + b"/" if each.kind == records.FOLDER else b""
    for path, each in wanted.entries.items():
        if path not in stays:
            (made.left_out if each.kind in _NEVER_MADE else made.made).append(each)
        elif _is_dressed(current.entries[path], each):
            is_retimed = _is_only_retimed(current.entries[path], each)
            made.retimed += is_retimed
            if not is_retimed:
                made.dressed.append(each)
    made.folders = [each for each in wanted.entries.values() if each.kind == records.FOLDER]
    made.folders.sort(key=lambda each: each.path, reverse=True)
    return made


def _may_stay(current: Entry, wanted: Entry) -> bool:
    if wanted.kind in _NEVER_MADE:
        return current.kind == wanted.kind
    return current.is_like(wanted) and current.size == wanted.size


def _is_dressed(current: Entry, wanted: Entry) -> bool:
    if wanted.kind in _NEVER_MADE:
        return False
    said = [(each.mode, each.mtime_ns, each.uid, each.gid) for each in (current, wanted)]
    return said[0] != said[1]


def _is_only_retimed(current: Entry, wanted: Entry) -> bool:
    said = [
        (each.kind == records.FOLDER, each.mode, each.uid, each.gid) for each in (current, wanted)
    ]
    return said[0] == said[1] and wanted.kind == records.FOLDER


def _names(manifest: Manifest) -> dict[bytes, frozenset[bytes]]:
    """Return all names of each file that has several."""
    found: dict[bytes, set[bytes]] = {}
    for path, each in manifest.entries.items():
        if each.first_name:
            found.setdefault(each.first_name, {each.first_name}).add(path)
    return {
        path: names for group in found.values() for names in [frozenset(group)] for path in names
    }


def record(kind: bytes, entry: Entry) -> bytes:
    """Return one step as the guest reads it."""
    fields = (entry.mode, entry.mtime_ns, entry.size, 0, 0, 0, entry.uid, entry.gid)
    target = entry.first_name or entry.target
    return records.entry(kind, entry.path, fields, (records.NO_FINGERPRINT, target))


def of_made(entry: Entry) -> bytes:
    """Return the kind of the step that makes an entry."""
    if entry.kind != records.FILE:
        return entry.kind
    return records.HARD_LINK if entry.first_name else records.CONTENT


def before_and_after(made: Plan) -> tuple[Iterator[bytes], Iterator[bytes]]:
    """Return the records that come before what is made, and those after it."""
    files = [each for each in made.dressed if each.kind != records.FOLDER]
    first = (record(records.REMOVE, each) for each in made.removed)
    last = (record(records.DRESS, each) for each in (*files, *made.folders))
    return first, last

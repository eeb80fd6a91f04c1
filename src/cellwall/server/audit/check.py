"""Check of a chain of audit records, from the store or from files; it finds where it is broken.

The module is pure: it turns rows and anchors into a report, and needs no server and no store. The
form of a record is in `chain`. The invariant: a break is reported with its place, and everything
behind it is still checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cellwall.server.audit.chain import START, Malformed, Read, read
from cellwall.server.audit.retention import Cut, cut_of
from cellwall.store.records.rows import AuditRow

_MOST_FAULTS = 1000


@dataclass(frozen=True, slots=True)
class Anchor:
    """The head of the chain as it was written down elsewhere."""

    seq: int
    hash: bytes
    time: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """A deviation from the chain as it was written."""

    seq: int
    """Number of the record with the fault; for missing records, the first missing one."""
    what: str


@dataclass(slots=True)
class Report:
    """Result of a check."""

    records: int = 0
    first_seq: int = 0
    last_seq: int = 0
    last_hash: bytes = START
    anchors: int = 0
    """Number of anchors that agree."""
    cut: Cut | None = None
    """Where the chain was cut last, as one of its own records says."""
    removed: int = 0
    """Number of records at its start that were removed by that cut."""
    faults: list[Fault] = field(default_factory=list)
    """Sorted by `seq`; at most a thousand."""

    @property
    def is_whole(self) -> bool:
        """Whether there are no faults."""
        return not self.faults

    def add(self, seq: int, what: str) -> None:
        """Note a fault."""
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append(Fault(seq, what))


class Checker:
    """A check under way; a chain may be longer than memory."""

    def __init__(self, anchors: Iterable[Anchor] = (), *, whole: bool = False) -> None:
        """Compare the rows with `anchors`.

        `whole`: the rows are all that is kept, so they begin with record 1 or where the chain was
        cut.
        """
        self._report = Report()
        self._is_all = whole
        self._first_prev: bytes | None = None
        self._wanted: dict[int, list[Anchor]] = {}
        for anchor in anchors:
            if anchor.seq < 1:
                self._report.add(0, "an anchor cannot be read")
            self._wanted.setdefault(anchor.seq, []).append(anchor)

    def take(self, row: AuditRow) -> None:
        """Check the next row, in stored order."""
        report = self._report
        found = _check_row(row, report)
        if found is not None:
            report.cut = cut_of(found.values) or report.cut
            if report.records == 1 and row.seq > 1:
                self._first_prev = found.prev
                self._compare(row.seq - 1, found.prev)
        self._compare(row.seq, row.hash)

    def _compare(self, seq: int, digest: bytes) -> None:
        for anchor in self._wanted.pop(seq, ()):
            if anchor.hash == digest:
                self._report.anchors += 1
            else:
                self._report.add(seq, f"it is not the record that was anchored at {anchor.time}")

    def finish(self) -> Report:
        """Return the report; call it after the last row."""
        if self._is_all and self._report.first_seq > 1:
            self._check_start()
        _check_end(self._report, self._wanted)
        self._report.faults.sort(key=lambda fault: fault.seq)
        return self._report

    def _check_start(self) -> None:
        """Check that missing records went by a cut, and that the rest follows that cut."""
        report, cut, gone = self._report, self._report.cut, self._report.first_seq - 1
        if cut is None or cut.seq < gone:
            known = 0 if cut is None else cut.seq
            report.add(known + 1, f"missing at the start: {known + 1} to {gone} were not trimmed")
            return
        report.removed = gone
        if cut.seq == gone and self._first_prev not in {None, cut.hash}:
            report.add(gone + 1, "it does not follow the record at which the chain was cut")


def check(rows: Iterable[AuditRow], anchors: Iterable[Anchor] = ()) -> Report:
    """Check `rows` in stored order, and compare them with `anchors`."""
    checker = Checker(anchors)
    for row in rows:
        checker.take(row)
    return checker.finish()


def _check_row(row: AuditRow, report: Report) -> Read | None:
    expected = report.last_seq + 1 if report.records else row.seq
    if row.seq > expected:
        report.add(expected, f"{row.seq - expected} missing before record {row.seq}")
    elif row.seq < expected:
        report.add(row.seq, f"out of order: it comes after record {report.last_seq}")
    found: Read | None = None
    try:
        found = read(row.record)
    except Malformed as error:
        report.add(row.seq, f"edited: {error}")
    else:
        if found.seq != row.seq:
            report.add(row.seq, f"edited: it was record {found.seq}")
        elif found.hash != row.hash:
            report.add(row.seq, "edited: its hash is another")
        if _is_unlinked(row, found.prev, report):
            report.add(row.seq, "it does not follow the record before it, which was replaced")
    report.first_seq = report.first_seq or row.seq
    report.records += 1
    report.last_seq, report.last_hash = row.seq, row.hash
    return found


def _is_unlinked(row: AuditRow, prev: bytes, report: Report) -> bool:
    if row.seq == 1:
        return prev != START
    # After a hole there is no record to compare with; the hole is reported already.
    return report.records > 0 and row.seq == report.last_seq + 1 and prev != report.last_hash


def _check_end(report: Report, left: dict[int, list[Anchor]]) -> None:
    """Report anchors beyond the last record: the chain was cut off at its end.

    Other anchors without a record lie before the checked rows.
    """
    behind = [seq for seq in left if seq > report.last_seq]
    if behind:
        when = left[max(behind)][0].time
        report.add(
            report.last_seq + 1,
            f"missing at the end: record {max(behind)} was anchored at {when}",
        )


def anchors_in(lines: Iterable[str]) -> Iterator[Anchor]:
    """Yield the anchors of an anchor file or a system log; text before an anchor is skipped."""
    for line in lines:
        start = line.find('{"cellwall_audit_head":')
        if start < 0:
            continue
        try:
            found = json.loads(line[start:])
            head = found["cellwall_audit_head"]
            yield Anchor(int(head), bytes.fromhex(found["hash"]), str(found["time"]))
        except (ValueError, KeyError, TypeError):
            yield Anchor(0, b"", "an unreadable line")


def anchor_line(seq: int, digest: bytes, time: str, server: str) -> str:
    """Return the line that `anchors_in` reads."""
    value = {"cellwall_audit_head": seq, "hash": digest.hex(), "time": time, "server": server}
    return json.dumps(value, separators=(",", ":"))


def exported(row: AuditRow) -> str:
    """Return a record as a line of an export: the record itself and its hash."""
    return f'{{"hash":"{row.hash.hex()}","record":{row.record.decode("ascii")}}}'


def imported(line: str, number: int) -> AuditRow:
    """Return the row of an exported line; an unreadable line becomes a row that fails the check."""
    head, middle, rest = line[:9], line[9:73], line[73:]
    if head != '{"hash":"' or not rest.startswith('","record":') or not rest.endswith("}"):
        return AuditRow(number, line.encode("utf-8", "replace"), b"")
    record = rest.removeprefix('","record":')[:-1].encode("utf-8", "replace")
    try:
        digest = bytes.fromhex(middle)
        return AuditRow(read(record).seq, record, digest)
    except (Malformed, ValueError):
        return AuditRow(number, record, b"")

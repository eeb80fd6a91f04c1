"""Any change of a chain of audit records is found, at its place, and the rest is still checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cellwall.server.audit.chain import START, Entry, Malformed, digest_of, read, sealed
from cellwall.server.audit.check import (
    Anchor,
    anchor_line,
    anchors_in,
    check,
    exported,
    imported,
)
from cellwall.store.records.rows import AuditRow

HOSTILE = 'x\n{"seq":9}\x7f\x1b[2J\u202e\ud800 "é'


def entry(number: int, **fields: Any) -> Entry:  # fields of Entry
    named = {"object": f"execution:{number}", **fields}
    return Entry(1000.0 + number, number, "alice", "k1", "execution.accept")._replace(**named)


def chain(length: int, **fields: Any) -> list[AuditRow]:
    rows: list[AuditRow] = []
    for seq in range(1, length + 1):
        rows.append(sealed(entry(seq, **fields))(seq, rows[-1].hash if rows else START))
    return rows


def edited(row: AuditRow, name: str, value: object) -> AuditRow:
    """Return a row as somebody would leave it who edits it, but cannot know the hash."""
    found = json.loads(row.record)
    found[name] = value
    return replace(row, record=json.dumps(found, separators=(",", ":")).encode())


def remade(rows: list[AuditRow], index: int) -> list[AuditRow]:
    """Return the chain with one record replaced and everything behind it made anew."""
    made = rows[:index]
    for row in rows[index:]:
        name = "mallory" if row.seq == index + 1 else "alice"
        make = sealed(entry(row.seq)._replace(tenant=name))
        made.append(make(row.seq, made[-1].hash if made else START))
    return made


def anchor(row: AuditRow) -> Anchor:
    return Anchor(row.seq, row.hash, "2026-11-22T00:00:00.000Z")


def test_an_untouched_chain_is_whole() -> None:
    rows = chain(20)
    report = check(rows, [anchor(rows[4]), anchor(rows[19])])
    assert report.is_whole
    assert (report.records, report.anchors) == (20, 2)
    assert (report.last_seq, report.last_hash) == (20, rows[-1].hash)
    assert check([]).is_whole


def test_hostile_text_survives_as_data() -> None:
    rows = chain(3, result=HOSTILE)
    assert check(rows).is_whole
    for row in rows:
        assert row.record.isascii()
        assert row.record.decode().isprintable()
        assert read(row.record).values["result"] == HOSTILE


@pytest.mark.parametrize("name", sorted(read(chain(1)[0].record).values))
def test_an_edit_of_any_field_is_found(name: str) -> None:
    rows = chain(10)
    old = read(rows[4].record).values[name]
    rows[4] = edited(rows[4], name, old + 1 if isinstance(old, int) else f"{old}x")
    report = check(rows)
    assert report.faults[0].seq in {5, 6}  # a changed number shows as a hole, too
    assert any("edited" in fault.what for fault in report.faults)
    assert report.records == 10


@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: record.replace(b":", b": ", 1),
        lambda record: record[:-1] + b',"more":1}',
        lambda record: record.replace(b'"5"', b"5").replace(b'"tenant":"alice"', b'"tenant":5'),
        lambda record: record[:40],
        lambda record: b"",
        lambda record: b"\xff\x00",
        lambda record: b"[" * 100_000,
        lambda record: record.replace(b"alice", b"\\u0061lice"),
    ],
)
def test_another_form_of_the_same_record_is_an_edit(
    spoil: Callable[[bytes], bytes],
) -> None:
    rows = chain(10)
    rows[4] = replace(rows[4], record=spoil(rows[4].record))
    report = check(rows)
    assert [fault.seq for fault in report.faults] == [5]
    assert report.faults[0].what.startswith("edited")


def test_a_number_is_not_the_same_as_its_text() -> None:
    row = chain(1, usage="5")[0]
    with pytest.raises(Malformed):
        read(row.record.replace(b'"usage":"5"', b'"usage":5'))


def test_a_changed_hash_is_found_here_and_behind() -> None:
    rows = chain(10)
    rows[4] = replace(rows[4], hash=bytes(32))
    assert [fault.seq for fault in check(rows).faults] == [5, 6]


def test_a_first_record_that_follows_another_is_found() -> None:
    """What was before it went, and the rest was numbered anew with good hashes."""
    before = sealed(entry(1))(1, START)
    first = sealed(entry(1))(1, before.hash)
    report = check([first, sealed(entry(2))(2, first.hash)])
    assert [fault.seq for fault in report.faults] == [1]
    assert check([before, sealed(entry(2))(2, before.hash)]).is_whole  # the control


def test_a_removed_record_is_named() -> None:
    rows = chain(10)
    report = check(rows[:4] + rows[5:])
    assert [(fault.seq, fault.what) for fault in report.faults] == [
        (5, "1 missing before record 6")
    ]
    assert report.records == 9


def test_removed_and_numbered_anew_is_found() -> None:
    rows = chain(10)
    rows = rows[:4] + [replace(row, seq=row.seq - 1) for row in rows[5:]]
    assert check(rows).faults[0].seq == 5


def test_reordered_records_are_found() -> None:
    rows = chain(10)
    rows[3], rows[6] = rows[6], rows[3]
    report = check(rows)
    assert report.faults[0].seq == 4
    assert any("out of order" in fault.what for fault in report.faults)


def test_two_breaks_are_two_reports() -> None:
    rows = chain(20)
    rows[4] = edited(rows[4], "result", "ok")
    rows[15] = edited(rows[15], "tenant", "bob")
    assert [fault.seq for fault in check(rows).faults] == [5, 16]


def test_a_replaced_record_breaks_the_link_to_the_next() -> None:
    rows = chain(10)
    rows[4] = remade(rows, 4)[4]
    faults = check(rows).faults
    assert [fault.seq for fault in faults] == [6]
    assert "replaced" in faults[0].what


def test_truncation_is_found_back_to_the_last_anchor() -> None:
    """P-29: what was cut off behind the last anchor cannot be seen, what is before it can."""
    rows = chain(20)
    anchors = [anchor(rows[9]), anchor(rows[16])]
    assert check(rows[:17], anchors).is_whole
    report = check(rows[:12], anchors)
    assert [fault.seq for fault in report.faults] == [13]
    assert "record 17 was anchored" in report.faults[0].what
    assert check(rows[:12]).is_whole  # the control: a chain alone does not show it
    assert not check([], anchors).is_whole


def test_a_chain_made_anew_disagrees_with_its_anchors() -> None:
    rows = chain(20)
    forged = remade(rows, 12)
    assert check(forged).is_whole  # the control
    report = check(forged, [anchor(rows[9]), anchor(rows[16])])
    assert [fault.seq for fault in report.faults] == [17]


def test_a_later_part_is_checked_by_itself() -> None:
    rows = chain(20)
    report = check(rows[10:], [anchor(rows[4]), anchor(rows[14])])
    assert report.is_whole
    assert (report.first_seq, report.anchors) == (11, 1)


def test_fields_cannot_be_shifted_into_each_other() -> None:
    assert digest_of(b"ab", b"c") != digest_of(b"a", b"bc")
    one = sealed(entry(1, runtime="ab", posture="c"))(1, START)
    two = sealed(entry(1, runtime="a", posture="bc"))(1, START)
    assert one.hash != two.hash


def test_export_and_import_agree() -> None:
    rows = chain(5, result=HOSTILE)
    lines = [exported(row) for row in rows]
    assert [imported(line, 0) for line in lines] == rows
    assert json.loads(lines[0])["record"]["seq"] == 1
    for line in ("", "{}", lines[0][:-5], lines[0].replace('"hash":"', '"hash":"zz', 1)):
        assert not check([imported(line, 1)]).is_whole


def test_anchors_are_read_out_of_a_system_log() -> None:
    row = chain(7)[-1]
    line = anchor_line(row.seq, row.hash, "2026-11-22T00:00:00.000Z", "node")
    log = ["Nov 22 host sshd: x\n", f"Nov 22 00:00:00 host cellwall: {line}\n"]
    assert list(anchors_in(log)) == [Anchor(7, row.hash, "2026-11-22T00:00:00.000Z")]
    spoiled = list(anchors_in([line[:40]]))
    assert not check(chain(7), spoiled).is_whole

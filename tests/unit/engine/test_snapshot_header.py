"""Headers of what is stored: of snapshots as they always were, of hibernated sandboxes apart."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace

import pytest

from cellwall.engine.state.asleep import Asleep
from cellwall.engine.state.part_seal import PartSeal
from cellwall.engine.state.snapshot_header import Damaged, Header, Part, decoded, encoded
from cellwall.model.errors import Conflict
from cellwall.model.limits import Limits
from cellwall.model.outcome import Isolation, IsolationLevel

NAME = "a" * 26
ISOLATION = Isolation("jail", IsolationLevel.NAMESPACE, "0" * 64, {"memory_mb": "hard"}, "own")
ASLEEP = Asleep(
    home="h",
    since=1000.0,
    left_s=60.0,
    used_s=5.0,
    past_s=7.0,
    contexts={"python": "python", "bash": "bash"},
    isolation=ISOLATION.as_json(),
    readings={"cpu_s": 1.5, "memory_bytes": 9, "work_bytes": 9},
)


def _header(asleep: Asleep | None = None, memory_bytes: int = 1) -> Header:
    parts = ("archive",) if not memory_bytes else ("archive", "base", "maps", "memory")
    return Header(
        id=NAME,
        name="",
        tenant="t",
        created_at=1.0,
        expires_at=2.0,
        template="python",
        template_digest="0" * 32,
        runtime="jail",
        image={"memory_bytes": memory_bytes, "files_bytes": 1},
        parts={each: Part(1, 1, "0") for each in parts},
        fingerprint={},
        spec={},
        limits=Limits(),
        network={},
        trust=None,
        tools=(),
        auto_pause_s=None,
        resume="auto",
        left_behind=(),
        is_sealed=False,
        private={"env": {"A": "secret"}},
        asleep=None if asleep is None else asleep.as_json(),
    )


def _again(text: bytes, **changes: object) -> bytes:
    """A header with other fields, and a right digest."""
    facts = json.loads(text.partition(b"\n")[0]) | changes
    line = json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()
    return line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("asleep", [None, ASLEEP])
def test_header_is_read_as_it_was_written(asleep: Asleep | None, is_sealed: bool) -> None:
    seal = PartSeal(os.urandom(32)) if is_sealed else None
    header = replace(_header(asleep), is_sealed=is_sealed)
    text = encoded(header, seal)
    assert (b"secret" in text) == (not is_sealed)
    assert decoded(text, NAME, seal) == header
    assert json.loads(text.partition(b"\n")[0])["format"] == (1 if asleep is None else 2)


def test_snapshot_of_before_has_no_new_field() -> None:
    """An engine of before reads it: it refuses fields that it does not know."""
    assert "asleep" not in json.loads(encoded(_header(), None).partition(b"\n")[0])


@pytest.mark.parametrize(("asleep", "form"), [(None, 2), (ASLEEP, 1), (ASLEEP, 3)])
def test_format_that_does_not_fit_is_refused(asleep: Asleep | None, form: int) -> None:
    text = _again(encoded(_header(asleep), None), format=form)
    with pytest.raises(Conflict, match="another format"):
        decoded(text, NAME, None)


def test_sealed_facts_of_a_sleeper_cannot_be_changed() -> None:
    seal = PartSeal(os.urandom(32))
    text = encoded(replace(_header(ASLEEP), is_sealed=True), seal)
    assert not decoded(text, NAME, seal).refusal  # the control
    later = _again(text, asleep=replace(ASLEEP, left_s=1e9).as_json())
    assert "its header was changed" in decoded(later, NAME, seal).refusal


def test_sleeper_is_what_it_was() -> None:
    read = decoded(encoded(_header(ASLEEP), None), NAME, None)
    again = Asleep.parse(read.asleep or {})
    assert again == ASLEEP
    assert again.isolated() == ISOLATION
    assert again.stand == (1000.0, 60.0, 5.0, 7.0)
    found = again.read()
    assert (found.cpu_s, found.memory_bytes, found.work_bytes) == (1.5, 0, 0)


def test_one_with_files_alone_has_no_lineage() -> None:
    header = _header(ASLEEP, memory_bytes=0)
    assert (header.has_session, header.lineage) == (False, "")
    assert _header(ASLEEP).lineage.startswith("stored-")


def test_damage_is_told_of_what_it_is_of() -> None:
    for header, word in ((_header(), "snapshot"), (_header(ASLEEP), "sandbox")):
        error = header.damaged("its memory is missing")
        assert isinstance(error, Damaged)
        assert error.message.startswith(f"{word} {NAME!r}: ")

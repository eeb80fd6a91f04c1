"""Words of the sources: pronouns without a noun are counted, and may only become fewer."""

from __future__ import annotations

import re

from kit.places import ROOT

SOURCE = ROOT / "src" / "cellwall"
PRONOUNS = re.compile(r"\b(nobody|somebody|whoever|anybody)\b", re.IGNORECASE)
MOST = 26
"""A process, a caller, an engine: each has a name. Lower it when there are fewer."""


def test_whom_a_sentence_is_about_is_said() -> None:
    found = {
        str(path.relative_to(SOURCE)): len(PRONOUNS.findall(path.read_text(encoding="utf-8")))
        for path in SOURCE.rglob("*.py")
    }
    assert len(found) > 500, "the sources were read"
    total = sum(found.values())
    worst = sorted(((n, name) for name, n in found.items() if n), reverse=True)[:20]
    assert total <= MOST, f"{total} of them: {worst}"


def test_the_count_itself() -> None:
    assert len(PRONOUNS.findall("Whoever asks; nobody, nobodys, Somebody's")) == 3

"""What of an upstream suite fails, against what is known to fail and why."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LEFT = Path(__file__).with_name("left.toml")


@dataclass(frozen=True)
class Left:
    """Tests that fail, and why."""

    suite: str
    tests: tuple[str, ...]
    """Patterns of their names, as in a shell."""
    reason: str

    def has(self, name: str) -> bool:
        """Return whether a test is one of these."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.tests)


@dataclass(frozen=True)
class Compared:
    """Outcome of one suite."""

    is_good: bool
    text: str


def known(text: str) -> list[Left]:
    """Read a table of `[[left]]`."""
    return [
        Left(each["suite"], tuple(each["tests"]), each["reason"])
        for each in tomllib.loads(text)["left"]
    ]


def compared(
    suite: str, outcomes: Mapping[str, bool], *, is_part: bool = False, table: str | None = None
) -> Compared:
    """Compare what passed with the table; with `is_part` some of the suite was not run."""
    text = LEFT.read_text(encoding="utf-8") if table is None else table
    own = [each for each in known(text) if each.suite == suite]
    failed = {name for name, has_passed in outcomes.items() if not has_passed}
    lines = [f"{suite}: {len(outcomes) - len(failed)} of {len(outcomes)} passed"]
    for each in own:
        count = sum(map(each.has, failed))
        lines.append(f"  {count} left: {each.reason}")
    unknown = sorted(name for name in failed if not any(each.has(name) for each in own))
    lines += [f"  FAILED, and nothing says why: {name}" for name in unknown]
    idle = [
        pattern
        for each in own
        for pattern in each.tests
        if not any(fnmatch.fnmatchcase(name, pattern) for name in failed)
    ]
    if not is_part:
        lines += [f"  PASSED, and stands in left.toml: {pattern}" for pattern in idle]
    is_good = bool(outcomes) and not unknown and (is_part or not idle)
    return Compared(is_good, "\n".join(lines))

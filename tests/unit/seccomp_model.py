"""A second reading of the policy text, to hold the compiler against.

It shares no code with `cellwall.jail.seccomp`: regular expressions instead of a word parser, and
a list walked top to bottom instead of a program. Tests call it; nothing else does. Should the two
ever be made to import from each other, they would be wrong together and the tests blind.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2] / "src" / "cellwall" / "jail"
_CONDITION = re.compile(
    r"\s*low32\(arg(?P<arg>[0-5])\)"
    r"(?:\s*&\s*(?P<mask>\w+))?"
    r"\s*(?:==\s*(?P<one>\w+)|in\s*\{(?P<many>[^}]*)\})\s*"
)
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


@dataclass(frozen=True)
class Line:
    """One policy line as far as it concerns one call."""

    verdict: str
    tests: tuple[tuple[int, int, frozenset[int]], ...]

    def matches(self, args: tuple[int, ...]) -> bool:
        return all((args[arg] % 2**32) & mask in values for arg, mask, values in self.tests)


@dataclass(frozen=True)
class Model:
    """The policy for one architecture; `decide` answers with `allow`, `kill` or an errno name."""

    arch: str
    names: dict[int, str]
    lines: dict[str, tuple[Line, ...]]

    def decide(self, arch: int, nr: int, args: tuple[int, ...]) -> str:
        if arch != ARCHITECTURES[self.arch]:
            return "kill"
        if self.arch == "x86_64" and (nr // 2**30) % 2 == 1:
            return "kill"
        if nr not in self.names:
            return "ENOSYS"
        for line in self.lines[self.names[nr]]:
            if line.matches(args):
                return line.verdict
        return "EPERM"


def table(arch: str) -> dict[int, str]:
    """Return number to name, from the package's table."""
    found = {}
    for row in (_PACKAGE / "syscalls.tbl").read_text().splitlines():
        fields = re.fullmatch(r"(\w+) (\d+|-) (\d+|-)", row)
        if fields and fields[1 + list(ARCHITECTURES).index(arch) + 1] != "-":
            found[int(fields[1 + list(ARCHITECTURES).index(arch) + 1])] = fields[1]
    return found


def constants(text: str) -> dict[str, int]:
    """Return what the `define` lines say."""
    return {m[1]: int(m[2], 0) for m in re.finditer(r"(?m)^define (\w+) (\w+)", text)}


def read(text: str, arch: str) -> Model:
    """Return the model of `text` for `arch`."""
    named = constants(text)

    def number(word: str) -> int:
        return named[word.strip()] if word.strip() in named else int(word, 0)

    def condition(part: str) -> tuple[int, int, frozenset[int]]:
        match = _CONDITION.fullmatch(part)
        assert match, part
        values = [match["one"]] if match["one"] else match["many"].split(",")
        mask = number(match["mask"]) if match["mask"] else 2**32 - 1
        return int(match["arg"]), mask, frozenset(map(number, values))

    lines: dict[str, list[Line]] = {}
    stripped = re.sub(r"#.*", "", text)
    for match in re.finditer(r"(?m)^(allow|errno (\w+)) +(.+?)(?: if (.+))?$", stripped):
        tests = tuple(condition(part) for part in match[4].split(" and ")) if match[4] else ()
        for name in match[3].split():
            lines.setdefault(name, []).append(Line(_verdict(match[2]), tests))
    return Model(arch, table(arch), {name: tuple(some) for name, some in lines.items()})


def _verdict(code: str | None) -> str:
    # ENOTSUP and EOPNOTSUPP are one number on Linux; errorcode picks one spelling.
    return errno.errorcode[getattr(errno, code)] if code else "allow"


def as_verdict(action: int) -> str:
    """Return the model's word for a SECCOMP_RET value."""
    if action == 0x80000000:
        return "kill"
    if action == 0x7FFF0000:
        return "allow"
    assert action & 0xFFFF0000 == 0x00050000, hex(action)
    return errno.errorcode[action & 0xFFFF]


def machine() -> str:
    """Return this machine's architecture by the names used here."""
    return os.uname().machine


def boundary_inputs(model: Model) -> list[tuple[int, int, tuple[int, ...]]]:
    """Return (arch, number, arguments) on and beside every edge the policy has.

    For each tested argument: each value, its neighbours, the value with an unmasked bit and with
    the upper half set, crossed with a passing and a failing choice for the other arguments.
    """
    arch = ARCHITECTURES[model.arch]
    none: tuple[int, ...] = (0,) * 6
    inputs = [(other, 1, none) for other in (*ARCHITECTURES.values(), 0x40000003, 0)]
    top = max(model.names)
    odd = [top + 1, top + 2, 1023, 2**30 - 1, 2**30, 2**30 + 1, 2**31 - 1, 2**31, 2**32 - 1]
    inputs += [(arch, nr, none) for nr in [*range(top + 1), *odd]]
    for nr, name in model.names.items():
        for line in model.lines[name]:
            inputs += [(arch, nr, args) for args in _around(line)]
    return inputs


def _around(line: Line) -> list[tuple[int, ...]]:
    passing = [0] * 6
    for arg, _, values in line.tests:
        passing[arg] = min(values)
    found = [tuple(passing)]
    for arg, mask, values in line.tests:
        for value in sorted(values):
            edges = {value, value + 1, value - 1, value ^ 2**31, value ^ 1 << 16, value ^ 0xE000}
            free = ~mask & 0xFFFFFFFF
            edges |= {value | free, value | (free & -free)}
            edges |= {edge | 0xDEADBEEF << 32 for edge in set(edges) if edge >= 0}
            for edge in edges:
                args = list(passing)
                args[arg] = edge % 2**64
                found.append(tuple(args))
    return found

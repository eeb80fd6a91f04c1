"""A second reading of the policy text, to hold the compiler against.

It shares no code with `cellwall.linux.seccomp`: regular expressions instead of a word parser, and
a list walked top to bottom instead of a program. Tests call it; nothing else does. Should the two
ever be made to import from each other, they would be wrong together and the tests blind.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass

from kit.places import ROOT

_PACKAGE = ROOT / "src" / "cellwall" / "linux"
_CONDITION = re.compile(
    r"\s*(?P<half>low|high)32\(arg(?P<arg>[0-5])\)"
    r"(?:\s*&\s*(?P<mask>\w+))?"
    r"\s*(?:==\s*(?P<one>\w+)|in\s*\{(?P<many>[^}]*)\})\s*"
)
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


@dataclass(frozen=True)
class Test:
    """One condition; `shift` is 0 for the lower half of its argument, 32 for the upper."""

    __test__ = False  # its name makes pytest curious

    arg: int
    shift: int
    mask: int
    values: frozenset[int]

    def half_of(self, args: tuple[int, ...]) -> int:
        return (args[self.arg] >> self.shift) % 2**32


@dataclass(frozen=True)
class Line:
    """One policy line as far as it concerns one call."""

    verdict: str
    tests: tuple[Test, ...]

    def matches(self, args: tuple[int, ...]) -> bool:
        return all(test.half_of(args) & test.mask in test.values for test in self.tests)


@dataclass(frozen=True)
class Model:
    """The policy for one architecture; `decide` answers in the words of `as_verdict`."""

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

    def condition(part: str) -> Test:
        match = _CONDITION.fullmatch(part)
        assert match, part
        values = [match["one"]] if match["one"] else match["many"].split(",")
        mask = number(match["mask"]) if match["mask"] else 2**32 - 1
        shift = 32 if match["half"] == "high" else 0
        return Test(int(match["arg"]), shift, mask, frozenset(map(number, values)))

    lines: dict[str, list[Line]] = {}
    stripped = re.sub(r"#.*", "", text)
    for match in re.finditer(r"(?m)^(allow|ignore|errno (\w+)) +(.+?)(?: if (.+))?$", stripped):
        tests = tuple(condition(part) for part in match[4].split(" and ")) if match[4] else ()
        for name in match[3].split():
            lines.setdefault(name, []).append(Line(_verdict(match[2]) or match[1], tests))
    return Model(arch, table(arch), {name: tuple(some) for name, some in lines.items()})


def _verdict(code: str | None) -> str:
    # ENOTSUP and EOPNOTSUPP are one number on Linux; errorcode picks one spelling.
    return errno.errorcode[getattr(errno, code)] if code else ""


def as_verdict(action: int) -> str:
    """Return the model's word for a SECCOMP_RET value: allow, kill, ignore or an errno's name."""
    if action == 0x80000000:
        return "kill"
    if action == 0x7FFF0000:
        return "allow"
    if action == 0x00050000:
        return "ignore"
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
    for test in line.tests:
        passing[test.arg] |= min(test.values) << test.shift
    found = [tuple(passing)]
    for test in line.tests:
        rest = passing[test.arg] & ~(0xFFFFFFFF << test.shift)
        for value in sorted(test.values):
            edges = {value, value + 1, value - 1, value ^ 2**31, value ^ 1 << 16, value ^ 0xE000}
            free = ~test.mask & 0xFFFFFFFF
            edges |= {value | free, value | (free & -free)}
            if free:  # a mask of flags: each of them alone decides
                edges |= {value ^ 1 << bit for bit in range(32) if test.mask >> bit & 1}
            wide = {(edge % 2**32) << test.shift | rest for edge in edges}
            if not test.shift:
                wide |= {edge % 2**64 for edge in edges}
                wide |= {edge | 0xDEADBEEF << 32 for edge in edges if edge >= 0}
            for edge in wide:
                args = list(passing)
                args[test.arg] = edge
                found.append(tuple(args))
    # An earlier line may ask for zeros where this one asks for nothing.
    asked = {test.arg for test in line.tests}
    return found + [
        tuple(value if arg in asked else 2**64 - 1 for arg, value in enumerate(args))
        for args in found
    ]


def pointers(model: Model, nr: int) -> frozenset[int]:
    """Return the arguments of a call of which the policy reads the upper half, too."""
    lines = model.lines.get(model.names.get(nr, ""), ())
    return frozenset(test.arg for line in lines for test in line.tests if test.shift)

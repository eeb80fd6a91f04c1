"""The system-call filter: policy text in, classic BPF out, and the call that installs it.

The engine process compiles `seccomp.policy` once per runtime; stage C only calls `install` with
those bytes. No decision about a call lives in this file: to allow or deny one, edit the policy.

SECURITY: everything fails towards denial. A number the table does not know is ENOSYS; a known call
whose rules all miss is EPERM; a known call that no rule names is an error at compile time, so a new
table can not widen the filter silently. Only a foreign architecture or an x32 number kills: a
filter that kills on surprise breaks honest programs at random (EPERM they survive).
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING, NamedTuple, Tuple, cast

from cellwall.linux.syscalls import bpf, libc

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Protocol

    class _Loader(Protocol):
        def get_data(self, path: str) -> bytes: ...


RET_KILL_PROCESS = 0x80000000
RET_ERRNO = 0x00050000
RET_ALLOW = 0x7FFF0000

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000
WORD = 0xFFFFFFFF

_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2


class _Fprog(ctypes.Structure):  # struct sock_fprog
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(ctypes.c_char)))


class PolicyError(ValueError):
    """The policy text or the syscall table can not be turned into a program."""


class Condition(NamedTuple):
    """`low32(argN) & mask`, or the same of its upper half, is one of `values`."""

    arg: int
    mask: int
    values: tuple[int, ...]
    is_upper: bool = False


class Rule(NamedTuple):
    """One line's verdict on one call: `action` if every condition holds."""

    action: int
    conditions: tuple[Condition, ...]


_Interval = Tuple[int, Tuple[Rule, ...]]
"""The first number of a run, and the rules for the whole run."""


def load_policy(name: str = "seccomp.policy") -> str:
    """Return a policy text that ships with the package."""
    return _package_text(name)


def syscall_numbers(arch: str) -> dict[str, int]:
    """Return name to number for `x86_64` or `aarch64`, as far as the package knows them."""
    if arch not in AUDIT_ARCH:
        known = ", ".join(sorted(AUDIT_ARCH))
        raise PolicyError(f"seccomp table: no numbers for {arch!r}; known are {known}")
    column = 1 if arch == "x86_64" else 2
    rows = (line.split() for line in _package_text("syscalls.tbl").splitlines())
    wanted = (row for row in rows if row and not row[0].startswith("#"))
    return {row[0]: int(row[column]) for row in wanted if row[column] != "-"}


def parse_policy(text: str) -> dict[str, list[Rule]]:
    """Return the rules of every call the policy names, in the order they are tried."""
    rules: dict[str, list[Rule]] = {}
    constants: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        try:
            if words[0] == "define":
                _define(words, constants)
            else:
                _add_rule(words, constants, rules)
        except PolicyError as error:
            raise PolicyError(f"seccomp policy, line {number}: {error}") from None
    return rules


def compile_policy(text: str, arch: str, refusals: str = "", more: Sequence[str] = ()) -> bytes:
    """Return the packed `struct sock_filter` array that enforces `text` on `arch`.

    The rules for a call in the texts `more`, which allow more, replace those in `text`. Those in
    `refusals` replace all, and must not allow the call.
    """
    numbers = syscall_numbers(arch)
    rules = parse_policy(text)
    for each in more:
        rules.update(parse_policy(each))
    for name, instead in parse_policy(refusals).items():
        if any(rule.action == RET_ALLOW for rule in instead):
            raise PolicyError(f"seccomp refusals: {name} is allowed there; only refuse")
        rules[name] = instead
    _check_complete(rules, numbers)
    by_number = {numbers[name]: tuple(rules[name]) for name in rules if name in numbers}
    program = _assembled(arch, _intervals(by_number))
    if len(program) > bpf.LONGEST_PROGRAM:
        raise PolicyError(
            f"seccomp policy: {len(program)} instructions, the kernel takes "
            f"{bpf.LONGEST_PROGRAM}; shorten its value lists"
        )
    return bpf.pack(program)


def refusing(names: Iterable[str], arch: str) -> bytes:
    """Return a program that answers calls as a kernel without them does, and allows all others."""
    code = _Backward()
    allowed, refused = code.verdict(RET_ALLOW), code.verdict(RET_ERRNO | errno.ENOSYS)
    here, numbers = allowed, syscall_numbers(arch)
    for name in names:
        here = code.branch(bpf.JEQ, numbers[name], refused, here)
    here = code.statement(bpf.LOAD, bpf.OFFSET_NR)
    code.branch(bpf.JEQ, AUDIT_ARCH[arch], here, allowed)
    code.statement(bpf.LOAD, bpf.OFFSET_ARCH)
    return bpf.pack(code.instructions())


def evaluate(program: bytes, arch: int, nr: int, args: Sequence[int]) -> int:
    """Return the verdict the kernel would get from `program` for this call."""
    return bpf.evaluate(bpf.unpack(program), bpf.seccomp_data(arch, nr, args))


def install(program: bytes) -> None:
    """Put this thread and all it ever starts under `program`; there is no way back.

    Why prctl and not seccomp(2): it is the same operation with flags 0, and its number need not be
    known. It needs no_new_privs (or CAP_SYS_ADMIN) first, else EACCES. It does not reach threads
    that already run, so the caller must have none. PR_SET_SECCOMP(2const).
    """
    libc.do_all((prepare(program),))


def prepare(program: bytes) -> libc.Prepared:
    """Prepare `install`: the caller keeps the result, and with it the program's memory."""
    code = ctypes.create_string_buffer(program, len(program))
    # The pointer keeps `code` alive, the structure the pointer, the result the structure.
    fprog = _Fprog(len(program) // 8, ctypes.cast(code, ctypes.POINTER(ctypes.c_char)))
    mode, none = ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.c_ulong(0)
    return libc.Prepared(
        libc.LIBC.prctl,
        (ctypes.c_int(_PR_SET_SECCOMP), mode, ctypes.byref(fprog), none, none),
        "install seccomp filter (needs no_new_privs first, and CONFIG_SECCOMP_FILTER)",
    )


def _package_text(name: str) -> str:
    # Read by the loader and not by open(): the package may be in a zip.
    path = os.path.join(os.path.dirname(__file__), name)
    return cast("_Loader", __spec__.loader).get_data(path).decode()


# --- the text -------------------------------------------------------------------------------


def _define(words: list[str], constants: dict[str, int]) -> None:
    if len(words) != 3:
        raise PolicyError("write 'define NAME NUMBER'")
    name, value = words[1:]
    if name in constants:
        raise PolicyError(f"{name} is defined twice; keep one")
    constants[name] = _value(value, {})


def _value(word: str, constants: dict[str, int]) -> int:
    try:
        value = constants[word] if word in constants else int(word, 0)
    except ValueError:
        raise PolicyError(f"{word!r} is no number; 'define' it above") from None
    if not 0 <= value <= WORD:
        raise PolicyError(f"{word} does not fit 32 bits; only low halves are compared")
    return value


def _add_rule(words: list[str], constants: dict[str, int], rules: dict[str, list[Rule]]) -> None:
    action, rest = _action(words)
    conditions: tuple[Condition, ...] = ()
    if "if" in rest:
        at = rest.index("if")
        conditions = _conditions(" ".join(rest[at + 1 :]), constants)
        rest = rest[:at]
        if len(rest) != 1:
            raise PolicyError("a condition stands with exactly one call")
    if not rest:
        raise PolicyError("no call is named")
    for name in rest:
        earlier = rules.setdefault(name, [])
        if earlier and not earlier[-1].conditions:
            raise PolicyError(f"{name} is already decided above; this rule would never run")
        earlier.append(Rule(action, conditions))


def _action(words: list[str]) -> tuple[int, list[str]]:
    if words[0] == "allow":
        return RET_ALLOW, words[1:]
    if words[0] == "ignore":
        return RET_ERRNO, words[1:]
    if words[0] == "errno" and len(words) > 1:
        code = getattr(errno, words[1], None)
        if not isinstance(code, int):
            raise PolicyError(f"{words[1]!r} is no errno name")
        return RET_ERRNO | code, words[2:]
    raise PolicyError(f"unknown rule {words[0]!r}; write define, allow, errno or ignore")


def _conditions(text: str, constants: dict[str, int]) -> tuple[Condition, ...]:
    return tuple(_condition(part, constants) for part in text.split(" and "))


def _condition(text: str, constants: dict[str, int]) -> Condition:
    """Parse `low32(arg1) & MASK == VALUE` or `high32(arg1) in {A, B}`; the mask is optional."""
    operator = "==" if "==" in text else " in "
    left, found, right = text.partition(operator)
    subject, _, mask_word = left.partition("&")
    half, _, number = subject.strip().partition("32(arg")
    if not found or half not in {"low", "high"} or number[1:] != ")" or number[0] not in "012345":
        raise PolicyError(
            f"{text.strip()!r}: write 'low32(argN) == VALUE' or 'low32(argN) in {{A, B}}', or "
            "high32; whole 64-bit arguments can not be compared"
        )
    mask = _value(mask_word.strip(), constants) if mask_word else WORD
    values = _values(right.strip(), operator, constants)
    stray = [hex(value) for value in values if value & ~mask]
    if stray:
        raise PolicyError(f"{', '.join(stray)} can never equal a value under mask {mask:#x}")
    return Condition(int(number[0]), mask, values, half == "high")


def _values(text: str, operator: str, constants: dict[str, int]) -> tuple[int, ...]:
    if operator == "==":
        return (_value(text, constants),)
    if not (text.startswith("{") and text.endswith("}")):
        raise PolicyError(f"{text!r}: write a set as {{A, B}}")
    values = [_value(word.strip(), constants) for word in text[1:-1].split(",")]
    if len(set(values)) != len(values):
        raise PolicyError(f"{text!r} holds a value twice")
    return tuple(sorted(values))


# --- the program ----------------------------------------------------------------------------


def _check_complete(rules: dict[str, list[Rule]], numbers: dict[str, int]) -> None:
    known: set[str] = set()
    for arch in AUDIT_ARCH:
        known.update(syscall_numbers(arch))
    unknown = sorted(set(rules) - known)
    if unknown:
        raise PolicyError(f"seccomp policy: no such call in syscalls.tbl: {', '.join(unknown)}")
    undecided = sorted(set(numbers) - set(rules))
    if undecided:
        raise PolicyError(
            f"seccomp policy: nothing is decided about {', '.join(undecided)}; "
            "add each to an allow or errno line"
        )


def _intervals(by_number: dict[int, tuple[Rule, ...]]) -> list[_Interval]:
    """Return (first number, rules) for each run of numbers that share one decision."""
    unknown = (Rule(RET_ERRNO | errno.ENOSYS, ()),)
    found: list[_Interval] = []
    for number in range(max(by_number) + 2):
        rules = by_number.get(number, unknown)
        if not found or found[-1][1] != rules:
            found.append((number, rules))
    return found


def _assembled(arch: str, intervals: Sequence[_Interval]) -> list[bpf.Instruction]:
    """Kill calls of another architecture, then search for the number and decide."""
    code = _Backward()
    here = code.search(intervals)
    if arch == "x86_64":
        # SECURITY: x32 shares AUDIT_ARCH_X86_64; only this bit tells its numbers apart.
        here = code.branch(bpf.JSET, X32_BIT, code.verdict(RET_KILL_PROCESS), here)
    here = code.statement(bpf.LOAD, bpf.OFFSET_NR)
    code.branch(bpf.JEQ, AUDIT_ARCH[arch], here, code.verdict(RET_KILL_PROCESS))
    code.statement(bpf.LOAD, bpf.OFFSET_ARCH)
    return code.instructions()


class _Backward:
    """Writes a program from its last instruction to its first.

    Branches only lead forward, so their targets are already written, and a verdict within reach is
    not written again. Why that matters: the kernel checks, converts and translates the whole
    program again for every sandbox, which takes time in proportion to its length.

    The place of an instruction is its number counted from the program's end, beginning at 1.
    """

    def __init__(self) -> None:
        self._written: list[bpf.Instruction] = []
        self._verdicts: dict[int, int] = {}

    def instructions(self) -> list[bpf.Instruction]:
        """Return all instructions, in the kernel's order."""
        return self._written[::-1]

    def statement(self, code: int, k: int) -> int:
        """Write an instruction that continues with the one written before it; return its place."""
        self._written.append(bpf.statement(code, k))
        return len(self._written)

    def verdict(self, action: int) -> int:
        """Return the place of a return with `action` that the next branch reaches."""
        place = self._verdicts.get(action, 0)
        if not place or not self._is_near(place):
            place = self._verdicts[action] = self.statement(bpf.RETURN, action)
        return place

    def branch(self, code: int, k: int, if_true: int, if_false: int) -> int:
        """Write a branch to two places; return its own place."""
        if_true, if_false = self._near(if_true), self._near(if_false)
        next_place = len(self._written)
        jt, jf = next_place - if_true, next_place - if_false
        self._written.append(bpf.Instruction(code, jt, jf, k))
        return len(self._written)

    def search(self, intervals: Sequence[_Interval]) -> int:
        """Write a balanced binary search over the intervals, and their rules."""
        if len(intervals) == 1:
            return self._rules(intervals[0][1])
        middle = len(intervals) // 2
        right = self.search(intervals[middle:])
        left = self.search(intervals[:middle])
        return self.branch(bpf.JGE, intervals[middle][0], right, left)

    def _is_near(self, place: int) -> bool:
        # One less than a branch reaches: another jump or return may be written in between.
        return len(self._written) - place < bpf.LONGEST_BRANCH

    def _near(self, place: int) -> int:
        """Return the place, or a place within reach that leads there."""
        if self._is_near(place):
            return place
        target = self._written[place - 1]
        if target.code == bpf.RETURN:
            return self.verdict(target.k)
        return self.statement(bpf.JUMP, len(self._written) - place)

    def _rules(self, rules: Sequence[Rule]) -> int:
        """Write the decision on one call: the first rule of which every condition holds."""
        here = 0
        if rules[-1].conditions:
            here = self.verdict(RET_ERRNO | errno.EPERM)
        for rule in reversed(rules):
            miss = here
            here = self.verdict(rule.action)
            for condition in reversed(rule.conditions):
                here = self._condition(condition, here, miss)
        return here

    def _condition(self, condition: Condition, holds: int, misses: int) -> int:
        """Write one comparison with a set of values.

        SECURITY: the kernel itself looks only at the low half of every argument the policy names
        (int or unsigned int there). Comparing the upper half too lets `cmd | 1 << 32` slip past a
        deny rule; see TIOCSTI in bubblewrap and snapd (CVE-2019-7303). A pointer is the exception:
        only both halves identify a null one.
        """
        here = misses
        for value in reversed(condition.values):
            here = self.branch(bpf.JEQ, value, holds, here)
        if condition.mask != WORD:
            self.statement(bpf.AND, condition.mask)
        # Both architectures are little-endian: the low half comes first.
        offset = bpf.OFFSET_ARGS + 8 * condition.arg + 4 * condition.is_upper
        return self.statement(bpf.LOAD, offset)

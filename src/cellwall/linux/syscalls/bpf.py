"""Classic BPF as seccomp uses it: instructions, their packed form, and an interpreter.

This is not a policy and not a compiler: `linux/seccomp.py` decides what the instructions are. The
interpreter is on no hot path; tests use it to visit every instruction of a program.

A program is only ever built from the few opcodes below. The kernel's constant-action cache
(`seccomp_is_const_allow` in kernel/seccomp.c) understands exactly these; another opcode ahead of
the first argument load would make every plain "allow" run the whole filter again.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
JUMP = 0x05  # BPF_JMP | BPF_JA
JEQ = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
JGE = 0x35  # BPF_JMP | BPF_JGE | BPF_K
JSET = 0x45  # BPF_JMP | BPF_JSET | BPF_K
RETURN = 0x06  # BPF_RET | BPF_K

OFFSET_NR = 0
OFFSET_ARCH = 4
OFFSET_ARGS = 16

LONGEST_BRANCH = 255
"""Most instructions that a branch can skip: jt and jf are one byte each. A longer way needs a JUMP,
whose offset is a word."""

LONGEST_PROGRAM = 4096
"""BPF_MAXINSNS: the kernel refuses a longer program."""

_FILTER = struct.Struct("=HBBI")  # struct sock_filter
_DATA = struct.Struct("=iIQ6Q")  # struct seccomp_data
_WORD = struct.Struct("=I")


class Instruction(NamedTuple):
    """One `struct sock_filter`; branch offsets count from the next instruction."""

    code: int
    jt: int
    jf: int
    k: int


def statement(code: int, k: int) -> Instruction:
    """Return an instruction that does not branch."""
    return Instruction(code, 0, 0, k)


def pack(instructions: Iterable[Instruction]) -> bytes:
    """Return the bytes that `sock_fprog.filter` points to."""
    return b"".join(_FILTER.pack(*instruction) for instruction in instructions)


def unpack(program: bytes) -> list[Instruction]:
    """Return the instructions of a packed program."""
    return [Instruction(*fields) for fields in _FILTER.iter_unpack(program)]


def seccomp_data(arch: int, nr: int, args: Sequence[int]) -> bytes:
    """Return the `struct seccomp_data` the kernel would show the program for this call."""
    words = [value & 0xFFFFFFFFFFFFFFFF for value in args][:6]
    words += [0] * (6 - len(words))
    signed = (nr & 0xFFFFFFFF) - ((nr & 0x80000000) << 1)
    return _DATA.pack(signed, arch & 0xFFFFFFFF, 0, *words)


def evaluate(
    instructions: Sequence[Instruction], data: bytes, path: list[int] | None = None
) -> int:
    """Run a program as the kernel would and return its 32-bit verdict.

    `path` collects the index of each instruction executed, in order. Falling off the end is an
    IndexError: the kernel's checker refuses such a program, so a test must not accept it.
    """
    at, accumulator = 0, 0
    while True:
        code, jt, jf, k = instructions[at]
        if path is not None:
            path.append(at)
        at += 1
        if code == RETURN:
            return k
        if code == LOAD:
            accumulator = int(_WORD.unpack_from(data, k)[0])
        elif code == AND:
            accumulator &= k
        else:
            at += _branch(code, accumulator, jt, jf, k)


def _branch(code: int, accumulator: int, jt: int, jf: int, k: int) -> int:
    if code == JUMP:
        return k
    if code == JEQ:
        return jt if accumulator == k else jf
    if code == JGE:
        return jt if accumulator >= k else jf
    if code == JSET:
        return jt if accumulator & k else jf
    raise ValueError(f"run BPF: opcode {code:#x} is none a seccomp program here may hold")

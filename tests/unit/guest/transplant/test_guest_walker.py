"""The machine code of `transplant.walker` is what its source says, and does what it is for."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from cellwall.guest.transplant import walker
from conftest import Require
from kit.places import ROOT

_SOURCE = Path(walker.__file__).parent / "walker.x86_64.S"
_OWN_CALLS = {1, 9, 20, 45, 56, 231, 295}
"""write, mmap, writev, recvfrom, clone, exit_group, preadv: others are the lists'."""


@pytest.fixture
def tools(require: Require) -> None:
    for tool in ("as", "objcopy", "objdump"):
        require(tool, shutil.which(tool) is not None, "apt-get install binutils")
    require("x86_64", os.uname().machine == "x86_64", "run it on x86_64")


def test_walker_is_its_source(tools: None, tmp_path: Path) -> None:
    made, flat = tmp_path / "made.o", tmp_path / "flat.bin"
    subprocess.run(["as", "--64", "-o", made, _SOURCE], check=True)
    subprocess.run(["objcopy", "-O", "binary", "-j", ".text", made, flat], check=True)
    code = bytes.fromhex(walker._CODE["x86_64"])
    assert flat.read_bytes() == code
    assert len(code) <= walker.PAGE


def test_walker_makes_no_call_of_its_own_but_these(tools: None, tmp_path: Path) -> None:
    made = tmp_path / "made.o"
    subprocess.run(["as", "--64", "-o", made, _SOURCE], check=True)
    listed = subprocess.run(["objdump", "-d", made], check=True, capture_output=True, text=True)
    lines = [line.split("\t")[-1] for line in listed.stdout.splitlines() if "\t" in line]
    numbers = set()
    for before, line in itertools.pairwise(lines):
        if line.startswith("syscall"):
            number = re.match(r"mov +\$0x([0-9a-f]+),%eax", before)
            if number:  # else it is the walk's, whose number is the record's
                numbers.add(int(number[1], 16))
    assert numbers == _OWN_CALLS


def test_numbers_of_steps_are_those_of_the_source() -> None:
    """Each is compared in `own`."""
    text = _SOURCE.read_text(encoding="utf-8")
    compared = re.findall(r"cmp +\$(-\d+), %rax\n +je +(\w+)\n", text[text.index("own:") :])
    names = {name: int(number) for number, name in compared}
    assert names == {
        name: getattr(walker, name.upper())
        for name in ("resume", "receive", "compare", "send", "load", "mend", "table", "clone")
    } | {"onward": walker.GO_ON}
    assert re.findall(r"cmp +\$SCAN, %rax\n +je +(\w+)\n", text) == ["scan"]
    assert re.findall(r"\.set +SCAN, (-\d+)", text) == [str(walker.SCAN)]


def test_record_is_ten_words() -> None:
    made = walker.record("mmap", -1, 2, expected=3, stores=(4, 5))
    words = struct.unpack("<10Q", made)
    assert words == (9, 2**64 - 1, 2, 0, 0, 0, 0, 3, 4, 5)
    assert struct.unpack("<10Q", walker.record("gettid"))[7] == 2**64 - 1


def _walked(records: str) -> subprocess.CompletedProcess[bytes]:
    """Walk a list in a process of its own, which the last record must end."""
    code = f"""
import sys
sys.path.insert(0, {str(ROOT / "src")!r})
from cellwall.guest.transplant import walker as w
scratch = w.Scratch()
text = w.put(w.MAILBOX, b"walked\\n")
scratch.park(b"".join([{records}]))
"""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=20, check=False
    )


def test_list_is_walked_to_its_end(tools: None) -> None:
    done = _walked("w.record('write', 1, text, 7, expected=7), w.record('exit', 7)")
    assert (done.returncode, done.stdout) == (7, b"walked\n")


@pytest.mark.parametrize(
    "wrong",
    [
        "w.record('gettid', expected=1)",  # another result than it must have
        "w.record('write', 999, text, 7)",  # an error
        "w.record(-11)",  # a step that there is not
        "w.record('pread64', 0, text, -1, 0)",
        "w.record(w.SEND, 999) + w.record(w.LOAD, 999, 0) + w.record('close', 999)",  # no extents
    ],
)
def test_step_that_fails_ends_the_process(tools: None, wrong: str) -> None:
    done = _walked(f"{wrong}, w.record('write', 1, text, 7), w.record('exit', 0)")
    assert (done.returncode, done.stdout) == (walker.EXIT_FAILED, b"")


def test_result_is_stored_in_later_records(tools: None) -> None:
    """As `Program.map_file` has it: the descriptor of one call is an argument of the next."""
    done = _walked(
        "w.record('dup2', 1, 77, stores=(w.LIST + w.RECORD_BYTES + 8,)),"
        " w.record('write', 0, text, 7, expected=7), w.record('exit', 0)"
    )
    assert (done.returncode, done.stdout) == (0, b"walked\n")


def test_compared_pages_are_those_that_differ(tools: None) -> None:
    """Three of five pages: two beside one another are one extent; a table and pages come out."""
    done = _walked(
        "[w.put(w.BLOB + n * 4096, b'x') for n in (0, 2, 3)] and b'',"
        " w.record(w.COMPARE, w.BLOB, w.BLOB + 5 * 4096, w.ZEROS, 0, w.LONGEST),"
        " w.record(w.TABLE, 1), w.record(w.SEND, 1), w.record('exit', 0)"
    )
    table, pages = done.stdout[:32], done.stdout[32:]
    assert struct.unpack("<4Q", table) == (
        walker.BLOB,
        4096,
        walker.BLOB + 2 * 4096,
        2 * 4096,
    )
    assert pages == (b"x" + bytes(4095)) * 3


def test_extents_have_a_longest(tools: None) -> None:
    done = _walked(
        "w.record(w.COMPARE, w.BLOB, w.BLOB + 5 * 4096, -1, 0, 8192),"
        " w.record(w.TABLE, 1), w.record('exit', 0)"
    )
    assert [each[1] for each in struct.iter_unpack("<2Q", done.stdout)] == [8192, 8192, 4096]


_SIX = (
    "[w.put(w.BLOB + n * 4096, bytes([97 + n]) * 4096) for n in range(6)] and b'',"
    "[w.put(w.BLOB + (16 + n) * 4096, text * 4096) for n, text in enumerate((b'q', b'c', b'r'))]"
    " and b'', w.put(w.MAILBOX, bytes((w.NEITHER, w.OF_NO_INTEREST, w.AS_IN_BASE, w.AS_IN_BASE,"
    " w.ZERO, w.NEITHER))) and b'',"
)
"""Six pages: a to f. The base has three: for b, which is of no interest, for c, and another d."""
_KINDS = "w.BLOB, w.BLOB + 6 * 4096, w.BLOB + 16 * 4096, w.MAILBOX, w.LONGEST, w.ZEROS"


def test_pages_of_interest_are_scanned(tools: None) -> None:
    done = _walked(
        f"{_SIX} w.record(w.SCAN, {_KINDS}), w.record(w.TABLE, 1), w.record(w.SEND, 1),"
        " w.record('exit', 0)"
    )
    table, pages = done.stdout[:16], done.stdout[16:]
    assert struct.unpack("<2Q", table) == (walker.BLOB + 3 * 4096, 2 * 4096)
    assert pages == b"d" * 4096 + b"e" * 4096


def test_mended_pages_are_the_base_s(tools: None) -> None:
    done = _walked(
        f"{_SIX} w.record(w.MEND, {_KINDS}),"
        " w.record('write', 1, w.BLOB, 6 * 4096, expected=6 * 4096), w.record('exit', 0)"
    )
    assert done.stdout == b"".join(bytes([each]) * 4096 for each in b"abcr\0f")


def test_process_that_shall_return_survives_a_step_that_fails(tools: None) -> None:
    """It says why; the same list without it ends the process."""
    done = _walked(
        "w.record('exit', 3)]) if scratch.park(w.record('write', 999, text, 7), returns=True)"
        " == w.FAILED and scratch.error().errno == 9 else b''.join([w.record('exit', 4)"
    )
    assert done.returncode == 3


def test_clone_goes_on_with_the_list_and_its_maker_returns(tools: None) -> None:
    """A step of the clone that fails ends it: it must not return where its maker has."""
    wrong = "w.record(w.CLONE, 17) + w.record('write', 999, text, 7)"
    done = _walked(
        f"b'']) if (pid := scratch.park({wrong}, returns=True)) < 2 else b''.join(["
        "w.record('exit', __import__('os').waitstatus_to_exitcode(__import__('os').wait()[1]))"
    )
    assert done.returncode == walker.EXIT_FAILED


def test_scratch_is_not_mapped_over_anything() -> None:
    code = f"""
import sys
sys.path.insert(0, {str(ROOT / "src")!r})
from cellwall.guest.transplant import walker
first = walker.Scratch()
try: walker.Scratch()
except OSError as error: print(error.errno)
walker.unmap()
walker.Scratch()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=20, check=True)
    assert done.stdout == b"17\n"

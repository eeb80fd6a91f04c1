"""`start="exec"`: an interpreter of its own, for callers whom a shared warm image gives too much.

The control is the default: forks of one image share hash seed and addresses, which is what the
option is there to avoid.
"""

from __future__ import annotations

import json

import pytest

import cellwall

_TELL = """
import json
first = {}
for line in open("/proc/self/maps"):
    first.setdefault(line.split()[-1].rpartition("/")[2], line.split("-")[0])
print(json.dumps([hash("x"), *(first[n] for n in ("[heap]", "[stack]", "libc.so.6"))]))
"""


def _told(start: str) -> list[object]:
    done = cellwall.run(_TELL, start=start)
    assert done.ok, done.stderr
    told: list[object] = json.loads(done.stdout)
    return told


def test_two_forks_share_seed_and_addresses() -> None:
    assert _told("fork") == _told("fork")


def test_two_execs_share_neither_seed_nor_addresses() -> None:
    first, second = _told("exec"), _told("exec")
    assert [a for a, b in zip(first, second, strict=True) if a == b] == []


def test_an_exec_is_a_whole_sandbox() -> None:
    done = cellwall.run(
        "import sys\ndef main(n):\n    print(sys.stdin.read())\n    return n + 1",
        arguments={"n": 44},
        stdin="in",
        start="exec",
    )
    assert (done.verdict, done.stdout, done.result) == (cellwall.Verdict.OK, "in\n", 45)


def test_a_session_may_start_by_exec() -> None:
    with cellwall.Sandbox(start="exec") as sandbox:
        sandbox.run("x = 45")
        assert sandbox.run("print(x)").stdout == "45\n"


def test_an_unknown_start_is_refused_with_a_remedy() -> None:
    with pytest.raises(cellwall.UsageError, match=r"start: 'spawn'.*say 'fork'"):
        cellwall.run("1", start="spawn")

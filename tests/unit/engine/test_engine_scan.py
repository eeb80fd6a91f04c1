"""The static look: aliases and from-imports are resolved, nothing raises, lines are right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.engine.programs.scan import scan


def rules(source: str, language: str = "python") -> set[tuple[str, int]]:
    return {(each.rule, each.line) for each in scan(source, language)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os\nos.system('x')", ("process", 2)),
        ("import os as o\no.system('x')", ("process", 2)),
        ("from os import system as s\n\ns('x')", ("process", 3)),
        ("import os\nf = os.system\nf('x')", ("process", 3)),
        ("import os\nos.execv('x', [])", ("process", 2)),
        ("import subprocess", ("process", 1)),
        ("from urllib import request\nrequest.urlopen('x')", ("network", 2)),
        ("import urllib.request as r\nr.urlopen('x')", ("network", 2)),
        ("import socket as s", ("network", 1)),
        ("eval('1')", ("dynamic-code", 1)),
        ("import builtins as b\nb.exec('1')", ("dynamic-code", 2)),
        ("e = eval\ne('1')", ("dynamic-code", 2)),
        ("getattr(__import__('os'), 'x')", ("dynamic-code", 1)),
        ("import os\ngetattr(os, 'system')('x')", ("process", 2)),
        ("import pickle\npickle.loads(b'')", ("deserialise", 2)),
        ("import ctypes", ("native", 1)),
        ("!ls\nprint(1)", ("process", 1)),
        ("def f(:", ("syntax", 1)),
    ],
)
def test_python_names_are_resolved(source: str, expected: tuple[str, int]) -> None:
    assert expected in rules(source)


@pytest.mark.parametrize(
    "source",
    [
        "print(1)",
        "x = 'os.system(1)'  # os.system",
        "def f(socket): socket.send(1)",
        "class A:\n    def eval(self): return 1\nA().eval()",
        "import math\nmath.sqrt(2)",
        "requests = [1]\nrequests.append(2)",
    ],
)
def test_innocent_python_is_left_alone(source: str) -> None:
    assert rules(source) == set()


@pytest.mark.parametrize(
    ("language", "source", "expected"),
    [
        ("bash", "echo a\nrm -rf /", ("files", 2)),
        ("bash", "curl http://x | sh", ("dynamic-code", 1)),
        ("bash", ":(){ :|:& };:", ("process", 1)),
        ("javascript", "const c = require('child_process')", ("process", 1)),
        ("javascript", "\nfetch('http://x')", ("network", 2)),
    ],
)
def test_patterns_find_lines(language: str, source: str, expected: tuple[str, int]) -> None:
    assert expected in rules(source, language)


def test_there_is_an_end_to_findings_and_to_looking() -> None:
    assert len(scan("import os\n" + "os.system('x')\n" * 500, "python")) <= 100
    assert rules("x" * (2 * 2**20)) == {("too-long", 0)}
    assert scan("(" * 5000, "python")
    assert scan("-" * 50_000 + "1", "python")


@given(st.text(max_size=300), st.sampled_from(["python", "bash", "javascript", "other"]))
def test_it_never_raises(source: str, language: str) -> None:
    for finding in scan(source, language):
        assert finding.message

"""The shares of tests that one run takes: `VARIABLE=TURN/SHARES`; all tests without a variable.

`make test` takes longer than CI may, so that CI takes shares, others with each commit:

* Of what repeats a test of the jail in another place (containers, gVisor, roots of images, copies,
  further languages; marked `again`) a fifth, by the test: `CELLWALL_TEST_AGAIN`.
* Of the rest a third, by the file: `CELLWALL_TEST_REST`. The jail's corpus of attacks and its
  contract, what tenants may, and all that needs no sandbox, is in every run.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping

AGAIN = "CELLWALL_TEST_AGAIN"
REST = "CELLWALL_TEST_REST"
ALWAYS = (
    "tests/attack/corpus/",
    "tests/attack/jail/",
    "tests/attack/shared/",
    "tests/attack/walls/",
    "tests/contract/runtimes/test_jail",
    "tests/deploy/test_operations",
    "tests/meta/",
    "tests/server/tenants/",
    "tests/unit/",
)
"""Beginnings of the files that no share leaves out."""


def chosen(variable: str, environment: Mapping[str, str] = os.environ) -> Callable[[str], bool]:
    """Return what says of a name whether this run takes it. Raises ValueError."""
    said = environment.get(variable, "0/1")
    turn, _, shares = said.partition("/")
    if not (turn.isdecimal() and shares.isdecimal() and int(turn) < int(shares)):
        raise ValueError(f"{variable}: {said!r} is no turn out of shares, such as 0/3")
    return lambda name: zlib.crc32(f"{variable} {name}".encode()) % int(shares) == int(turn)


def is_taken(name: str, *, is_again: bool, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this run takes the test of that id, which begins with its file."""
    if is_again:
        return chosen(AGAIN, environment)(name)
    file = name.partition("::")[0]
    return file.startswith(ALWAYS) or chosen(REST, environment)(file)


def without_shares(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a pytest within a run: it takes all that it is asked for."""
    return {name: value for name, value in environment.items() if name not in (AGAIN, REST)}

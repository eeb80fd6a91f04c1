"""Reads the usual words of `cellwall run` without the package that parses command lines.

That package takes longer to import than a program takes to run. It stays the authority: whatever is
not plainly one of the options below with one well-formed value is left to it (`run` declares the
options), and so are help and all complaints. A test compares both readings.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_INTEGER = re.compile(r"[0-9]{1,9}")
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def _integer(word: str) -> int | None:
    return int(word) if _INTEGER.fullmatch(word) else None


def _number(word: str) -> float | None:
    return float(word) if _NUMBER.fullmatch(word) else None


_VALUES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "-c": ("code", str),
    "--language": ("language", str),
    "-l": ("language", str),
    "--template": ("template", str),
    "--image": ("image", str),
    "--user": ("user", str),
    "--profile": ("profile", str),
    "--stdin": ("stdin", str),
    "--artifacts": ("artifacts", str),
    "--into": ("into", Path),
    "--timeout": ("timeout", _number),
    "--memory": ("memory", _integer),
    "--cpu": ("cpu", _number),
    "--pids": ("pids", _integer),
    "--network": ("network", str),
    "--isolation": ("isolation", str),
    "--trust": ("trust", str),
    "--runtime": ("runtime", str),
    "--start": ("start", str),
}
_LISTS = {
    "--file": "files",
    "--env": "env",
    "--arg": "arg",
    "--limit": "limit",
    "--compile-option": "compile_option",
    "--compile-limit": "compile_limit",
    "--allow": "allow",
    "--deny": "deny",
    "--secret": "secret",
    "--package": "package",
    "--volume": "volume",
}
_FLAGS = {"--demand-hard": "demand_hard", "--json": "as_json"}


def read(words: Sequence[str]) -> dict[str, Any] | None:
    """Return the value of every option of `run`, by its name; None: these words are not usual."""
    given = {name: None for name, _ in _VALUES.values()}
    found: dict[str, Any] = {**given, **dict.fromkeys(_LISTS.values())}
    found.update(dict.fromkeys(_FLAGS.values(), False))
    found.update(start="fork", file=None, args=None)
    set_already: set[str] = set()
    left, positional = list(reversed(words)), list[str]()
    while left:
        word = left.pop()
        if word == "--":
            positional += reversed(left)
            break
        if word == "-" or not word.startswith("-"):
            positional.append(word)
        elif word in _FLAGS:
            found[_FLAGS[word]] = True
        elif not left or not _take(word, left.pop(), found, set_already):
            return None
    if positional:
        found["file"], *rest = positional
        found["args"] = rest or None
    return found


def _take(option: str, value: str, found: dict[str, Any], set_already: set[str]) -> bool:
    """Put the value of an option into `found`; report whether it is plainly one."""
    if value.startswith("-") and value != "-":
        return False
    if option in _LISTS:
        name = _LISTS[option]
        found[name] = [*(found[name] or ()), value]
        return True
    name, convert = _VALUES.get(option, ("", str))
    if not name or name in set_already:
        return False
    set_already.add(name)
    found[name] = convert(value)
    return found[name] is not None

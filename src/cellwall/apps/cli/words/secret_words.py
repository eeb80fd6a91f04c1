"""Secrets on the command line: `NAME=env:VARIABLE@HOST`, where the value itself never stands.

The words of a command line can be read by other users of the machine (ps), and end up in the
shell's history. The invariant: a value is read from the environment, and no message repeats a word
that might be one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from cellwall.model.errors import UsageError
from cellwall.model.secret import Secret

FORM = "NAME=env:VARIABLE@HOST"


def secrets_of_words(words: Sequence[str] | None) -> list[Secret]:
    """Return the secrets that `--secret` gives. Raises `UsageError`."""
    return [_secret(word) for word in words or ()]


def _secret(word: str) -> Secret:
    name, equals, rest = word.partition("=")
    if not equals or not name.isidentifier():
        raise _wrong("a secret has no name", f"write --secret {FORM}")
    kind, colon, source = rest.partition(":")
    if not colon or kind != "env":
        raise _wrong(
            f"{name}: its value is not taken from the command line, which others can read",
            f"put it into a variable and write --secret {FORM}",
        )
    variable, _, hosts = source.partition("@")
    value = os.environ.get(variable)
    if value is None:
        raise _wrong(
            f"{name}: there is no such variable in the environment", f"set it; {FORM} names it"
        )
    return Secret(name, value, hosts=[host for host in hosts.split(",") if host])


def allowed_with(allow: Sequence[str] | None, secrets: Sequence[Secret]) -> list[str] | None:
    """Return the rules of `--allow`, with the hosts of the secrets, which are named for that."""
    hosts = [f"{host.name}:{host.port}" for secret in secrets for host in secret.hosts]
    return [*(allow or ()), *dict.fromkeys(hosts)] or None


def _wrong(what: str, remedy: str) -> UsageError:
    return UsageError(f"secrets: {what}", remedy=remedy)

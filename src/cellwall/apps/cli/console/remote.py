"""What the commands that talk to a server have in common: which server, which sandbox, words.

Called by `sandbox` and `top`. Invariant: the key is taken from the option or the environment and
shown nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellwall.model.errors import NotFound, UsageError

if TYPE_CHECKING:
    from cellwall.client.blocking import Client, RemoteSandbox

_LEAST = 6
"""Characters of an id that stand for it."""

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="CELLWALL_URL",
        metavar="URL",
        help="The server: http://…, https://… or unix:/path; several gateways with commas.",
        show_envvar=True,
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar="CELLWALL_API_KEY",
        metavar="KEY",
        help="The key; others on this machine can read options, so prefer the variable.",
        show_envvar=True,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Which = Annotated[
    str, typer.Argument(metavar="SANDBOX", help="Its id, its name, or the id's beginning.")
]


@contextmanager
def connected(url: str | None, key: str | None) -> Iterator[Client]:
    """Give a client of the server that is meant."""
    from cellwall.client import connect

    with connect(url, key) as client:
        yield client


def found(client: Client, word: str) -> RemoteSandbox:
    """Return the sandbox of that id, or the live one of that name or beginning of its id."""
    try:
        return client.attach(word)
    except NotFound:
        running = client.sandboxes(state="live")
        named = [each for each in running if each.name == word or _begins(each.id, word)]
        if len(named) == 1:
            return named[0]
        if not named:
            raise
    raise UsageError(
        f"sandbox {word}: {len(named)} are called that", remedy="say the id, from `sandbox ls`"
    )


def _begins(sandbox_id: str, word: str) -> bool:
    return len(word) >= _LEAST and sandbox_id.startswith(word)


def pairs(given: list[str] | None, option: str) -> dict[str, str]:
    """Return `NAME=VALUE` options as a dictionary."""
    taken: dict[str, str] = {}
    for item in given or []:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {item!r} has no name", remedy=f"say {option} NAME=VALUE")
        taken[name] = value
    return taken


def numbers(given: list[str] | None, option: str) -> dict[str, Any]:
    """Return `NAME=NUMBER` options as a dictionary."""
    taken: dict[str, Any] = {}
    for name, value in pairs(given, option).items():
        try:
            taken[name] = json.loads(value)
        except (ValueError, RecursionError):
            raise UsageError(
                f"{option} {name}: {value[:200]!r} is not a number", remedy=f"say {option} {name}=1"
            ) from None
    return taken


def duration(seconds: float) -> str:
    """Return a length of time as a person reads it: `42s`, `5m`, `3h10m`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def mebibytes(count: int) -> str:
    """Return a number of bytes in MiB."""
    return f"{count / (1 << 20):.0f}M"

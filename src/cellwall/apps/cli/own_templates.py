"""`cellwall templates … --own`: templates that a tenant builds, lists and removes on a server.

Called by `templates`. Invariant: progress goes to stderr, and what a script reads (a name, JSON) is
on stdout alone; a build that is interrupted is cancelled on the server.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cellwall.apps.cli.console.remote import connected, mebibytes, pairs
from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from cellwall.client.connection.transport import Json


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line says of a build."""

    names: list[str]
    file: Path | None
    context: Path | None
    network: str
    arguments: list[str] | None
    target: str | None


def build(url: str | None, key: str | None, wanted: Wanted) -> None:
    """Build one template, and print its name."""
    if len(wanted.names) != 1:
        raise UsageError("templates build --own: it builds one", remedy="give one NAME")
    file = wanted.file
    if file is None:
        if wanted.context is None:
            raise UsageError(
                "templates build --own: it has no Dockerfile", remedy="give --file or --context"
            )
        file = wanted.context / "Dockerfile"
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"templates build: {file}: {error}", remedy="give --file") from None
    with connected(url, key) as client:
        made = client.templates.build(
            text,
            wanted.names[0],
            context=wanted.context,
            arguments=pairs(wanted.arguments, "--build-arg") or None,
            target=wanted.target,
            network=None if wanted.network == "none" else wanted.network,
            on_event=_tell,
        )
    typer.echo(made["name"])


def _tell(event: Json) -> None:
    if event["type"] == "output":
        sys.stderr.write(event["text"])
    elif event["type"] in {"step", "cached"}:
        word = "cached" if event["type"] == "cached" else event["text"]
        sys.stderr.write(f"line {event['line']}: {word}\n")
    sys.stderr.flush()


def list_all(url: str | None, key: str | None, *, as_json: bool) -> None:
    """List the tenant's templates."""
    with connected(url, key) as client:
        found = client.templates.list()
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    from cellwall.apps.cli.console.table import show

    rows = [
        (
            each["name"],
            each["image"][7:19],
            mebibytes(each["size_bytes"]) if each["is_here"] else "gone",
            each["built_at"],
        )
        for each in found
    ]
    show(("template", "image", "size", "built"), rows)


def remove(url: str | None, key: str | None, names: list[str]) -> None:
    """Remove templates of the tenant's, and print their names."""
    with connected(url, key) as client:
        for name in names:
            client.templates.remove(name)
            typer.echo(name)

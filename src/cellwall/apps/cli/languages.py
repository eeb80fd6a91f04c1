"""`cellwall languages`: which languages there are and whether their tools are installed.

Not the registry (`cellwall.languages`). Called by `main`. Invariant: what is listed as present is
what a sandbox would see.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellwall.languages.shown import shown

if TYPE_CHECKING:
    from cellwall.languages.registry import Installed, Language


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("languages", short_help="List the languages.")(languages)


def languages(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the languages, what is installed for them here, and how to get what is not."""
    from cellwall.languages import registry

    rows = [(language, registry.detect(language)) for language in registry.LANGUAGES.values()]
    if as_json:
        typer.echo(json.dumps([_as_json(*row) for row in rows], indent=2))
        return
    from cellwall.apps.cli.console.table import show

    show(
        ("language", "also", "extensions", "sessions", "compiled", "found", "to get it"),
        map(_cells, rows),
    )


def _as_json(language: Language, found: Installed | None) -> dict[str, Any]:
    # `path` is for the owner of this machine; doors to other users leave it out.
    return {**shown(language, found), "path": found.path if found else None}


def _cells(row: tuple[Language, Installed | None]) -> tuple[str, ...]:
    language, found = row
    return (
        language.name,
        " ".join(language.aliases),
        " ".join(language.extensions),
        "yes" if language.context else "no",
        "yes" if language.compile else "no",
        (found.version or found.path) if found else "not installed",
        "" if found else language.install,
    )

"""Template definitions: the built-in ones, and the user's from `templates.toml`.

It does not know whether they are built (`store`), nor what the built-in ones hold (`defaults`). A
user's definition replaces the built-in one of the same name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cellwall.engine.templates.defaults import DEFAULTS
from cellwall.model.errors import UsageError
from cellwall.model.template import Template


def config_dirs() -> list[Path]:
    """Return the directories searched for `templates.toml`; later ones take precedence."""
    chosen = os.environ.get("CELLWALL_CONFIG_DIR")
    if chosen:
        return [Path(chosen)]
    user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [Path("/etc/cellwall"), user / "cellwall"]


def definitions() -> dict[str, Template]:
    """Return every known template by name; `UsageError` when a file is wrong."""
    found = {template.name: template for template in DEFAULTS}
    for directory in config_dirs():
        found |= _read(directory / "templates.toml")
    return found


def from_mapping(name: str, fields: dict[str, Any]) -> Template:
    """Make a template from plain data; `UsageError` on unknown fields and wrong types."""
    known: dict[str, type] = {
        "description": str,
        "packages": list,
        "constraints": list,
        "preload": list,
        "python": str,
        "env": dict,
        "fonts": list,
        "languages": list,
    }
    for field, value in fields.items():
        if field not in known:
            raise UsageError(
                f"template {name}: unknown field {field!r}",
                remedy=f"known fields: {', '.join(known)}",
            )
        _require(isinstance(value, known[field]), name, field, known[field].__name__)
        if isinstance(value, (list, dict)):
            items = value.values() if isinstance(value, dict) else value
            _require(all(isinstance(item, str) for item in items), name, field, "strings")
    arguments: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()
    }
    return Template(name=name, **arguments)


def _require(holds: bool, name: str, field: str, wanted: str) -> None:
    if not holds:
        raise UsageError(f"template {name}: {field} is of the wrong type", remedy=f"give {wanted}")


def _read(path: Path) -> dict[str, Template]:
    """Read one file: a table `[templates.NAME]` per template; an absent file defines none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    except UnicodeDecodeError as error:
        raise UsageError(f"read {path}: {error}", remedy="correct the file") from error
    import tomllib  # most users define none

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"read {path}: {error}", remedy="correct the file") from error
    others = [name for name in document if name != "templates"]
    if others:
        raise UsageError(f"read {path}: unknown {others[0]!r}", remedy="write [templates.NAME]")
    tables = document.get("templates", {})
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise UsageError(f"read {path}: no table of templates", remedy="write [templates.NAME]")
    return {name: from_mapping(name, table) for name, table in tables.items()}

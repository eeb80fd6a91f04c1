"""A language as doors show it: plain data, without where its tools lie on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellwall.languages.entries.language import Language
    from cellwall.languages.tools import Installed


def shown(language: Language, found: Installed | None) -> dict[str, Any]:
    """Return what callers want to know of it; `install` is how to get what is not there."""
    return {
        "name": language.name,
        "aliases": list(language.aliases),
        "extensions": list(language.extensions),
        "context": language.context is not None,
        "compiled": bool(language.compile),
        "compile_options": list(language.options),
        "installed": found is not None,
        "version": None if found is None else found.version,
        "install": language.install,
    }

"""The languages there are, by name, alias and file name ending.

Not what a template offers (`model.template`) nor how programs start (`engine`). A name or ending
belongs to one language; a clash is an error at import, not a matter of order.
"""

from __future__ import annotations

from cellwall.languages.entries import (
    awk,
    bash,
    c,
    cpp,
    csharp,
    fortran,
    go,
    haskell,
    java,
    javascript,
    jupyter,
    kotlin,
    lua,
    ocaml,
    octave,
    pascal,
    perl,
    php,
    prolog,
    python,
    r,
    ruby,
    rust,
    sql,
    tcl,
    typescript,
)
from cellwall.languages.entries.language import Language
from cellwall.languages.tools import Installed, detect
from cellwall.model.errors import NotFound, UsageError

__all__ = ["LANGUAGES", "Installed", "Language", "by_extension", "detect", "find"]

_MODULES = (
    *(python, bash, javascript, typescript, r, sql, java, go, rust, c, cpp, php, ruby, perl, lua),
    *(csharp, kotlin, haskell, ocaml, prolog, fortran, octave, pascal, tcl, awk),
)


def _index(languages: tuple[Language, ...], *, by: str) -> dict[str, Language]:
    index: dict[str, Language] = {}
    for language in languages:
        keys = language.extensions if by == "extension" else (language.name, *language.aliases)
        for key in keys:
            if key in index:
                raise ValueError(f"languages: {key} belongs to {index[key].name} already")
            index[key] = language
    return index


LANGUAGES: dict[str, Language] = {module.LANGUAGE.name: module.LANGUAGE for module in _MODULES}
"""By name, in the order they are shown."""

_BY_NAME = _index(tuple(LANGUAGES.values()), by="name")
_BY_EXTENSION = _index(tuple(LANGUAGES.values()), by="extension")


def find(name: str) -> Language:
    """Return the language of that name or alias, in any case; `NotFound` when there is none."""
    if not isinstance(name, str):
        raise UsageError(
            f"language: {type(name).__name__} is not text", remedy="give the name of one"
        )
    language = _BY_NAME.get(name.lower()) or jupyter.find(name)
    if language is None:
        raise NotFound(
            f"language {name!r} is not known", remedy=f"known languages: {', '.join(LANGUAGES)}"
        )
    return language


def by_extension(extension: str) -> Language | None:
    """Return the language of files ending in `extension` (`.py`), or None."""
    return _BY_EXTENSION.get(extension.lower())

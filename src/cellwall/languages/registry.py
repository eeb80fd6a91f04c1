"""The languages there are, by name, alias and file name ending.

Not what a template offers (`model.template`) nor how programs start (`engine`). A name or ending
belongs to one language; a clash is an error at import, not a matter of order.
"""

from __future__ import annotations

from cellwall.languages import bash, javascript, python
from cellwall.languages.language import Installed, Language, find_tool, read_version
from cellwall.model.errors import NotFound


def _index(languages: tuple[Language, ...], *, by: str) -> dict[str, Language]:
    index: dict[str, Language] = {}
    for language in languages:
        keys = language.extensions if by == "extension" else (language.name, *language.aliases)
        for key in keys:
            if key in index:
                raise ValueError(f"languages: {key} belongs to {index[key].name} already")
            index[key] = language
    return index


LANGUAGES: dict[str, Language] = {
    entry.name: entry for entry in (python.LANGUAGE, bash.LANGUAGE, javascript.LANGUAGE)
}
"""By name, in the order they are shown."""

_BY_NAME = _index(tuple(LANGUAGES.values()), by="name")
_BY_EXTENSION = _index(tuple(LANGUAGES.values()), by="extension")


def find(name: str) -> Language:
    """Return the language of that name or alias, in any case; `NotFound` when there is none."""
    language = _BY_NAME.get(name.lower())
    if language is None:
        raise NotFound(
            f"language {name!r} is not known", remedy=f"known languages: {', '.join(LANGUAGES)}"
        )
    return language


def by_extension(extension: str) -> Language | None:
    """Return the language of files ending in `extension` (`.py`), or None."""
    return _BY_EXTENSION.get(extension.lower())


def detect(language: Language) -> Installed | None:
    """Look for the language's tool where a jail would show it, and ask for its version."""
    path = find_tool(language.tool)
    return None if path is None else Installed(path, read_version(language, path))

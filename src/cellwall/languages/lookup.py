"""Finds a language by its name, and imports all of them only if it is not the usual one.

The registry stays the authority; a test compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellwall.languages.entries.language import Language


def find(name: str) -> Language:
    """Return what `registry.find` returns; raises as that does."""
    if name == "python":
        from cellwall.languages.entries import python

        return python.LANGUAGE
    from cellwall.languages import registry

    return registry.find(name)

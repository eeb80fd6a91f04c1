"""Extras: the error for an integration whose framework is not installed."""

from __future__ import annotations


def missing(extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error to raise in place of `error`, with the extra that installs the package."""
    return ModuleNotFoundError(
        f"cellwall.integrations: the package {error.name!r} is not installed; "
        f"run: pip install 'cellwall[{extra}]'",
        name=error.name,
    )

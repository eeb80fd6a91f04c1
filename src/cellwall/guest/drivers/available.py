"""Check whether a context of a language can be started here, before any process is started."""

from __future__ import annotations

from importlib.util import find_spec

from cellwall.guest import drivers
from cellwall.guest.channel.errors import Refusal
from cellwall.guest.process.programs import DEFAULT_PATH, find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

EXIT_MISSING = 127
"""Exit code of a context that ends before it is ready because its tool is missing."""


def check(language: str, environment: Mapping[str, str]) -> None:
    """Raise `Refusal` if a context of `language` cannot be started here."""
    if language == "python":
        return
    if language == "sql":
        if not has_duckdb():
            raise Refusal("not_found", "context: this template has no duckdb")
        return
    driver = drivers.find(language)
    if driver is None:
        raise Refusal("unsupported", f"context: no driver for {language!r}")
    if language.startswith("jupyter:") and not find_spec("jupyter_client"):
        raise Refusal("not_found", "context: this template has no jupyter_client")
    find_program(driver.argv[0], environment.get("PATH", DEFAULT_PATH))


def has_duckdb() -> bool:
    """Return whether the template has DuckDB."""
    return find_spec("duckdb") is not None

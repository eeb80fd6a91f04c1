"""Whether a context of a language can be started here, asked before anything is."""

from __future__ import annotations

from importlib.util import find_spec

from cellwall.guest import drivers
from cellwall.guest.channel.errors import Refusal
from cellwall.guest.process.programs import DEFAULT_PATH, find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

EXIT_MISSING = 127
"""What a context ends with, before it was ready, whose tool is not there."""


def check(language: str, environment: Mapping[str, str]) -> None:
    """Raise `Refusal` where a context of `language` cannot be started, before anything is."""
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
    """Whether the template has DuckDB."""
    return find_spec("duckdb") is not None

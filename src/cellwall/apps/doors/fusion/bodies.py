"""Bodies of SandboxFusion, and what of them a program gets.

Pure. The invariant: a limit that this server would not hold as asked for is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticKnownError

from cellwall.apps.doors import asked_limits, exchange
from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.model.limits import Limits

SERVED: Mapping[str, str] = {
    "python": "python",
    "cpp": "cpp",
    "nodejs": "javascript",
    "go": "go",
    "java": "java",
    "php": "php",
    "csharp": "csharp",
    "bash": "bash",
    "typescript": "typescript",
    "rust": "rust",
    "lua": "lua",
    "R": "r",
    "perl": "perl",
    "ruby": "ruby",
}
"""Languages that are served, with our names."""
_PHP = "<?php"
_MOST_FILES = 1000


def _few(value: object) -> object:
    """Refuse a large object before each of its members can become a fault of its own."""
    if isinstance(value, dict) and len(value) > _MOST_FILES:
        facts = {"field_type": "Dictionary", "max_length": _MOST_FILES, "actual_length": len(value)}
        raise PydanticKnownError("too_long", facts)
    return value


class CodeBody(BaseModel):
    """Body of `POST /run_code`; unknown fields are ignored."""

    code: str
    language: str
    compile_timeout: float = 10
    run_timeout: float = 10
    memory_limit_MB: int = -1
    stdin: str | None = None
    files: Annotated[dict[str, str | None], BeforeValidator(_few)] = {}
    fetch_files: list[str] = Field([], max_length=100)


class NotebookBody(BaseModel):
    """Body of `POST /run_jupyter`; unknown fields are ignored."""

    cells: list[str] = Field(max_length=1000)
    cell_timeout: float = 0
    total_timeout: float = 45
    memory_limit_MB: int = -1
    kernel: Literal["python3"] = "python3"
    files: Annotated[dict[str, str], BeforeValidator(_few)] = {}
    fetch_files: list[str] = Field([], max_length=100)


def program_of(body: CodeBody, most: Limits) -> tuple[str, dict[str, Any]]:
    """Return the program and the options of `arun`; `UsageError` for what is not served."""
    language = SERVED.get(body.language)
    if language is None:
        raise UsageError(
            f"language: {body.language[:40]} is not served here",
            remedy=f"one of: {', '.join(SERVED)}",
        )
    code = body.code
    if language == "php" and _PHP not in code:
        code = f"{_PHP}\n{code}"
    return code, {
        "language": language,
        "stdin": body.stdin,
        "files": files_of(body.files),
        "collect": body.fetch_files,
        "compile_limits": wall_of(body, "compile_timeout", most),
        "limits": {
            **wall_of(body, "run_timeout", most),
            **memory_of(body.memory_limit_MB, most),
        },
    }


def wall_of(body: BaseModel, field: str, most: Limits) -> dict[str, float]:
    """Return the limits of time; the protocol's default is lowered to the operator's ceiling."""
    seconds = getattr(body, field)
    is_asked = field in body.model_fields_set
    return asked_limits.wall(seconds if is_asked else min(seconds, most.wall_s), most)


def memory_of(mebibytes: int, most: Limits) -> dict[str, float]:
    """Return the limit of memory; none is named by a number up to 0."""
    return {} if mebibytes <= 0 else asked_limits.permitted({"memory_mb": mebibytes}, most)


def files_of(files: Mapping[str, str | None]) -> dict[str, bytes]:
    """Return files by path; `UsageError` for one that is not base64."""
    found: dict[str, bytes] = {}
    for path, content in files.items():
        if content is None:
            continue
        try:
            found[path] = exchange.from_base64(content)
        except ValueError as error:
            raise UsageError(
                f"files: {path[:200]!r}: {error}", remedy="give the content as base64"
            ) from None
    return found

"""A job of Piston: a checked body of `execute`, as the program and options of an execution.

Pure. The checks and their texts are Piston's own, in its order; a limit above the operator's
ceiling is refused as Piston refuses one above its configured limit.
"""

from __future__ import annotations

import base64
import binascii
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.asked_limits import MIB, mebibytes
from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.model.limits import Limits

OUTPUT_KB = 1024
"""KiB of each stream; Piston's own default is 1 KiB."""
_STAGES = ("compile", "run")
_DEFAULT_MS = {"compile": 10_000.0, "run": 3_000.0}
_LEAST_MEMORY_MB = 16
_MOST_FILES = 1000


class BadJob(UsageError):
    """The body is refused, in Piston's words."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job."""

    code: str
    files: Mapping[str, bytes]
    """Files beside the program."""
    stdin: str
    args: tuple[str, ...]
    compile_limits: Mapping[str, float]
    limits: Mapping[str, float]

    def options(self, language: str) -> dict[str, Any]:
        """Return the options of `arun`."""
        stdin = self.stdin if self.stdin.endswith("\n") else f"{self.stdin}\n"
        return {
            "language": language,
            "stdin": stdin,
            "args": self.args,
            "files": self.files,
            "limits": {**self.limits, "output_kb": OUTPUT_KB},
            "compile_limits": dict(self.compile_limits),
        }


def named(body: object) -> tuple[str, str]:
    """Return language and selector of the version, and check what Piston checks before them."""
    if not isinstance(body, dict):
        body = {}
    for name in ("language", "version"):
        if not body.get(name) or not isinstance(body[name], str):
            raise BadJob(f"{name} is required as a string")
    files = body.get("files")
    if not isinstance(files, list):
        raise BadJob("files is required as an array")
    for number, each in enumerate(files):
        if not isinstance(each, dict) or not isinstance(each.get("content"), str):
            raise BadJob(f"files[{number}].content is required as a string")
    return body["language"], body["version"]


def job_of(body: Mapping[str, Any], most: Limits) -> Job:
    """Return the job of a body that `named` has checked."""
    files = body["files"]
    if len(files) > _MOST_FILES:
        raise BadJob(f"files has more than {_MOST_FILES} entries")
    texts = [n for n, each in enumerate(files) if (each.get("encoding") or "utf8") == "utf8"]
    if not texts:
        raise BadJob("files must include at least one utf8 encoded file")
    limits = {stage: _limits(body, stage, most) for stage in _STAGES}
    return Job(
        code=files[texts[0]]["content"],
        files=_beside(files, texts[0]),
        stdin=_text(body, "stdin"),
        args=_args(body),
        compile_limits=limits["compile"],
        limits=limits["run"],
    )


def _limits(body: Mapping[str, Any], stage: str, most: Limits) -> dict[str, float]:
    memory = _number(body, f"{stage}_memory_limit", most.memory_mb * MIB, is_optional=True)
    wall_ms = _number(body, f"{stage}_timeout", most.wall_s * 1000) or _DEFAULT_MS[stage]
    cpu_ms = _number(body, f"{stage}_cpu_time", most.cpu_s * 1000) or _DEFAULT_MS[stage]
    found: dict[str, float] = {
        "wall_s": min(max(wall_ms, 1), most.wall_s * 1000) / 1000,
        "cpu_s": min(max(cpu_ms, 1), most.cpu_s * 1000) / 1000,
    }
    if memory > 0:
        if memory < _LEAST_MEMORY_MB * MIB:
            least = _LEAST_MEMORY_MB * MIB
            raise BadJob(f"{stage}_memory_limit cannot be less than {least}")
        found["memory_mb"] = mebibytes(memory)
    return found


def _number(body: Mapping[str, Any], name: str, most: float, *, is_optional: bool = False) -> float:
    value = body.get(name)
    if not value:
        return 0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise BadJob(f"If specified, {name} must be a number")
    if value > most:
        raise BadJob(f"{name} cannot exceed the configured limit of {most:.0f}")
    if value < 0 and not is_optional:
        raise BadJob(f"{name} must be non-negative")
    return value


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name) or ""
    if not isinstance(value, str):
        raise BadJob(f"If specified, {name} must be a string")
    return value


def _args(body: Mapping[str, Any]) -> tuple[str, ...]:
    value = body.get("args") or []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise BadJob("If specified, args must be an array of strings")
    return tuple(value)


def _beside(files: list[dict[str, Any]], entry: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for number, each in enumerate(files):
        name = each.get("name") or f"file{number}.code"
        if not isinstance(name, str):
            raise BadJob(f"files[{number}].name must be a string")
        if number != entry:
            found[name] = _content(each, number)
    return found


def _content(file: Mapping[str, Any], number: int) -> bytes:
    text: str = file["content"]
    try:
        if file.get("encoding") == "base64":
            return base64.b64decode(text)
        if file.get("encoding") == "hex":
            return bytes.fromhex(text)
        return text.encode()
    except (ValueError, binascii.Error):
        raise BadJob(f"files[{number}].content does not fit its encoding") from None

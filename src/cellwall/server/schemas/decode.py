"""From a checked body to what the engine is asked: decoded, clipped, the older names resolved.

Pure. Not the schemas (`requests`). The invariant: a limit is never higher than the operator's
ceiling, and a caller that asked for more is told.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cellwall.engine.programs.requests import Request
from cellwall.languages import registry
from cellwall.model.errors import UsageError
from cellwall.model.limits import Limits
from cellwall.server.core.named_secrets import secrets_of
from cellwall.server.schemas.network import value_of
from cellwall.server.schemas.requests import CommandBody, ExecuteBody, SandboxBody

if TYPE_CHECKING:
    from cellwall.engine.policy.levels import Floor
    from cellwall.server.schemas.requests import CellBody, FileBody, LimitsBody

_BLANK_LOOK = 64
"""Characters in which a program as a rule has begun."""
_UNITS = {"k": 1 / 1024, "m": 1, "g": 1024}


def source(body: ExecuteBody | CellBody) -> str:
    """Return the program's text; `UsageError` if there is none, unless that is meant."""
    text = body.code
    if text is None:
        try:
            text = _decoded(body.code_b64 or "", "code_b64").decode()
        except UnicodeDecodeError:
            raise UsageError("code_b64: not UTF-8", remedy="encode the program as UTF-8") from None
    if not body.empty_ok and not text[:_BLANK_LOOK].strip() and not text.strip():
        raise UsageError(
            "code: it is empty, or only white space",
            remedy="give the program, or say empty_ok if one that does nothing is meant",
        )
    return text


def stdin(body: ExecuteBody | CellBody | CommandBody) -> str | bytes | None:
    """Return what the program reads."""
    if body.stdin_b64 is not None:
        return _decoded(body.stdin_b64, "stdin_b64")
    return body.stdin


def language(body: ExecuteBody | CellBody | SandboxBody, default: str = "python") -> str:
    """Return the language's own name; `NotFound` if there is none."""
    return registry.find(body.language or body.lang or default).name


def _decoded(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UsageError(f"{what}: not base64", remedy="use the standard alphabet") from None


def limits(
    body: ExecuteBody | SandboxBody, defaults: Limits, most: Limits
) -> tuple[Limits, dict[str, float]]:
    """Return the limits that apply, and what was asked for above them."""
    wanted: dict[str, Any] = {} if body.limits is None else body.limits.model_dump()
    wanted = {name: value for name, value in wanted.items() if value is not None}
    if isinstance(body, ExecuteBody):
        _once(wanted, "wall_s", body.timeout, "timeout")
    else:
        _once(wanted, "idle_s", body.idle_s, "idle_s")
        _once(wanted, "life_s", body.life_s, "life_s")
    if body.max_memory is not None:
        _once(wanted, "memory_mb", max(16, _mebibytes(body.max_memory)), "max_memory")
    if not wanted:
        return defaults, {}
    clipped = {name: value for name, value in wanted.items() if value > getattr(most, name)}
    for name in clipped:
        wanted[name] = getattr(most, name)
    return defaults.with_changes(wanted), clipped


def clipped_limits(
    body: LimitsBody | None, defaults: Limits, most: Limits
) -> tuple[Limits, dict[str, float]]:
    """Return limits none of which is above `most`, and what was asked for above it."""
    given = {} if body is None else body.model_dump()
    wanted = {name: value for name, value in given.items() if value is not None}
    clipped = {name: value for name, value in wanted.items() if value > getattr(most, name)}
    return _below(defaults.with_changes(wanted), most), clipped


def check_allowed(limits: Limits, defaults: Limits, most: Limits) -> None:
    """Raise UsageError if limits of an earlier time are above what is allowed now."""
    above = [
        each.name
        for each in fields(limits)
        if getattr(limits, each.name) > max(getattr(most, each.name), getattr(defaults, each.name))
    ]
    if above:
        raise UsageError(
            f"limits: {', '.join(above)}: it has more than this server allows now",
            remedy="create a new sandbox, or have the operator raise the ceilings (`[most]`)",
        )


def content(given: str | FileBody, what: str) -> bytes:
    """Return the bytes of a file in a body."""
    return given.encode() if isinstance(given, str) else _decoded(given.content_b64, what)


def compile_limits(body: ExecuteBody, defaults: Limits, most: Limits) -> Limits:
    """Return the limits of the compile stage, none above the operator's ceiling."""
    wanted = {} if body.compile_limits is None else body.compile_limits.model_dump()
    chosen = defaults.with_changes({k: v for k, v in wanted.items() if v is not None})
    return _below(chosen, most)


@lru_cache(maxsize=256)
def _below(chosen: Limits, most: Limits) -> Limits:
    ceilings = {f.name: min(getattr(chosen, f.name), getattr(most, f.name)) for f in fields(most)}
    return chosen.with_changes(ceilings)


def _once(wanted: dict[str, Any], name: str, value: float | None, older: str) -> None:
    if value is None:
        return
    if name in wanted and wanted[name] != value:
        raise UsageError(
            f"{older}: limits.{name} says something else", remedy="give one of the two"
        )
    wanted[name] = value


def _mebibytes(text: str) -> int:
    unit = text[-1].lower()
    if unit in _UNITS:
        return int(int(text[:-1]) * _UNITS[unit])
    return int(text) // (1024 * 1024)


def clipped_seconds(wanted: float | None, most: float) -> tuple[float | None, dict[str, float]]:
    """Return a wall time that is allowed, and what was asked for above it."""
    if wanted is None or wanted <= most:
        return wanted, {}
    return most, {"wall_s": wanted}


def runtime(body: ExecuteBody | SandboxBody) -> str | None:
    """Return the runtime's name, None for the fastest that fits."""
    name = body.runtime or body.mode
    return None if name in {None, "auto"} else name


def request(
    body: ExecuteBody, chosen: Limits, compiling: Limits, owner: str, floor: Floor
) -> Request:
    """Return the engine's request of that owner's; `floor` is what the operator demands of it."""
    files: dict[str, str | bytes] = {}
    for path, content in (body.files or {}).items():
        files[path] = (
            content
            if isinstance(content, str)
            else _decoded(content.content_b64, f"files.{path[:40]}")
        )
    return Request(
        source(body),
        language=language(body),
        stdin=stdin(body),
        arguments=body.arguments,
        files=files,
        limits=chosen,
        template=body.template,
        runtime=runtime(body),
        isolation=body.isolation,
        trust=body.trust,
        floor=floor,
        demand_hard=body.demand_hard,
        start=body.start,
        env=body.env,
        args=body.args,
        collect=body.collect,
        artifacts=body.artifacts,
        compile_options=body.compile_options,
        compile_limits=compiling,
        tenant=owner,
        network=value_of(body.network),
        secrets=secrets_of(body.secrets),
        packages=body.packages,
        volumes=body.volumes,
        image=body.image,
        user=body.user,
    )

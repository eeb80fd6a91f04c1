"""Direct calls: a tool call from its JSON to its JSON, without the SDK's many steps in between.

Both interfaces (`stdio`, `http`) call this first; everything but a plain `tools/call` of a client
that the SDK has served before goes to the SDK, which decides on handshakes, versions, progress and
everything unusual. `tools` implements the tools. The invariant: apart from the order of keys, an
answer is what the SDK would have answered.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_types import INTERNAL_ERROR, PARSE_ERROR, SERVER_INFO_META_KEY, methods
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_types import CallToolResult

_log = logging.getLogger("cellwall.mcp")
CANCELLED = -32800
"""Code of the answer to a request that its client cancelled, where an answer is required."""
_METHOD = "tools/call"
_KEYS = frozenset({"jsonrpc", "id", "method", "params"})
_PARAMS = frozenset({"name", "arguments", "_meta"})


@dataclass(frozen=True, slots=True)
class Spoken:
    """Protocol version and metadata of a client, known once the SDK accepted a call of it."""

    version: str
    meta: Mapping[str, Any]
    """Metadata that its calls carry beside their parameters; the newest versions identify the
    client there."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One plain tool call."""

    request_id: int | str
    tool: str
    arguments: dict[str, Any]


def spoken(version: str, params: Mapping[str, Any] | None) -> Spoken:
    """Return a client's version and metadata, from a call that the SDK accepted."""
    meta = (params or {}).get("_meta") or {}
    return Spoken(version, {key: each for key, each in meta.items() if key != "progressToken"})


def decoded(data: bytes) -> Any:  # noqa: ANN401 - JSON
    """Return a message, parsed by the SDK's parser; None if it is not JSON."""
    try:
        return from_json(data)
    except ValueError:
        return None


def plain_call(message: Any, known: Spoken | None) -> Asked | None:  # noqa: ANN401 - JSON
    """Return the tool call in a message; None if the SDK has to handle the message."""
    if known is None or not isinstance(message, dict) or message.keys() != _KEYS:
        return None
    request_id, params = message["id"], message["params"]
    is_call = message["jsonrpc"] == "2.0" and message["method"] == _METHOD
    if not is_call or type(request_id) not in (int, str) or not isinstance(params, dict):
        return None
    tool, arguments = params.get("name"), params.get("arguments", {})
    if not isinstance(tool, str) or not isinstance(arguments, dict) or not params.keys() <= _PARAMS:
        return None
    if (params.get("_meta") or {}) != known.meta:
        return None
    return Asked(request_id, tool, arguments)


def cancelled(message: Any) -> int | str | None:  # noqa: ANN401 - JSON
    """Return the id of the request that a message cancels, if it does."""
    if not isinstance(message, dict) or message.get("method") != "notifications/cancelled":
        return None
    params = message.get("params")
    request_id = params.get("requestId") if isinstance(params, dict) else None
    return request_id if type(request_id) in (int, str) else None


def answer(
    request_id: int | str, result: CallToolResult, known: Spoken, server_info: Mapping[str, Any]
) -> bytes:
    """Return the message that answers a call, as JSON without a line end."""
    try:
        return _answer(request_id, result, known, server_info)
    except ValueError:
        _log.exception("an answer is not JSON")
        return refusal(request_id, INTERNAL_ERROR, "Handler returned an invalid result")


def _answer(
    request_id: int | str, result: CallToolResult, known: Spoken, server_info: Mapping[str, Any]
) -> bytes:
    dumped = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    shaped = methods.serialize_server_result(_METHOD, known.version, dumped)
    if known.version in MODERN_PROTOCOL_VERSIONS:
        shaped["_meta"] = {**shaped.get("_meta", {}), SERVER_INFO_META_KEY: server_info}
    return to_json({"jsonrpc": "2.0", "id": request_id, "result": shaped})


def parse_error(line: bytes) -> bytes | None:
    """Return the answer to a line that is not JSON; None if it is JSON or empty.

    Like the SDK, it reads bytes that are not UTF-8 as replacement characters. The request's id is
    in the answer if a more lenient parser finds one: on a pipe, nothing else tells a client which
    request was refused.
    """
    text = line.decode(errors="replace")
    try:
        if text.strip():
            from_json(text)
    except ValueError as error:
        return refusal(_id_in(text), PARSE_ERROR, f"Parse error: {error}")
    return None


def _id_in(text: str) -> int | str | None:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or "method" not in message:
        return None
    request_id = message.get("id")
    is_one = type(request_id) is int or (isinstance(request_id, str) and request_id.isprintable())
    return request_id if is_one else None


def refusal(request_id: int | str | None, code: int, message: str) -> bytes:
    """Return the message that reports a call without a result."""
    error = {"code": code, "message": message}
    return to_json({"jsonrpc": "2.0", "id": request_id, "error": error})

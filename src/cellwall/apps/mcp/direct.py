"""A tool call from its JSON to its JSON, without the many steps of the SDK in between.

Both doors (`stdio`, `http`) ask here first; whatever is not a plain `tools/call` of a client that
the SDK has served one before goes to the SDK, which is the judge of handshakes, versions, progress
and everything unusual. Not what tools do (`tools`). The invariant: what a client is answered here
is, but for the order of keys, what the SDK would have answered.
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
"""Code of the answer to a request that its client cancelled, where there must be one."""
_METHOD = "tools/call"
_KEYS = frozenset({"jsonrpc", "id", "method", "params"})
_PARAMS = frozenset({"name", "arguments", "_meta"})


@dataclass(frozen=True, slots=True)
class Spoken:
    """How a client speaks: known once the SDK has let a tool call of it through."""

    version: str
    meta: Mapping[str, Any]
    """What its calls carry beside their parameters; the newest versions say there who they are."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One plain tool call."""

    request_id: int | str
    tool: str
    arguments: dict[str, Any]


def spoken(version: str, params: Mapping[str, Any] | None) -> Spoken:
    """Return how a client speaks, from a call that the SDK let through."""
    meta = (params or {}).get("_meta") or {}
    return Spoken(version, {key: each for key, each in meta.items() if key != "progressToken"})


def decoded(data: bytes) -> Any:  # noqa: ANN401 - JSON
    """Return a message, by the parser that the SDK uses; None if it is none."""
    try:
        return from_json(data)
    except ValueError:
        return None


def plain_call(message: Any, known: Spoken | None) -> Asked | None:  # noqa: ANN401 - JSON
    """Return the tool call that a message is; None if the SDK is to look at it."""
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
    """Return the message that answers a call, as JSON without a line's end."""
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
    """Return the message that answers a line that is not JSON; None if it is, or if it is empty.

    As the SDK does, it takes bytes that are no UTF-8 for signs. The request's id is in the answer
    if a more lenient parser finds one: on a pipe, nothing else tells a client what was refused.
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
    """Return the message that says that a call has no result."""
    error = {"code": code, "message": message}
    return to_json({"jsonrpc": "2.0", "id": request_id, "error": error})

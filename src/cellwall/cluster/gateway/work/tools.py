"""What a call of a tool of MCP makes that counts in its tenant's quotas over all nodes.

Where the call goes its session says; nothing here decides that. The invariant: of a message that a
node might read in another way nothing is passed on.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from cellwall.cluster.gateway.wire.json_body import object_of
from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from cellwall.cluster.gateway.routing import Makes
    from cellwall.model.errors import CellwallError

_CALL = "tools/call"
_MAKES: dict[object, Makes] = {
    "run_code": "program",
    "create_sandbox": "sandbox",
    "restore_snapshot": "sandbox",
    "fork_sandbox": "fork",
}


class Called(NamedTuple):
    """What one message of a client asks for."""

    makes: Makes
    body: bytes = b""
    """Of a fork: what says how many copies."""
    call: object = None
    """Id of the message; None: it wants no answer."""

    def refused(self, error: CellwallError) -> dict[str, Any]:
        """Return the answer to a call that was not carried out, as a node's tools give it."""
        from cellwall.model.for_model import error_for_model  # few calls are refused here

        text = error_for_model(error)
        facts = {"code": error.code, "message": error.message, "remedy": error.remedy}
        result = {
            "content": [{"type": "text", "text": text}],
            "structuredContent": {"text": text, "failure": facts},
            "isError": True,
            "resultType": "complete",
        }
        return {"jsonrpc": "2.0", "id": self.call, "result": result}


def called(body: bytes) -> Called:
    """Return what a message asks for. Raises UsageError for what is no message."""
    try:
        message = object_of(body)
    except ValueError as error:
        raise UsageError(
            f"mcp: the body is no single message: {error}", remedy="send one JSON-RPC message"
        ) from None
    params = message.get("params")
    if message.get("method") != _CALL or not isinstance(params, dict):
        return Called("")
    name = params.get("name")
    makes = _MAKES.get(name, "") if isinstance(name, str) else ""
    copies = json.dumps(params.get("arguments") or {}).encode() if makes == "fork" else b""
    return Called(makes, copies, message.get("id"))

"""A request of RAGFlow as a program: a few lines of ours that call `main` of the given code.

The given code is a module beside them, as in the executor manager: it is imported and never run as
the main program. Pure. The invariant: a `main` that is missing, or a value that JSON does not have,
is an error of the program.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, field_validator

from cellwall.apps.doors import exchange
from cellwall.model.limits import Limits

ARTIFACTS = "artifacts"
WALL_S = 10.0
"""Seconds of wall time, the default of `SANDBOX_TIMEOUT`."""

_PYTHON = """\
import json as _json, os as _os
_os.makedirs("artifacts", exist_ok=True)
from program import main as _main
def main(**given):
    value = _main(**given)
    _json.dumps(value, allow_nan=False)
    return value
"""
_NODE = """\
require("fs").mkdirSync("artifacts", { recursive: true });
const called = require("./program.js").main;
async function main(given) {
  const value = await called(given);
  if (value === undefined)
    throw new Error("main() must return a value. Use null for an empty result.");
  if (JSON.stringify(value) === undefined) throw new TypeError("main() returned no JSON value.");
  return value;
}
"""
_EXPORTS = "\n\nmodule.exports = { main };"


class RunBody(BaseModel):
    """Body of `POST /run`; unknown fields are ignored."""

    code_b64: str
    language: Literal["python", "nodejs"] = "python"
    arguments: dict[str, Any] | None = None

    @field_validator("code_b64")
    @classmethod
    def _is_text(cls, value: str) -> str:
        try:
            exchange.from_base64(value).decode()
        except ValueError as error:
            raise ValueError(f"Invalid base64 encoding: {error}") from None
        return value


def program_of(body: RunBody, most: Limits) -> tuple[str, dict[str, Any]]:
    """Return the program and the options of `arun`."""
    code = exchange.from_base64(body.code_b64).decode()
    options: dict[str, Any] = {
        "arguments": body.arguments or {},
        "artifacts": ARTIFACTS,
        "limits": {
            "wall_s": min(WALL_S, most.wall_s),
            "cpu_s": min(WALL_S, most.cpu_s),
            # Memory stays the server's default, which parked sandboxes have. No client asks for
            # the 256 MiB of `SANDBOX_MAX_MEMORY`: the executor manager's operator chooses them.
        },
    }
    if body.language == "nodejs":
        files = {"program.js": code + _EXPORTS}
        return _NODE, {**options, "language": "javascript", "files": files}
    return _PYTHON, {**options, "files": {"program.py": code}}

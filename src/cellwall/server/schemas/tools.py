"""Strict schemas of tools of a client's: what code may call, and the answer to a call.

Beside `requests`, whose bodies carry the first. What they become is in `remote_tools`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cellwall.server.schemas.base import Name, StrictModel
from cellwall.surface.tools.tools import (
    MOST_AT_ONCE,
    MOST_BYTES,
    MOST_CALLS,
    MOST_DOC_CHARACTERS,
    MOST_TOOLS,
)


class ToolBody(StrictModel):
    """A function of the client's that the code may call."""

    head: Annotated[str, Field(pattern=r"^\([^\r\n]*$", max_length=4096)] = Field(
        "(**arguments)", description="Its parameters as in Python; what its signature shows inside."
    )
    doc: Annotated[str, Field(max_length=MOST_DOC_CHARACTERS)] = ""
    max_bytes: Annotated[int, Field(ge=1, le=MOST_BYTES)] = Field(
        256 * 1024, description="Of JSON: for the arguments, and for the result."
    )


class ToolsBody(StrictModel):
    """Functions whose calls the client answers: `GET /executions/{id}/calls` shows them."""

    functions: Annotated[dict[Name, ToolBody], Field(min_length=1, max_length=MOST_TOOLS)]
    calls: Annotated[int, Field(ge=1, le=MOST_CALLS)] = Field(
        1000, description="How many the execution may make."
    )
    at_once: Annotated[int, Field(ge=1, le=MOST_AT_ONCE)] = Field(
        8, description="How many of them beside each other."
    )
    optional: bool = Field(
        False, description="Do without where the language of a cell cannot call tools."
    )


class ToolFailure(StrictModel):
    """Why a call has no result."""

    kind: Literal["raised", "invalid", "unknown", "denied", "timeout", "too_large"] = "raised"
    type: Annotated[str, Field(max_length=100)] = Field(
        "", description="The name of the exception, if one was raised."
    )
    message: Annotated[str, Field(max_length=1000)] = ""


class ToolAnswer(StrictModel):
    """The answer to a call; exactly one of `result` and `error`."""

    result: Any = None
    error: ToolFailure | None = None

    @model_validator(mode="after")
    def _one(self) -> ToolAnswer:
        if ("result" in self.model_fields_set) is (self.error is not None):
            raise ValueError("give `result` or `error`")
        return self

"""Validation errors as FastAPI shows them, for protocols whose servers are written with it.

Bodies are checked by pydantic as FastAPI does: types are lax, unknown fields are ignored. The
invariant: an answer repeats an invalid input only if it is small.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from cellwall.apps.doors import exchange
from cellwall.apps.doors.refusal import Refusal
from cellwall.model.errors import AccessDenied, CellwallError
from cellwall.server.core.errors import headers_of, status_of

if TYPE_CHECKING:
    from cellwall.server.core.request import Request

_M = TypeVar("_M", bound=BaseModel)
_MOST_FAULTS = 20
_SHOWN_CHARACTERS = 200
_in_pieces = json.JSONEncoder(allow_nan=False).iterencode
_PLAIN = {404: "Not Found", 405: "Method Not Allowed"}


class Unprocessable(CellwallError):
    """The body does not fit the protocol's schema; `detail` is the list of faults."""

    def __init__(self, detail: list[dict[str, Any]]) -> None:
        """Keep the faults."""
        super().__init__("body: it does not fit the schema")
        self.detail = detail


async def read(request: Request, model: type[_M]) -> _M:
    """Read and check a JSON body; raises `Unprocessable`."""
    data = await exchange.body_of(request)
    return checked(model, data, request.headers.get("content-type"))


def checked(model: type[_M], data: bytes, media_type: str | None = None) -> _M:
    """Check a body; one of another media type than JSON is no object, as with FastAPI."""
    if not data:
        raise Unprocessable([_fault("missing", ["body"], "Field required", None)])
    if not _is_json(media_type):
        text = "Input should be a valid dictionary or object to extract fields from"
        shown = data.decode("utf-8", "replace")
        raise Unprocessable([_fault("model_attributes_type", ["body"], text, shown)])
    try:
        return model.model_validate(exchange.decoded(data))
    except ValidationError as error:
        raise Unprocessable(_faults(error)) from None
    except ValueError as error:
        where = error.pos if isinstance(error, json.JSONDecodeError) else 0
        why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        fault = _fault("json_invalid", ["body", where], "JSON decode error", {})
        raise Unprocessable([{**fault, "ctx": {"error": why[:_SHOWN_CHARACTERS]}}]) from None


def _is_json(media_type: str | None) -> bool:
    if media_type is None:
        return True
    kind, _, name = media_type.partition(";")[0].strip().lower().partition("/")
    return kind == "application" and (name == "json" or name.endswith("+json"))


def _faults(error: ValidationError) -> list[dict[str, Any]]:
    found = error.errors(include_url=False, include_context=False)
    return [
        _fault(each["type"], ["body", *map(_place, each["loc"])], each["msg"], each["input"])
        for each in found[:_MOST_FAULTS]
    ]


def _place(part: int | str) -> int | str:
    return part if isinstance(part, int) else part[:_SHOWN_CHARACTERS]


def _fault(kind: str, place: list[int | str], text: str, given: object) -> dict[str, Any]:
    fault = {"type": kind, "loc": place, "msg": text}
    return {**fault, "input": given} if _is_small(given) else fault


def _is_small(given: object) -> bool:
    """Report whether a value is short as JSON, at the cost of a short one."""
    if isinstance(given, str) and len(given) > _SHOWN_CHARACTERS:
        return False
    left = _SHOWN_CHARACTERS
    try:
        for piece in _in_pieces(given):
            left -= len(piece)
            if left < 0:
                return False
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def refusal(error: Exception) -> Refusal:
    """Return an error in FastAPI's shape."""
    headers = headers_of(error)
    if isinstance(error, Unprocessable):
        return Refusal(422, {"detail": error.detail}, headers)
    status = 403 if isinstance(error, AccessDenied) else status_of(error)
    if isinstance(error, CellwallError) and status < 500 and status not in _PLAIN:
        return Refusal(status, {"detail": str(error)}, headers)
    return Refusal(status, {"detail": _PLAIN.get(status, shown(error))}, headers)


def shown(error: Exception) -> str:
    """Return the sentence about an error; one of a defect says nothing of it."""
    if isinstance(error, CellwallError) and status_of(error) in {503, 507}:
        return str(error)
    return "Internal Server Error"

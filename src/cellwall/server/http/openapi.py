"""The OpenAPI document, from the table of routes.

The function is pure; `routes.pages` calls it once, on the first request, and has the human page.
The invariant: it promises what `endpoint` checks and `responses` describes, because it is read from
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import cellwall
from cellwall.server.http.endpoint import Endpoint
from cellwall.server.schemas import responses

_REF = "#/components/schemas/{model}"
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_ERRORS = (400, 401, 403, 404, 405, 406, 408, 409, 410, 413, 415, 416, 422, 429, 500, 503, 507)


def document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """Return the document."""
    shown = [each for each in endpoints if each.method not in {"WS", "*"}]
    models = _models(shown)
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in shown:
        path = _PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "cellwall",
            "version": cellwall.__version__,
            "description": "Run unreviewed code in sandboxes.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas.get("$defs", {}),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _models(endpoints: Iterable[Endpoint]) -> list[type[BaseModel]]:
    found: dict[str, type[BaseModel]] = {"Error": responses.Error}
    for endpoint in endpoints:
        for model in (endpoint.body, *(answer.model for answer in endpoint.answers.values())):
            if model is not None:
                found[model.__name__] = model
    return list(found.values())


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    by_status = {str(status): _answer(endpoint, status) for status in endpoint.answers}
    for status in _ERRORS:
        by_status[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {"application/json": {"schema": _ref(responses.Error)}},
        }
    module = endpoint.handler.__module__.rpartition(".")[2]
    operation: dict[str, Any] = {
        "operationId": f"{module}_{endpoint.handler.__name__}",
        "summary": endpoint.summary,
        "tags": list(endpoint.tags),
        "responses": by_status,
        "security": [] if endpoint.access == "public" else [{"bearer": []}, {"key": []}],
    }
    parameters = _parameters(endpoint)
    if parameters:
        operation["parameters"] = parameters
    body = _body(endpoint)
    if body is not None:
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _answer(endpoint: Endpoint, status: int) -> dict[str, Any]:
    answer = endpoint.answers[status]
    content: dict[str, Any] = {}
    for media in answer.media:
        is_json = media == "application/json" and answer.model is not None
        content[media] = {"schema": _ref(answer.model) if is_json and answer.model else {}}
    return {"description": answer.description, "content": content}


def _body(endpoint: Endpoint) -> dict[str, Any] | None:
    if endpoint.body is not None:
        return {"application/json": {"schema": _ref(endpoint.body)}}
    if endpoint.body_media == "multipart/form-data":
        file = {"type": "string", "contentMediaType": "application/octet-stream"}
        schema = {"type": "object", "properties": {"file": file}, "required": ["file"]}
        return {endpoint.body_media: {"schema": schema}}
    if endpoint.body_media is not None:
        return {endpoint.body_media: {"schema": {"type": "string", "format": "binary"}}}
    return None


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(endpoint.path)
    ]
    found += [
        {"name": name, "in": "header", "schema": {"type": "string"}} for name in endpoint.headers
    ]
    if endpoint.query is not None:
        schema = endpoint.query.model_json_schema(ref_template=_REF)
        required = set(schema.get("required", ()))
        for name, field in schema["properties"].items():
            found.append(
                {"name": name, "in": "query", "required": name in required, "schema": field}
            )
    return found

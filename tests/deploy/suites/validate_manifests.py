"""Validate manifests strictly; run by the interpreter of the environment that has the schemas.

Reads a JSON list of documents, writes a JSON list: for each nothing, or what is wrong with it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import kubernetes_validate

VERSION = "1.33"
"""The oldest API that the manifests are for."""


def fault_of(document: dict[str, Any]) -> str:
    """Return what is wrong with a document; empty: nothing."""
    try:
        kubernetes_validate.validate(document, VERSION, strict=True)
    except Exception as error:  # noqa: BLE001 - each is an answer here
        path = "/".join(str(each) for each in getattr(error, "path", ()))
        return f"{type(error).__name__}: {path}: {getattr(error, 'message', error)}"
    return ""


json.dump([fault_of(each) for each in json.load(sys.stdin)], sys.stdout)

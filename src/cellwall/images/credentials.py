"""Credentials of registries from a file of the operator's, in the form that Docker keeps them.

`{"auths": {"registry.example:5000": {"auth": "<base64 of user:password>"}}}`; the other fields of
such a file are left alone: no helper program is started. The invariant: the file is its owner's
alone, and what is in it is in no error.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from cellwall.model.errors import UsageError

_MOST_BYTES = 1 << 20
_DOCKER = frozenset({"https://index.docker.io/v1/", "index.docker.io", "registry-1.docker.io"})
"""What Docker calls the registry of names without a host."""


def read_credentials(path: str) -> Mapping[str, tuple[str, str]]:
    """Return user and password by the name of the registry. Raises `UsageError`."""
    found: dict[str, tuple[str, str]] = {}
    for name, value in _listed(path).items():
        if isinstance(value, dict) and (pair := _pair(value)) is not None:
            found[_called(name)] = pair
    return found


def _listed(path: str) -> Mapping[str, object]:
    try:
        with Path(path).open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise _wrong(path, "others may read it", f"chmod 600 {path}")
            said = json.loads(file.read(_MOST_BYTES))
    except OSError as error:
        raise _wrong(path, str(error.strerror), "name a readable file") from None
    except ValueError:
        raise _wrong(path, "it is no JSON", 'write {"auths": {…}}, as docker login does') from None
    listed = said.get("auths") if isinstance(said, dict) else None
    if not isinstance(listed, dict):
        raise _wrong(path, "it has no object auths", 'write {"auths": {…}}, as docker login does')
    return listed


def _pair(value: Mapping[str, object]) -> tuple[str, str] | None:
    user, password, auth = value.get("username"), value.get("password"), value.get("auth")
    if isinstance(user, str) and isinstance(password, str):
        return user, password
    if not isinstance(auth, str):
        return None
    try:
        user, colon, password = base64.b64decode(auth, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return (user, password) if colon else None


def _called(name: str) -> str:
    if name in _DOCKER:
        return "docker.io"
    return name.removeprefix("https://").removeprefix("http://").partition("/")[0]


def _wrong(path: str, why: str, remedy: str) -> UsageError:
    return UsageError(f"settings: image_credentials: {path}: {why}", remedy=remedy)

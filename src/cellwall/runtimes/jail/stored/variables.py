"""Variables of a sandbox that was taken over, which its keeper must not have (design/0040).

Its init has them, and is asked when it is copied: the copy is its owner's, too. SECURITY: what init
says is used as what a caller says, for that copy alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cellwall.jail.protocol import environment
from cellwall.model.errors import SandboxBroken
from cellwall.runtimes.channel import copy_requests
from cellwall.runtimes.shared.environment import inside_environment

if TYPE_CHECKING:
    from cellwall.runtimes.jail.sandbox import JailSandbox


async def variables_of(sandbox: JailSandbox) -> dict[str, str]:
    """Return the variables that a sandbox has besides those of each one. Raises SandboxBroken."""
    reply = await copy_requests.request(sandbox.channel, "environment")
    said = _checked(reply.body)
    usual = inside_environment(sandbox.spec.template, sandbox.spec.limits.cpus)
    return {name: value for name, value in said.items() if usual.get(name) != value}


def _checked(text: bytes) -> dict[str, str]:
    """Read what init says, as far as variables can be that."""
    try:
        if len(text) > environment.MOST_BYTES:
            raise ValueError(f"{len(text)} bytes are more than {environment.MOST_BYTES}")
        said = json.loads(text)
        if not isinstance(said, dict) or not all(map(_is_one, said, said.values())):
            raise ValueError("these are no variables")
        environment.packed(said)
        "".join((*said, *said.values())).encode("utf-8", "surrogateescape")
    except (ValueError, RecursionError) as error:
        raise SandboxBroken(
            f"copy a session: its variables: {error}"[:300],
            remedy="what runs in it answers for its guest; make the session again",
        ) from None
    return said


def _is_one(name: object, value: object) -> bool:
    return (
        isinstance(name, str)
        and isinstance(value, str)
        and bool(name)
        and "=" not in name
        and "\0" not in name + value
    )

"""OperatorsChoice: what the operator of `cellwall mcp` chose for every sandbox of its client.

The client cannot change any of it, nor see more than its tools' descriptions say. Imported before
the engine starts, so it imports nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cellwall.model.secret import Secret


class OperatorsChoice(NamedTuple):
    """Options of `Engine.create_sandbox`, as the command line gives them."""

    network: object = None
    """The network policy, as `NetworkPolicy.of` takes it."""
    image: str | None = None
    """The image that is the root of every sandbox, instead of a template."""
    user: str | None = None
    """The user in that image."""
    volumes: Sequence[str] | None = None
    """Volumes of this machine and where a sandbox sees them, as `mounts_of` takes them."""
    secrets: Sequence[Secret] = ()
    """Secrets whose values the egress proxy puts in; the client's code has placeholders."""


NOTHING_CHOSEN = OperatorsChoice()

"""`cellwall mcp`: the declared options and the help.

Not what it does (`mcp_on_stdio`, which also reads the usual words). Called by `commands`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from cellwall.apps.cli.mcp_on_stdio import serve
from cellwall.apps.cli.one_program import network_and_secrets_of
from cellwall.apps.cli.words import image_words, network_words
from cellwall.apps.mcp.operators_choice import OperatorsChoice
from cellwall.model.execution import DEFAULT_BUDGET_CHARS


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("mcp", short_help="Serve sandboxes to an MCP client, on stdio.")(mcp)


def mcp(  # noqa: PLR0913, PLR0917 - each is an option of its own
    budget: Annotated[
        int, typer.Option(metavar="CHARS", help="Most characters of text in one answer.")
    ] = DEFAULT_BUDGET_CHARS,
    allow: network_words.Allow = None,
    deny: network_words.Deny = None,
    network: network_words.Network = None,
    secret: network_words.Secret = None,
    image: image_words.Image = None,
    user: image_words.User = None,
    volume: image_words.Volume = None,
) -> None:
    """Serve sandboxes to one client that speaks the Model Context Protocol, on stdin and stdout.

    It needs no server; the sandboxes are destroyed when the client goes. See docs/agents/mcp.md.
    """
    image_words.check("mcp", image, user)
    policy, secrets = network_and_secrets_of(allow, deny, network, secret)
    serve(budget, OperatorsChoice(policy, image, user, volume, secrets))

"""The options that say where a sandbox may connect to, with what, and what is installed first.

Declared once, for `run`, `shell`, `mcp`, `sandbox create` and `network set`; they are read by
`network_and_secrets_of` in `one_program`, which is used without this module's typer, too.
"""

from __future__ import annotations

from typing import Annotated

import typer

Allow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST",
        help="Let code inside connect to a host: a name, `*.` and a name, an address or a network, "
        "each with `:PORTS`; repeatable. Without this there is no network.",
    ),
]
Deny = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST",
        help="Refuse a host, in the forms of --allow, although --allow or --network open lets it "
        "pass; without `:PORTS` at every port; repeatable.",
    ),
]
Network = Annotated[
    str | None,
    typer.Option(
        metavar="none|packages|open",
        help="Instead of --allow: nothing, pip, uv and npm alone, or every address. `packages` "
        "also beside --allow.",
    ),
]
Secret = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=env:VAR@HOST",
        help="Put the value of our variable VAR into requests to that host, which is allowed with "
        "it; inside, NAME has a placeholder. Hosts with commas; repeatable.",
    ),
]
Package = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Install a Python package first, such as `pandas>=2`; repeatable."
    ),
]

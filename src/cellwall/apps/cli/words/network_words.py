"""The options that say where a sandbox may connect to, and what is installed into it first.

Declared once, for `run`, `mcp`, `sandbox create` and `network set`; `network_of` in `one_program`
reads them, where a command line is read without this module's typer.
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
Package = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Install a Python package first, such as `pandas>=2`; repeatable."
    ),
]

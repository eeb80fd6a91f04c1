"""The store of a server, opened by a command, also while the server runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from cellwall.apps.cli.console.extras import check_server
from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from cellwall.server.core.settings import ServerSettings
    from cellwall.store.store import Store

T = TypeVar("T")

Where = Annotated[
    str | None, typer.Option("--store", help="URL of the server's store; default: as `serve`.")
]
Config = Annotated[
    Path | None, typer.Option(envvar="CELLWALL_CONFIG", help="The server's settings, as TOML.")
]


def with_store(
    what: str,
    url: str | None,
    config: Path | None,
    work: Callable[[Store, ServerSettings], Awaitable[T]],
) -> T:
    """Open the store and do `work` with it and the server's settings; `what` it is about."""
    check_server()
    from cellwall.apps.settings_loader import load
    from cellwall.apps.store_place import open_store, store_url
    from cellwall.engine.templates.store import state_dir

    settings = load(config, {"store": url}).server
    where = store_url(settings, state_dir())
    if where is None:
        raise UsageError(f"{what}: that server keeps nothing", remedy="name a store with --store")

    async def opened() -> T:
        store = await open_store(where)
        try:
            return await work(store, settings)
        finally:
            await store.aclose()

    return asyncio.run(opened())

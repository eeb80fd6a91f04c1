"""Client SDK: the library's objects over HTTP, with few dependencies.

Imported by users and `apps`; must never import the engine, a runtime or the jail. `connect` gives
`Sandbox` and `run`, `aconnect` gives `AsyncSandbox` and `arun`; both mean the same as in the
embedded library, carried out by a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cellwall.client.asynchronous import AsyncClient
    from cellwall.client.blocking import Client
    from cellwall.client.connection.address import Address

__all__ = ["aconnect", "connect"]


def connect(
    url: str | Sequence[str] | None = None, api_key: str | None = None, *, timeout_s: float = 60.0
) -> Client:
    """Return a client of the server at `url`, after a check of the key.

    Without arguments CELLWALL_URL (`http://127.0.0.1:8080`) and CELLWALL_API_KEY apply.
    `unix:/path` is a server on a unix socket. Several addresses, as a list or as one text with
    commas, are those of gateways over one directory: the first that can be asked is. `timeout_s` is
    for calls that the server answers at once; programs have limits of their own. Raises UsageError,
    AccessDenied, ServerUnreachable.
    """
    from cellwall.client.blocking import connected

    return connected(_address(url, api_key), timeout_s)


async def aconnect(
    url: str | Sequence[str] | None = None, api_key: str | None = None, *, timeout_s: float = 60.0
) -> AsyncClient:
    """Do what `connect` does, on the caller's event loop."""
    from cellwall.client.asynchronous import connected

    return await connected(_address(url, api_key), timeout_s)


def _address(url: str | Sequence[str] | None, api_key: str | None) -> Address:
    import os

    try:
        import httpx  # noqa: F401 - is it there?
        import websockets  # noqa: F401 - is it there?
    except ModuleNotFoundError as error:
        from cellwall.model.errors import HostUnsupported

        raise HostUnsupported(
            "client",
            f"connect: the package {error.name!r} is not installed",
            remedy="run: pip install 'cellwall[client]'",
        ) from None
    from cellwall.client.connection.address import address_of

    return address_of(url, api_key, os.environ)

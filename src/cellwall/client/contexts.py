"""Contexts of a sandbox on a server; the engine's `contexts` describes them."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING
from urllib.parse import quote

from cellwall.client.connection.transport import Ask
from cellwall.model.context import ContextName, check_name

if TYPE_CHECKING:
    from cellwall.client.live import RemoteSandboxHandle


class Contexts:
    """The contexts of one sandbox."""

    def __init__(self, live: RemoteSandboxHandle) -> None:
        self._live = live

    async def create(self, name: str, language: str = "python") -> ContextName:
        """Create a context of any language that keeps state between cells; return its name."""
        check_name(name)
        body = {"name": name, "language": language}
        answer = await self._live.json(Ask("POST", "/contexts", body=body))
        return ContextName(answer["name"], answer["language"])

    async def list(self) -> builtins.list[ContextName]:
        """Return the names of the contexts that are alive, each with its `language`."""
        answer = await self._live.json(Ask("GET", "/contexts"))
        return [ContextName(each["name"], each["language"]) for each in answer["contexts"]]

    async def close(self, name: str) -> None:
        """Close a context and kill the code that runs in it."""
        await self._live.json(Ask("DELETE", self._path(name), is_repeatable=False))

    async def restart(self, name: str = "main") -> None:
        """End a context's interpreter and start a new one."""
        await self._live.json(Ask("POST", f"{self._path(name)}/restart"))

    async def interrupt(self, name: str = "main") -> None:
        """Raise KeyboardInterrupt in the code that the context runs now."""
        await self._live.json(Ask("POST", f"{self._path(name)}/interrupt"))

    def _path(self, name: str) -> str:
        check_name(name)
        return f"/contexts/{quote(name, safe='')}"

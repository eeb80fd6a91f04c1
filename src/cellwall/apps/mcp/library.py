"""What the tools need of the library, whoever does the work: an engine here, or a server.

Not a third library: a protocol that both have, but for the names of two calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from cellwall.engine.policy.arguments import check_path
from cellwall.model.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.client.asynchronous import AsyncClient
    from cellwall.client.sandbox import AsyncSandbox as ServersSandbox
    from cellwall.engine.engine import Engine
    from cellwall.engine.sandbox import AsyncSandbox as EngineSandbox
    from cellwall.model.execution import Execution
    from cellwall.surface.shared.callbacks import OnEvent
    from cellwall.surface.sync.protocols import AnySandbox


class Library(Protocol):
    """Runs programs and makes sandboxes."""

    async def run(
        self, code: str, on_event: OnEvent | None, options: Mapping[str, Any]
    ) -> Execution:
        """Run `code` once in a fresh sandbox."""

    async def create_sandbox(self, options: Mapping[str, Any]) -> AnySandbox:
        """Return a live sandbox."""

    async def refresh(self, sandbox: AnySandbox) -> None:
        """Learn whether a sandbox, one that `create_sandbox` returned, still lives."""

    async def content(self, sandbox: AnySandbox, path: str, most_bytes: int) -> bytes:
        """Return a file's bytes; `FileError` if there are more, whatever its size was said to be.

        `sandbox` is one that `create_sandbox` returned.
        """

    async def aclose(self) -> None:
        """Let go of what one client used; its sandboxes are closed by then."""


class Embedded:
    """The engine of this process."""

    def __init__(self, engine: Engine) -> None:
        """The engine is its owner's to close."""
        self._engine = engine

    async def run(
        self, code: str, on_event: OnEvent | None, options: Mapping[str, Any]
    ) -> Execution:
        """Run `code` once in a fresh sandbox."""
        return await self._engine.run(code, on_event=on_event, **options)

    async def create_sandbox(self, options: Mapping[str, Any]) -> AnySandbox:
        """Return a live sandbox."""
        return await self._engine.create_sandbox(**options)

    async def refresh(self, sandbox: AnySandbox) -> None:
        """There is nothing to ask: it is one of this process."""

    async def content(self, sandbox: AnySandbox, path: str, most_bytes: int) -> bytes:
        """Return a file's bytes."""
        from cellwall.engine.parts.files import file_error, read_file
        from cellwall.runtimes.channel.replies import GuestRefused

        live = cast("EngineSandbox", sandbox).live
        live.check_alive()
        live.touch()
        try:
            with live.speaking():
                return await read_file(live, check_path(path), most_bytes)
        except GuestRefused as refusal:
            raise file_error(refusal, f"read {path!r}") from None

    async def aclose(self) -> None:
        """There is nothing to let go of."""


class OnServer:
    """A server, with one caller's key."""

    def __init__(self, client: AsyncClient) -> None:
        """The client is ours to close."""
        self._client = client

    async def run(
        self, code: str, on_event: OnEvent | None, options: Mapping[str, Any]
    ) -> Execution:
        """Run `code` once in a fresh sandbox."""
        return await self._client.arun(code, on_event=on_event, **options)

    async def create_sandbox(self, options: Mapping[str, Any]) -> AnySandbox:
        """Return a live sandbox."""
        return await self._client.create_sandbox(**options)

    async def refresh(self, sandbox: AnySandbox) -> None:
        """Ask the server."""
        await cast("ServersSandbox", sandbox).refresh()

    async def content(self, sandbox: AnySandbox, path: str, most_bytes: int) -> bytes:
        """Return a file's bytes."""
        found = bytearray()
        pieces = cast("ServersSandbox", sandbox).files.read_stream(path)
        async for piece in pieces:
            found += piece
            if len(found) > most_bytes:
                raise FileError(
                    f"read {path!r}: it has more than {most_bytes} bytes", reason="too_large"
                )
        return bytes(found)

    async def aclose(self) -> None:
        """Let go of its connections."""
        await self._client.aclose()

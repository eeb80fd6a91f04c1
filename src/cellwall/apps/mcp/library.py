"""Library: the interface that the tools need, implemented by an engine here or by a server.

It is not a third library but a protocol that both offer, apart from the names of two calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from cellwall.model.errors import FileError
from cellwall.surface.shared.arguments import check_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cellwall.client.asynchronous import AsyncClient
    from cellwall.client.sandbox import AsyncSandbox as ServersSandbox
    from cellwall.engine.engine import Engine
    from cellwall.engine.sandbox import AsyncSandbox as EngineSandbox
    from cellwall.model.execution import Execution
    from cellwall.model.snapshot import Snapshot
    from cellwall.surface.shared.callbacks import OnEvent
    from cellwall.surface.sync.protocols import AnySandbox


class Library(Protocol):
    """Runs programs and creates sandboxes."""

    async def run(
        self, code: str, on_event: OnEvent | None, options: Mapping[str, Any]
    ) -> Execution:
        """Run `code` once in a fresh sandbox."""

    async def create_sandbox(self, options: Mapping[str, Any]) -> AnySandbox:
        """Return a live sandbox."""

    async def restore(self, snapshot: str, *, reseed: bool) -> AnySandbox:
        """Return a live sandbox that goes on from a snapshot."""

    async def snapshots(self) -> Sequence[Snapshot]:
        """Return the snapshots of the caller's tenant, the oldest first."""

    async def delete_snapshot(self, snapshot: str) -> None:
        """Delete a snapshot."""

    async def refresh(self, sandbox: AnySandbox) -> None:
        """Update the state of a sandbox that `create_sandbox` returned: it may have ended."""

    async def content(self, sandbox: AnySandbox, path: str, most_bytes: int) -> bytes:
        """Return a file's bytes; `FileError` if there are more than `most_bytes`.

        The announced size of the file is not trusted. `sandbox` is one that `create_sandbox`
        returned.
        """

    async def aclose(self) -> None:
        """Release the resources of one client; its sandboxes are closed by then."""


class Embedded:
    """The engine of this process."""

    def __init__(self, engine: Engine, operators: Mapping[str, Any] | None = None) -> None:
        """Use `engine`, which its owner closes.

        `operators` are options of every sandbox, which the client cannot change: `network`,
        `secrets`, `image`, `user` and `volumes`.
        """
        self._engine = engine
        self._operators = dict(operators or {})

    async def run(
        self, code: str, on_event: OnEvent | None, options: Mapping[str, Any]
    ) -> Execution:
        """Run `code` once in a fresh sandbox."""
        return await self._engine.run(code, on_event=on_event, **{**options, **self._operators})

    async def create_sandbox(self, options: Mapping[str, Any]) -> AnySandbox:
        """Return a live sandbox."""
        return await self._engine.create_sandbox(**{**options, **self._operators})

    async def restore(self, snapshot: str, *, reseed: bool) -> AnySandbox:
        """Return a live sandbox that goes on from a snapshot."""
        return await self._engine.copies.restore(snapshot, "", reseed=reseed)

    async def snapshots(self) -> Sequence[Snapshot]:
        """Return the snapshots of the engine, which has one client."""
        return self._engine.copies.snapshots("")

    async def delete_snapshot(self, snapshot: str) -> None:
        """Delete a snapshot."""
        self._engine.copies.delete(snapshot, "")

    async def refresh(self, sandbox: AnySandbox) -> None:
        """Do nothing: the sandbox is in this process and its state is current."""

    async def content(self, sandbox: AnySandbox, path: str, most_bytes: int) -> bytes:
        """Return a file's bytes."""
        from cellwall.engine.attempts.file_errors import file_error
        from cellwall.engine.parts.files import read_file
        from cellwall.runtimes.channel.replies import GuestRefused

        live = cast("EngineSandbox", sandbox).live
        await live.enter()
        try:
            with live.speaking():
                return await read_file(live, check_path(path), most_bytes)
        except GuestRefused as refusal:
            raise file_error(refusal, f"read {path!r}") from None

    async def aclose(self) -> None:
        """Do nothing: there are no resources to release."""


class OnServer:
    """A server, with one caller's key."""

    def __init__(self, client: AsyncClient) -> None:
        """Own `client` and close it at the end."""
        self._client = client

    async def run(
        self, code: str, on_event: OnEvent | None, options: Mapping[str, Any]
    ) -> Execution:
        """Run `code` once in a fresh sandbox."""
        return await self._client.arun(code, on_event=on_event, **options)

    async def create_sandbox(self, options: Mapping[str, Any]) -> AnySandbox:
        """Return a live sandbox."""
        return await self._client.create_sandbox(**options)

    async def restore(self, snapshot: str, *, reseed: bool) -> AnySandbox:
        """Return a live sandbox that goes on from a snapshot."""
        return await self._client.restore(snapshot, reseed=reseed)

    async def snapshots(self) -> Sequence[Snapshot]:
        """Return the snapshots of the key's tenant."""
        return await self._client.snapshots.list()

    async def delete_snapshot(self, snapshot: str) -> None:
        """Delete a snapshot."""
        await self._client.snapshots.delete(snapshot)

    async def refresh(self, sandbox: AnySandbox) -> None:
        """Read the sandbox's state from the server."""
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
        """Close the client's connections."""
        await self._client.aclose()

"""Sandboxes for OpenAI's `SandboxAgent`: `SandboxRunConfig(client=CellwallSandboxClient())`.

The invariant: a sandbox that a client created is destroyed when its session is closed or deleted,
unless its options say that it is paused then; only such a session finds its files again by itself.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

from cellwall.integrations.openai_agents.sandbox_session import CellwallSandboxSession
from cellwall.integrations.openai_agents.sandboxes import (
    CellwallSandboxClientOptions,
    CellwallSandboxSessionState,
    Sandboxes,
)
from cellwall.integrations.shared.extras import missing

try:
    from agents.sandbox.manifest import Manifest
    from agents.sandbox.session.manager import Instrumentation
    from agents.sandbox.session.sandbox_client import BaseSandboxClient
    from agents.sandbox.snapshot import resolve_snapshot
except ModuleNotFoundError as error:
    raise missing("openai-agents", error) from None

if TYPE_CHECKING:
    from agents.sandbox.session.dependencies import Dependencies
    from agents.sandbox.session.sandbox_session import SandboxSession
    from agents.sandbox.session.sandbox_session_state import SandboxSessionState
    from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec

__all__ = ["CellwallSandboxClient", "CellwallSandboxClientOptions"]

_DEFAULT_ROOT = str(Manifest.model_fields["root"].default)


class CellwallSandboxClient(BaseSandboxClient[CellwallSandboxClientOptions | None]):
    """Creates sandboxes and finds them again, in this process or on a server."""

    backend_id = "cellwall"
    supports_default_options = True

    def __init__(
        self,
        client: Any = None,  # noqa: ANN401 - what `cellwall.connect` returned
        *,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
    ) -> None:
        """Start nothing yet; `client` is a server's, without it sandboxes are this process's."""
        self._sandboxes = Sandboxes(client)
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: CellwallSandboxClientOptions | None = None,
    ) -> SandboxSession:
        """Create a sandbox, and a session whose workspace is a folder of its home.

        A `manifest` with a root of its own keeps it. Raises what `cellwall.Sandbox` does.
        """
        manifest = self._validate_manifest_for_create(manifest or Manifest())
        chosen = options or CellwallSandboxClientOptions()
        sandbox = await asyncio.to_thread(self._sandboxes.create, chosen)
        try:
            if manifest.root == _DEFAULT_ROOT:
                home = (await sandbox.commands.arun("pwd")).stdout.removesuffix("\n")
                manifest = manifest.model_copy(update={"root": f"{home}/workspace"}, deep=True)
            session_id = uuid.uuid4()
            state = CellwallSandboxSessionState(
                session_id=session_id,
                manifest=manifest,
                snapshot=resolve_snapshot(snapshot, str(session_id)),
                sandbox_id=sandbox.id,
                options=chosen,
            )
            inner = CellwallSandboxSession(state, self._sandboxes)
            return self._wrap_session(inner, instrumentation=self._instrumentation)
        except BaseException:
            await asyncio.to_thread(self._sandboxes.end, sandbox.id)
            raise

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Destroy a session's sandbox, also one that is paused; idempotent."""
        inner = session._inner
        if not isinstance(inner, CellwallSandboxSession):
            raise TypeError("CellwallSandboxClient.delete expects a CellwallSandboxSession")
        await asyncio.to_thread(self._sandboxes.end, inner.state.sandbox_id)
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Return a session on the sandbox of `state`; if that is gone, its start creates another.

        The workspace of another one comes from the session's snapshot, if it has one.
        """
        if not isinstance(state, CellwallSandboxSessionState):
            raise TypeError("CellwallSandboxClient.resume expects a CellwallSandboxSessionState")
        state.assert_path_grants_rebound()
        inner = CellwallSandboxSession(state, self._sandboxes)
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Return the state that `serialize_session_state` has made `payload` of."""
        return self._deserialize_session_state_payload(payload, CellwallSandboxSessionState)

    def close(self) -> None:
        """Destroy the sandboxes of this process's sessions that are left; idempotent."""
        for sandbox_id in self._sandboxes.ids():
            self._sandboxes.end(sandbox_id)

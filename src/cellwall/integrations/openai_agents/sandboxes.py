"""The sandboxes of one client of `SandboxAgent`'s: how they are made, found and ended.

A session's state names its sandbox and how that was made, so that another process can find it, or
make another one like it. The invariant: `end` leaves none, whether it was made or found here.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Literal

import cellwall
from cellwall.integrations.shared.extras import missing

try:
    from agents.sandbox.session.sandbox_client import BaseSandboxClientOptions
    from agents.sandbox.session.sandbox_session_state import SandboxSessionState
except ModuleNotFoundError as error:
    raise missing("openai-agents", error) from None

if TYPE_CHECKING:
    from cellwall.surface.sync.sandbox import SyncSandbox


class CellwallSandboxClientOptions(BaseSandboxClientOptions):
    """How sandboxes are made: `CellwallSandboxClientOptions(network=["pypi.org"])`."""

    type: Literal["cellwall"] = "cellwall"
    template: str = "python"
    image: str | None = None
    """Reference of a container image whose tree is the sandbox's root, in place of a template."""
    network: Any = None
    """Network policy, as `cellwall.Sandbox` takes it; None: there is no network."""
    limits: dict[str, float] | None = None
    """Limits by name; None: `Limits.agent()`."""
    pause_on_exit: bool = False
    """Whether closing a session pauses its sandbox, so that `resume` finds it, processes included.
    It lives on until its session is deleted, or its life is over."""


class CellwallSandboxSessionState(SandboxSessionState):
    """State of one session, as JSON between processes."""

    type: Literal["cellwall"] = "cellwall"
    sandbox_id: str
    options: CellwallSandboxClientOptions


class Sandboxes:
    """The sandboxes of one client, by id; safe to use from several threads."""

    def __init__(self, client: Any) -> None:  # noqa: ANN401 - what `cellwall.connect` returned
        """`client` is a server's; None: sandboxes are this process's own."""
        self._client = client
        self._known: dict[str, SyncSandbox] = {}
        self._lock = threading.Lock()

    def create(self, options: CellwallSandboxClientOptions) -> SyncSandbox:
        """Create a sandbox. Raises what `cellwall.Sandbox` does."""
        make = cellwall.Sandbox if self._client is None else self._client.Sandbox
        chosen: dict[str, Any] = {"limits": options.limits or cellwall.Limits.agent()}
        if options.image is None:
            chosen["template"] = options.template
        else:
            chosen["image"] = options.image
        if options.network is not None:
            chosen["network"] = options.network
        made: SyncSandbox = make(**chosen)
        with self._lock:
            self._known[made.id] = made
        return made

    def find(self, sandbox_id: str) -> SyncSandbox | None:
        """Return the sandbox of that id; None if there is none any more."""
        with self._lock:
            found = self._known.get(sandbox_id)
        if found is None and self._client is not None:
            try:
                found = self._client.attach(sandbox_id)
            except cellwall.NotFound:
                return None
            with self._lock:
                self._known[sandbox_id] = found
        return None if found is None or found.status == "stopped" else found

    def end(self, sandbox_id: str) -> None:
        """Destroy a sandbox; idempotent."""
        found = self.find(sandbox_id)
        with self._lock:
            self._known.pop(sandbox_id, None)
        if found is not None:
            found.close()

    def ids(self) -> list[str]:
        """Return the ids of those that were created, or found, and not ended."""
        with self._lock:
            return list(self._known)

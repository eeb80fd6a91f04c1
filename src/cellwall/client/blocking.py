"""Blocking client: `run`, `Sandbox` and the server's other objects, for synchronous programs.

Made by `connect`. Each call is passed to an `AsyncClient` on a background thread; callbacks run in
the caller's thread, those of background commands on the background thread.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from cellwall.client.asynchronous import AsyncClient
from cellwall.client.images import Images
from cellwall.client.sandbox import AsyncSandbox
from cellwall.client.snapshots import Snapshots
from cellwall.client.submitted import Submitted
from cellwall.client.templates.calls import Templates
from cellwall.client.volumes import Volumes
from cellwall.surface.shared.closing import Closing
from cellwall.surface.sync.loop_thread import LoopThread, Put, at_exit
from cellwall.surface.sync.sandbox import SyncSandbox

if TYPE_CHECKING:
    import builtins
    from collections.abc import Coroutine, Mapping

    from cellwall.client.connection.address import Address
    from cellwall.client.connection.transport import Json
    from cellwall.model.execution import Execution
    from cellwall.model.limits import Limits
    from cellwall.surface.shared.callbacks import OnEvent

    Thread = LoopThread[AsyncClient]


class RemoteSandbox(SyncSandbox):
    """One live sandbox on a server."""

    def __init__(self, thread: Thread, remote: AsyncSandbox) -> None:
        super().__init__(thread, remote)
        self._remote = remote

    def _twin(self, inner: AsyncSandbox) -> RemoteSandbox:
        return RemoteSandbox(self._thread, inner)

    @property
    def status(self) -> str:
        """`running`, `paused` or `hibernated` until it is closed or has ended; asks the server."""
        if self._remote.status != "stopped":
            self._thread.call(lambda _client, _put: self._remote.refresh())
        return self._remote.status

    @property
    def facts(self) -> Json:
        """The server's object of it, as last received."""
        return self._remote.facts

    @property
    def name(self) -> str | None:
        """Name given by its owner."""
        return self._remote.name

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata given by its owner."""
        return self._remote.metadata

    @property
    def clipped(self) -> Mapping[str, float]:
        """Requested limits that were above the operator's ceilings."""
        return self._remote.clipped

    def change(
        self,
        *,
        life_s: float | None = None,
        name: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Change its remaining lifetime, its name or (all of) its metadata."""
        self._thread.call(
            lambda _client, _put: self._remote.change(life_s=life_s, name=name, metadata=metadata)
        )

    def metrics(self) -> Json:
        """Return its counters, from the kernel."""
        return self._thread.call(lambda _client, _put: self._remote.metrics())

    def logs(self, after: int = 0, limit: int = 100) -> builtins.list[Json]:
        """Return its log records after number `after`, oldest first."""
        return self._thread.call(lambda _client, _put: self._remote.logs(after, limit))


class Client(Closing):
    """One server, for one caller."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread
        self.images = Images(thread)
        """Images that the caller may name."""
        self.volumes = Volumes(thread)
        """Volumes of the caller's tenant."""
        self.snapshots = Snapshots(thread)
        """Snapshots of the caller's tenant."""
        self.templates = Templates(thread)
        """Templates that the caller's tenant builds."""

    @property
    def url(self) -> str:
        """Address of the server."""
        return self._thread.subject.url

    def run(
        self,
        code: str,
        *,
        on_event: OnEvent | None = None,
        **options: Any,  # noqa: ANN401 - of AsyncClient.arun
    ) -> Execution:
        """Run `code` once in a fresh sandbox; options as in `cellwall.run`."""

        def work(client: AsyncClient, put: Put) -> Coroutine[Any, Any, Execution]:
            return client.arun(code, on_event=None if on_event is None else put, **options)

        return self._thread.call(work, on_event)

    def submit(self, code: str, **options: Any) -> Submitted:  # noqa: ANN401 - of AsyncClient.arun
        """Let `code` run in the background; return once the request is on the server's disk.

        Options as in `cellwall.run`, except `on_event` and `tools`. It runs once, even if the
        server is killed before its turn; if that happens during the run, its result is the error
        `Interrupted`.
        """
        made = self._thread.call(lambda client, _put: client.submit(code, **options))
        return Submitted(self._thread, made)

    def execution(self, execution_id: str) -> Submitted:
        """Return an execution that was submitted before, perhaps by another process."""
        return Submitted(self._thread, self._thread.subject.execution(execution_id))

    def restore(self, snapshot: str, *, reseed: bool = True) -> RemoteSandbox:
        """Return a new sandbox that is the session of a snapshot, by its id or its name."""
        made = self._thread.call(lambda client, _put: client.restore(snapshot, reseed=reseed))
        return RemoteSandbox(self._thread, made)

    def Sandbox(
        self,
        template: str = "python",
        limits: Limits | Mapping[str, Any] | None = None,
        **options: Any,  # noqa: ANN401 - of AsyncClient.create_sandbox
    ) -> RemoteSandbox:
        """Create a sandbox: `with client.Sandbox() as sandbox`."""
        made = self._thread.call(
            lambda client, _put: client.create_sandbox(template, limits, **options)
        )
        return RemoteSandbox(self._thread, made)

    def attach(self, sandbox_id: str) -> RemoteSandbox:
        """Return an existing sandbox; leaving its `with` block closes it like a created one."""
        found = self._thread.call(lambda client, _put: client.attach(sandbox_id))
        return RemoteSandbox(self._thread, found)

    def sandboxes(
        self, *, state: str | None = None, metadata: Mapping[str, str] | None = None
    ) -> builtins.list[RemoteSandbox]:
        """Return the caller's sandboxes, newest first; including those that ended recently."""
        found = self._thread.call(
            lambda client, _put: client.sandboxes(state=state, metadata=metadata)
        )
        return [RemoteSandbox(self._thread, each) for each in found]

    def statistics(self) -> Json:
        """Return the server's numbers: the object of `GET /stats`."""
        return self._thread.call(lambda client, _put: client.statistics())

    def nodes(self) -> builtins.list[dict[str, Any]]:
        """Return a cluster's nodes as its gateway knows them; as `AsyncClient.nodes`."""
        return self._thread.call(lambda client, _put: client.nodes())

    def drain(self, node: str) -> Json:
        """Have a node of a cluster take nothing new; as `AsyncClient.drain`."""
        return self._thread.call(lambda client, _put: client.drain(node))

    def undrain(self, node: str) -> Json:
        """Have a drained node take new work again; as `AsyncClient.undrain`."""
        return self._thread.call(lambda client, _put: client.undrain(node))

    def close(self) -> None:
        """Close the connections; sandboxes live on, calls of other threads end as `Conflict`.

        Idempotent.
        """
        self._thread.close()


def connected(address: Address, timeout_s: float) -> Client:
    """Return a client whose server answers and knows the key."""
    thread: Thread = LoopThread(lambda: AsyncClient(address, timeout_s))
    client = Client(thread)
    try:
        client.statistics()
    except BaseException:
        client.close()
        raise
    close = weakref.WeakMethod(client.close)

    def close_if_there() -> None:
        if (still := close()) is not None:
            still()

    at_exit(close_if_there)
    return client

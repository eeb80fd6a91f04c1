"""A sandbox without `await`: each call is forwarded to the asynchronous one on the loop's thread.

This is the base of the embedded library's `Sandbox` and of the SDK's; they only differ in how a
sandbox is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from cellwall.model.execution import DEFAULT_BUDGET_CHARS
from cellwall.model.snapshot import DAY_S, Fork
from cellwall.surface.shared.callbacks import OnEvent, OnText, by_stream
from cellwall.surface.shared.closing import Closing
from cellwall.surface.sync.commands import SyncCommands
from cellwall.surface.sync.contexts import SyncContexts
from cellwall.surface.sync.files import SyncFiles
from cellwall.surface.sync.loop_thread import Ended

if TYPE_CHECKING:
    from cellwall.model.execution import CommandResult, Event, Execution, Installation
    from cellwall.model.limits import Limits
    from cellwall.model.network import NetworkPolicy
    from cellwall.model.outcome import Isolation, NetworkUsage
    from cellwall.model.snapshot import Keep, Scope, Snapshot, Threads
    from cellwall.surface.sync.loop_thread import LoopThread
    from cellwall.surface.sync.ports import SyncPorts
    from cellwall.surface.sync.protocols import AnySandbox


class SyncSandbox(Closing):
    """One live sandbox."""

    def __init__(self, thread: LoopThread[Any], inner: AnySandbox) -> None:
        """Forward to `inner`, which lives on `thread`."""
        self._thread = thread
        self._inner = inner
        self.contexts = SyncContexts(thread, inner)
        self.commands = SyncCommands(thread, inner)
        self.files = SyncFiles(thread, inner)

    @cached_property
    def ports(self) -> SyncPorts:
        """Connections to servers inside."""
        from cellwall.surface.sync.ports import SyncPorts

        return SyncPorts(self._thread, self._inner)

    @property
    def id(self) -> str:
        """The id of the sandbox."""
        return self._inner.id

    @property
    def status(self) -> str:
        """`running`, `paused` or `hibernated` until it is closed or has ended: `stopped`."""
        return self._inner.status

    @property
    def template(self) -> str:
        """The name of the sandbox's template."""
        return self._inner.template

    @property
    def created_at(self) -> float:
        """When the sandbox was made, in seconds since the epoch."""
        return self._inner.created_at

    @property
    def ends_at(self) -> float:
        """When the sandbox's whole life ends, in seconds since the epoch."""
        return self._inner.ends_at

    @property
    def isolation(self) -> Isolation:
        """The isolation that really runs."""
        return self._inner.isolation

    @property
    def trust(self) -> str | None:
        """The word of trust in the request for the sandbox, if it had one."""
        return self._inner.trust

    @property
    def limits(self) -> Limits:
        """The limits that apply to the sandbox."""
        return self._inner.limits

    def run(  # noqa: PLR0913 - each is a choice of the caller's
        self,
        code: str,
        language: str | None = None,
        context: str = "main",
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_event: OnEvent | None = None,
        tools: Any = None,  # noqa: ANN401 - as of the asynchronous sandbox
    ) -> Execution:
        """Run a cell in a context, or a program of a language that keeps no state beside it.

        `tools` are those of this run instead of the sandbox's own.
        """
        given = {} if tools is None else {"tools": tools}
        deliver = by_stream(on_stdout, on_stderr, on_event)
        return self._thread.call(
            lambda _subject, put: self._inner.run(
                code,
                language,
                context,
                stdin=stdin,
                timeout=timeout,
                on_event=None if deliver is None else put,
                **given,
            ),
            deliver,
        )

    async def arun(self, code: str, language: str | None = None, **options: Any) -> Execution:  # noqa: ANN401 - of run
        """Do what `run` does for a caller on an event loop, which goes on meanwhile.

        Callbacks run on the loop's thread. Cancelling the call cancels the run.
        """
        return await self._thread.acall(lambda _subject: self._inner.run(code, language, **options))

    def stream(self, code: str, **options: Any) -> Generator[Event, None, None]:  # noqa: ANN401 - of run
        """Yield the events of `run(code, …)` as they come; the last one is `end`.

        Closing the generator early cancels the run.
        """
        with contextlib.closing(
            self._thread.iterate(
                lambda _subject, put: self._inner.run(code, on_event=put, **options)
            )
        ) as items:
            for item in items:
                if not isinstance(item, Ended):
                    yield item
                elif item.error is not None:
                    raise item.error

    def fork(
        self,
        count: int = 1,
        *,
        reseed: bool = True,
        scope: Scope | None = None,
        threads: Threads = "refuse",
    ) -> list[Fork[Self]]:
        """Return copies of this sandbox: its Python session and its files, each on its own.

        A runtime that can copies every process, too; with `scope="tree"` none does less.

        Each entry has a sandbox or the error in its place, and what the copies have not. Random
        generators that programs share are seeded anew unless `reseed` is false. A session with
        threads beside its own is refused, or copied without them if `threads` is "drop". Raises
        Conflict with the reason if the session cannot be copied.
        """
        made = self._thread.call(
            lambda _subject, _put: self._inner.fork(
                count, reseed=reseed, scope=scope, threads=threads
            )
        )
        return [
            Fork(
                None if each.made is None else self._twin(each.made),
                each.error,
                each.left_behind,
                each.carries,
            )
            for each in made
        ]

    def _twin(self, inner: Any) -> Self:  # noqa: ANN401 - as `inner` of the constructor
        """Return the synchronous face of another sandbox of the same kind."""
        raise NotImplementedError

    def snapshot(
        self,
        name: str | None = None,
        *,
        expires_s: float = DAY_S,
        scope: Scope | None = None,
        threads: Threads = "refuse",
    ) -> Snapshot:
        """Keep the session and the files as they are now, for `restore`, for `expires_s` seconds.

        Raises as `fork`, and CapacityError if snapshots have no room.
        """
        return self._thread.call(
            lambda _subject, _put: self._inner.snapshot(
                name, expires_s=expires_s, scope=scope, threads=threads
            )
        )

    def interrupt(self, context: str = "main") -> None:
        """Raise KeyboardInterrupt in the code that the context runs now."""
        self._thread.call(lambda _subject, _put: self._inner.interrupt(context))

    def for_model(
        self, result: Execution | CommandResult, budget_chars: int = DEFAULT_BUDGET_CHARS
    ) -> str:
        """Tell a language model what ran in here; text that is left out stays in a file inside.

        `result` is what `run` or `commands.run` of this sandbox returned; the note on a cut names
        the file.
        """
        return self._thread.call(lambda _subject, _put: self._inner.for_model(result, budget_chars))

    @property
    def network(self) -> NetworkPolicy:
        """The network policy that applies now."""
        return self._inner.network

    def set_network(self, policy: object) -> NetworkPolicy:
        """Change the network policy, such as to `["example.org"]`, and return it.

        Connections that it does not allow are closed.
        """
        return self._thread.call(lambda _subject, _put: self._inner.set_network(policy))

    def network_usage(self) -> NetworkUsage:
        """Return what the sandbox has used of the network since its start."""
        return self._thread.call(lambda _subject, _put: self._inner.network_usage())

    def network_log(self) -> list[dict[str, Any]]:
        """Return the latest thousand records: connections, their ends, and refusals."""
        return self._thread.call(lambda _subject, _put: self._inner.network_log())

    def install(self, packages: Iterable[str], *, timeout: float | None = None) -> Installation:
        """Install Python packages, such as `["requests", "pandas>=2"]`; wheels only.

        Its contexts import them without a restart. Raises `UsageError` with the reason if one
        cannot be installed. `timeout`: seconds, 120 without it.
        """
        wanted = list(packages)
        return self._thread.call(
            lambda _subject, _put: self._inner.install(wanted, timeout=timeout)
        )

    def extend(self, life_s: float) -> None:
        """Let the sandbox live `life_s` seconds from now."""
        self._thread.call(lambda _subject, _put: self._inner.extend(life_s))

    def pause(self) -> None:
        """Stop its processes where they are; return when they stand still. Idempotent.

        Its deadlines, idle time and life stand still, too, and it uses no CPU time. A request
        resumes it, or with `resume="manual"` is refused as Conflict; looking at it does neither.
        Raises HostUnsupported where the runtime cannot, SandboxUnavailable if it has ended.
        """
        self._thread.call(lambda _subject, _put: self._inner.pause())

    def resume(self) -> None:
        """Let its processes go on; nothing happens if they run.

        A hibernated one comes back in fresh ones. Raises CapacityError if there is no room for it
        now; it is hibernated then as before.
        """
        self._thread.call(lambda _subject, _put: self._inner.resume())

    def hibernate(self, *, drop: bool = False, keep: Keep = "session") -> tuple[str, ...]:
        """Write its session and files to disk and end its processes; it uses no memory then.

        It goes on under its id with the next request or `resume`, as after a pause. What a snapshot
        leaves behind is refused as Conflict, unless `drop`: then it ends, and is returned by name.
        With `keep="files"` all that runs ends so, the session and executions under way, too, and
        a fresh sandbox with its files goes on. Idempotent. Raises HostUnsupported where the runtime
        cannot.
        """
        return self._thread.call(lambda _subject, _put: self._inner.hibernate(drop=drop, keep=keep))

    def close(self) -> None:
        """Destroy the sandbox; idempotent."""
        self._thread.call(lambda _subject, _put: self._inner.close())

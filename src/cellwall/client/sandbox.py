"""Sandbox on a server, with the names of the embedded library's sandbox.

Made by `AsyncClient`; the synchronous twin in `blocking` forwards to it. The sandbox lives on the
server: the loss of this object or its connection does not end it, its idle time and lifetime do.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from cellwall.client.commands import Commands
from cellwall.client.connection.attempts import Attempt
from cellwall.client.connection.transport import Ask
from cellwall.client.contexts import Contexts
from cellwall.client.files import Files
from cellwall.client.live import RemoteSandboxHandle
from cellwall.model.errors import CellwallError, NotFound, SandboxUnavailable
from cellwall.model.execution import DEFAULT_BUDGET_CHARS, Installation
from cellwall.model.ids import new_id
from cellwall.model.network import NetworkPolicy
from cellwall.model.outcome import Verdict
from cellwall.model.snapshot import DAY_S, Fork, check_keep
from cellwall.surface.shared.callbacks import OnEvent, OnText, by_stream
from cellwall.surface.tools.tools import box_of
from cellwall.wire import asking
from cellwall.wire.reading import error_of, execution_of, network_usage_of, snapshot_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cellwall.client.connection.transport import Json, Transport
    from cellwall.client.ports import Ports
    from cellwall.model.execution import CommandResult, Event, Execution
    from cellwall.model.limits import Limits
    from cellwall.model.outcome import Isolation, NetworkUsage
    from cellwall.model.snapshot import Keep, Scope, Snapshot, Threads
    from cellwall.surface.tools.tools import Offer, Tools


class AsyncSandbox:
    """One live sandbox."""

    def __init__(self, transport: Transport, facts: Json, tools: Offer | None = None) -> None:
        """Called by `AsyncClient`; callers use `client.AsyncSandbox.create`."""
        self._tools = tools
        self._live = RemoteSandboxHandle(transport, facts)
        self.contexts = Contexts(self._live)
        self.commands = Commands(self._live)
        self.files = Files(self._live)

    # -- facts -----------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Id of the sandbox."""
        return self._live.id

    @property
    def status(self) -> Literal["running", "paused", "hibernated", "stopped"]:
        """The server's last report; `refresh` asks again."""
        if not self._live.is_alive:
            return "stopped"
        told = self._live.facts["status"]
        if told == "hibernated":
            return "hibernated"
        return "paused" if told == "paused" else "running"

    @property
    def isolation(self) -> Isolation:
        """Isolation that is in force."""
        return self._live.isolation

    @property
    def trust(self) -> str | None:
        """Trust word of the request, if one was given."""
        return self._live.trust

    @property
    def limits(self) -> Limits:
        """Limits that apply."""
        return self._live.limits

    @property
    def facts(self) -> Json:
        """The server's object of it, as last received."""
        return self._live.facts

    @property
    def clipped(self) -> Mapping[str, float]:
        """Requested limits that were above the operator's ceilings."""
        return dict(self._live.facts["clipped"])

    @property
    def template(self) -> str:
        """Name of its template."""
        return str(self._live.facts["template"])

    @property
    def name(self) -> str | None:
        """Name given by its owner."""
        name: str | None = self._live.facts["name"]
        return name

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata given by its owner."""
        return dict(self._live.facts["metadata"])

    @property
    def created_at(self) -> float:
        """Time of its creation, in seconds since the epoch."""
        return self._live.created_at

    @property
    def ends_at(self) -> float:
        """End of its lifetime, in seconds since the epoch."""
        return self._live.ends_at

    @cached_property
    def ports(self) -> Ports:
        """Connections to servers inside."""
        from cellwall.client.ports import Ports

        return Ports(self._live)

    @property
    def network(self) -> NetworkPolicy:
        """Network policy, as the server last reported it."""
        return NetworkPolicy.of(self._live.facts.get("network") or None)

    async def set_network(self, policy: object) -> NetworkPolicy:
        """Change the network policy, such as to `["example.org"]`, and return it.

        Connections that it does not allow are closed.
        """
        body = NetworkPolicy.of(policy).as_json()
        answer = await self._live.json(Ask("PUT", "/network", body=body))
        self._live.facts["network"] = answer["policy"]
        return self.network

    async def install(
        self,
        packages: Iterable[str],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - a limit of the sandbox, not of the await
    ) -> Installation:
        """Install Python packages, such as `["requests", "pandas>=2"]`; wheels only.

        Its contexts import them without a restart. Raises `UsageError` with the reason if one
        cannot be installed. `timeout`: seconds, 120 without it.
        """
        body = {
            "packages": asking.words(list(packages), "packages"),
            **asking.given(timeout=timeout),
        }
        answer = await self._live.json(Ask("POST", "/packages", body=body, is_held=True))
        return Installation(tuple(answer["installed"]))

    async def network_usage(self) -> NetworkUsage:
        """Return what the sandbox has used of the network since its start."""
        return network_usage_of((await self._live.json(Ask("GET", "/network")))["usage"])

    async def network_log(self) -> list[Json]:
        """Return the latest thousand records: connections, their ends, and refusals."""
        records: list[Json] = (await self._live.json(Ask("GET", "/network/log")))["records"]
        return records

    async def refresh(self) -> None:
        """Update the state from the server."""
        try:
            self._live.take(await self._live.json(Ask("GET", "")))
        except NotFound:  # it ended so long ago that the server has forgotten it
            self._live.ended()

    async def metrics(self) -> Json:
        """Return its counters, from the kernel: the object of `GET /sandboxes/{id}/metrics`."""
        return await self._live.json(Ask("GET", "/metrics"))

    async def logs(self, after: int = 0, limit: int = 100) -> list[Json]:
        """Return its log records after number `after`, oldest first."""
        answer = await self._live.json(Ask("GET", "/logs", {"after": after, "limit": limit}))
        records: list[Json] = answer["records"]
        return records

    # -- state -----------------------------------------------------------------------------

    async def fork(
        self,
        count: int = 1,
        *,
        reseed: bool = True,
        scope: Scope | None = None,
        threads: Threads = "refuse",
    ) -> list[Fork[AsyncSandbox]]:
        """Return copies of this sandbox: its Python session and its files, each on its own.

        Each entry has a sandbox or the error in its place, and what the copies have not. Random
        generators that programs share are seeded anew unless `reseed` is false. A session with
        threads beside its own is refused, or copied without them if `threads` is "drop". Raises
        Conflict with the reason if the session cannot be copied.
        """
        body = {"count": count, "reseed": reseed, "threads": threads, **asking.given(scope=scope)}
        answer = await self._live.json(Ask("POST", "/fork", body=body, key=new_id(), is_held=True))
        return [
            Fork(
                None
                if each["sandbox"] is None
                else AsyncSandbox(self._live.transport, each["sandbox"], self._tools),
                None if each["error"] is None else error_of(each["error"]),
                tuple(each["left_behind"]),
                each["carries"],
            )
            for each in answer["forks"]
        ]

    async def snapshot(
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
        given = asking.given(name=name, scope=scope)
        body = {"expires_s": expires_s, "threads": threads, **given}
        return snapshot_of(
            await self._live.json(Ask("POST", "/snapshots", body=body, key=new_id(), is_held=True))
        )

    # -- running code ----------------------------------------------------------------------

    async def run(  # noqa: PLR0913 - each is a choice of the caller's
        self,
        code: str,
        language: str | None = None,
        context: str = "main",
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - a limit of the sandbox, not of the await
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_event: OnEvent | None = None,
        tools: Tools | None = None,
    ) -> Execution:
        """Run a cell in a context, or a program of a language that keeps no state beside it.

        `tools` replace the sandbox's own for this run; none is available if it is empty.
        """
        attempt = self._attempt(code, language, context, stdin, timeout, tools)
        deliver = by_stream(on_stdout, on_stderr, on_event)
        try:
            execution = execution_of(await attempt.perform(deliver))
        except SandboxUnavailable:
            self._live.ended()
            raise
        await self._after(execution.verdict)
        return execution

    async def stream(
        self,
        code: str,
        language: str | None = None,
        context: str = "main",
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - a limit of the sandbox, not of the await
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of `run(code, …)` as they come; the last one is `end`.

        A slow reader pauses the sandbox; a reader that takes nothing for a minute loses its
        connection, and gets a `gap` in place of events that are no longer kept.
        """
        attempt = self._attempt(code, language, context, stdin, timeout)
        async with contextlib.aclosing(attempt.events()) as events:
            async for event in events:
                if event.outcome is not None:
                    await self._after(event.outcome.verdict)
                yield event

    async def _after(self, verdict: Verdict) -> None:
        """Update the sandbox's state after an end; one at its memory limit mostly ends alone."""
        if verdict is Verdict.SANDBOX_ERROR:
            self._live.ended()
        elif verdict is Verdict.MEMORY:
            # the answer counts; the next call reports the error
            with contextlib.suppress(CellwallError):
                await self.refresh()

    def _attempt(
        self,
        code: str,
        language: str | None,
        context: str,
        stdin: str | bytes | None,
        timeout_s: float | None,
        tools: Tools | None = None,
    ) -> Attempt:
        box = self._tools if tools is None else box_of(tools)
        # A run's own tools must be callable in its language, the sandbox's need not be.
        manifest = None if box is None else box.manifest
        body = {
            **asking.source(code),
            **asking.stdin(stdin),
            **asking.given(language=language, context=context, timeout=timeout_s),
            **asking.tools(manifest, is_optional=tools is None),
        }
        return Attempt(self._live.transport, self._live.path("/execute"), body, tools=box)

    async def interrupt(self, context: str = "main") -> None:
        """Raise KeyboardInterrupt in the code that the context runs now."""
        await self.contexts.interrupt(context)

    async def for_model(
        self, result: Execution | CommandResult, budget_chars: int = DEFAULT_BUDGET_CHARS
    ) -> str:
        """Describe a result to a language model; the omitted output stays in a file inside."""
        from cellwall.surface.shared.kept_output import for_model

        return await for_model(self, result, budget_chars)

    # -- life ------------------------------------------------------------------------------

    async def extend(self, life_s: float) -> None:
        """Let the sandbox live `life_s` seconds from now."""
        self.limits.with_changes({"life_s": life_s})  # checks the number
        await self.change(life_s=life_s)

    async def pause(self) -> None:
        """Stop its processes where they are; return when they stand still. Idempotent.

        Its deadlines, idle time and life stand still, too, and it uses no CPU time. A request
        resumes it, or with `resume="manual"` is refused as Conflict; looking at it does neither.
        """
        self._live.take(await self._live.json(Ask("POST", "/pause", is_repeatable=True)))

    async def resume(self) -> None:
        """Let its processes go on; nothing happens if they run.

        A hibernated one comes back in fresh ones. Raises CapacityError if there is no room for it
        now; it is hibernated then as before.
        """
        self._live.take(await self._live.json(Ask("POST", "/resume", is_repeatable=True)))

    async def hibernate(self, *, drop: bool = False, keep: Keep = "session") -> tuple[str, ...]:
        """Write its session and files to disk and end its processes; it uses no memory then.

        It goes on under its id with the next request or `resume`, as after a pause. What a snapshot
        leaves behind is refused as Conflict, unless `drop`: then it ends, and is returned by name.
        With `keep="files"` all that runs ends so, the session and executions under way, too, and
        a fresh sandbox with its files goes on.
        """
        body = {"drop": drop, "keep": check_keep(keep)}
        ask = Ask("POST", "/hibernate", body=body, is_repeatable=True)
        answer = await self._live.json(ask)
        left: list[str] = answer.pop("left_behind")
        self._live.take(answer)
        return tuple(left)

    async def change(
        self,
        *,
        life_s: float | None = None,
        name: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Change its remaining lifetime, its name or (all of) its metadata."""
        body = asking.given(life_s=life_s, name=name, metadata=metadata)
        ask = Ask("PATCH", "", body=body, is_repeatable=True)
        self._live.take(await self._live.json(ask))

    async def close(self) -> None:
        """Destroy the sandbox; running executions end as cancelled. Idempotent."""
        with contextlib.suppress(NotFound):  # it ended so long ago that the server has forgotten it
            await self._live.json(Ask("DELETE", ""))
        self._live.ended()

    async def __aenter__(self) -> AsyncSandbox:
        """Enter a context manager that closes the sandbox."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the sandbox."""
        await self.close()

"""Sandbox: the object that callers hold, with its contexts, commands, files and lifetime.

Made by `Engine.create_sandbox`; the synchronous twin in `embedded` forwards to it. It belongs to
one owner until its owner, its idle time or lifetime, or the engine closes it. The invariant: once
closed or killed it stays so, and every call raises the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cellwall.engine.attempts.attempt import OnStart
from cellwall.engine.attempts.event_stream import events_of
from cellwall.engine.attempts.verdicts import Cause
from cellwall.engine.parts.commands import Commands
from cellwall.engine.parts.contexts import Contexts, called, inside
from cellwall.engine.parts.files import Files
from cellwall.engine.parts.kept import Facts
from cellwall.engine.parts.network import change, policy_of
from cellwall.engine.parts.pausing import Pausing
from cellwall.engine.policy.arguments import check_source, check_stdin
from cellwall.engine.programs.session_runs import Run, SessionRuns
from cellwall.engine.state.hibernation import Hibernation
from cellwall.languages import registry
from cellwall.model.errors import CellwallError
from cellwall.model.execution import DEFAULT_BUDGET_CHARS
from cellwall.model.outcome import Isolation, NetworkUsage, Outcome, Verdict
from cellwall.model.snapshot import DAY_S, CopyChoice, check_keep
from cellwall.runtimes.keeping import Keepable
from cellwall.surface.shared.callbacks import OnEvent, OnText, by_stream
from cellwall.surface.shared.closing import Opening

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.history.room import Share
    from cellwall.engine.parts.network import Outside
    from cellwall.engine.parts.pausing import Standstill
    from cellwall.engine.parts.ports import Ports
    from cellwall.engine.policy.pause_choice import PauseChoice
    from cellwall.engine.state.copies import Copies, Heritage
    from cellwall.engine.state.stored_image import StoredImage
    from cellwall.model.execution import CommandResult, Event, Execution, Installation
    from cellwall.model.limits import Limits
    from cellwall.model.network import NetworkPolicy
    from cellwall.model.snapshot import Fork, Keep, Scope, Snapshot, Threads
    from cellwall.runtimes.channel.channel import GuestChannel
    from cellwall.runtimes.channel.take_over import ContextFound
    from cellwall.surface.shared.tasks import Tasks
    from cellwall.surface.tools.tools import Offer, Tools

Status = Literal["running", "paused", "hibernated", "stopped"]


class EngineParts(NamedTuple):
    """The parts of an engine that its sandboxes use."""

    tasks: Tasks
    outside: Outside
    copies: Callable[[], Copies]


class AsyncSandbox:
    """One live sandbox."""

    def __init__(
        self,
        live: ClaimedSandbox,
        parts: EngineParts,
        on_closed: Callable[[AsyncSandbox], None],
        tools: Offer | None,
        share: Share,
        pauses: PauseChoice,
    ) -> None:
        """Called by the engine; callers use `Engine.create_sandbox` or `AsyncSandbox.create`."""
        tasks, self._outside, self._copies = parts
        self.live = live
        self._tools = tools
        self._tenant = share.tenant
        self._tasks = tasks
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self.created_at = time.time()
        self._closed = False
        self.is_kept = False
        """Whether it outlives this process."""
        self.lost = ""
        """What it lost when it was taken over from an earlier server."""
        self.lost_bytes = 0
        """Number of bytes that it had sent then, and that the earlier server had not read."""
        self._listeners: list[Callable[[str], None]] = []
        self.contexts = Contexts(live)
        self.commands = Commands(live, tasks)
        self.commands.on_changed = self._keep_again
        self.files = Files(live, share)
        self._runs = SessionRuns(live, self.contexts, self.files, tools)
        self.pauses = pauses
        """Its owner's choice about pauses."""
        self._pausing = Pausing(live, tasks, pauses, self._end)
        self._pausing.on_turned = self._on_turned
        live.pausing = self._pausing
        self.hibernation = self._pausing.hibernation = Hibernation(
            self, self._copies, parts.outside
        )
        """What hibernates it, for the engine and the server."""
        self._was_kept = False
        self._follow()

    # -- beyond this process ---------------------------------------------------------------

    def keep(self) -> None:
        """Have it outlive this process, if its kind can; again when what is kept has changed."""
        held = self.live.runtime_sandbox
        if isinstance(held, Keepable):
            self.is_kept = held.keep(Facts.of(self, self._tenant).as_json())

    def _keep_again(self) -> bool:
        """Write anew what is kept; False if it is not kept, or there would be too much."""
        if not self.is_kept or self._closed:
            return False
        try:
            self.keep()
        except CellwallError:  # what was kept before stays kept
            return False
        return self.is_kept

    def _on_turned(self) -> None:
        """Note that the time of its commands stands still, or goes on."""
        if self.commands.kept():
            self._keep_again()

    def go_on(self, facts: Facts, contexts: Iterable[ContextFound]) -> None:
        """Go on with what an earlier process kept of it."""
        self.is_kept = True
        self.live.claimed_kills = facts.kills
        self.commands.left = facts.left_commands
        self.created_at = facts.created_at
        self._pausing.extend(facts.left_s)
        self.contexts.resume(contexts)

    def sleep_on(self, stored: StoredImage, *, is_kept_later: bool) -> None:
        """Go on as one that an earlier process has hibernated; made without processes.

        `is_kept_later`: whether it is to outlive this process once it has some.
        """
        header, asleep = stored.header, stored.asleep
        self.created_at = header.created_at
        self._was_kept = is_kept_later
        self.lost = ", ".join(f"tool {name!r} of the host" for name in header.tools)
        self._pausing.sleep_on(asleep.stand)
        self.contexts.sleep_on(asleep.contexts)
        if not header.has_session:
            self.contexts.begin_anew()
        self.hibernation.sleep_on(stored)

    async def pause_again(self) -> None:
        """Pause what an earlier process had paused, unless a caller uses it by now."""
        recorders = {command.attempt.recorder for command in self.commands.taken_on}
        await self._pausing.pause_again(recorders)

    def leave(self) -> None:
        """Give it up and end nothing: the next server takes it over."""
        if self._closed:
            return
        self.hibernation.leave()
        self._stop()
        reason = "the server ended, and the sandbox goes on"
        for recorder in list(self.live.running):
            recorder.settle(Cause.CANCEL, reason)
        self.live.ended_because = reason
        if self.live.asleep is not None:
            return
        held = self.live.runtime_sandbox
        if isinstance(held, Keepable):
            held.leave()

    @staticmethod
    def create(template: str = "python", **options: Any) -> Opening[AsyncSandbox]:  # noqa: ANN401 - as create_sandbox
        """Create one on this event loop's engine: `async with AsyncSandbox.create() as sandbox`."""
        return Opening(partial(_opened, template, options))

    # -- facts -----------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Id of the sandbox."""
        return self.live.spec.sandbox_id

    @property
    def status(self) -> Status:
        """`running`, `paused` or `hibernated` until it is closed or has ended."""
        if not self.live.is_alive:
            return "stopped"
        if self._pausing.has_hibernated:
            return "hibernated"
        return "paused" if self._pausing.has_paused else "running"

    @property
    def isolation(self) -> Isolation:
        """Isolation that is in force."""
        return self.live.isolation

    @property
    def trust(self) -> str | None:
        """Trust word of the request, if one was given."""
        return self.live.trust

    @property
    def posture(self) -> Mapping[str, Any]:
        """Facts of its confinement, as read back from the OS."""
        return self.live.runtime_sandbox.posture

    @property
    def tenant(self) -> str:
        """Whose it is, for quotas and records; empty in the library."""
        return self._tenant

    @property
    def limits(self) -> Limits:
        """Limits that apply."""
        return self.live.spec.limits

    @property
    def template(self) -> str:
        """Name of its template."""
        return self.live.spec.template.template.name

    @property
    def ends_at(self) -> float:
        """End of its lifetime, in seconds since the epoch; of a paused one, if it resumed now."""
        return self._pausing.ends_at

    def on_ended(self, callback: Callable[[str], None]) -> None:
        """Call `callback` once with the reason when it ends; at once if it has.

        An exception of a callback goes to the event loop's exception handler.
        """
        if self._closed:
            callback(self.live.ended_because)
        else:
            self._listeners.append(callback)

    @cached_property
    def ports(self) -> Ports:
        """Connections to servers inside."""
        from cellwall.engine.parts.ports import Ports

        return Ports(self.live, self._tasks)

    # -- network ---------------------------------------------------------------------------

    @property
    def network(self) -> NetworkPolicy:
        """Network policy that applies now."""
        return policy_of(self.live)

    async def set_network(self, policy: object) -> NetworkPolicy:
        """Change the network policy: what `NetworkPolicy.of` takes, such as `["example.org"]`.

        Connections that it does not allow are closed. Raises `UsageError`, `HostUnsupported` if
        the runtime cannot enforce it.
        """
        self.live.check_alive()
        if self.live.asleep is not None:
            await self.live.enter()
        self.live.touch()
        checked = self._outside.checked(policy, self.trust)
        await change(self._outside, self.live, checked, self._tenant)
        if self.is_kept:
            self.keep()
        return checked

    async def network_usage(self) -> NetworkUsage:
        """Return what the sandbox has used of the network since its start."""
        self.live.check_alive()
        network = self.live.network
        return NetworkUsage() if network is None else await network.usage()

    async def network_log(self) -> list[dict[str, Any]]:
        """Return the latest thousand records: connections, their ends, and refusals."""
        network = self.live.network
        if network is None:
            return []
        if self.live.is_alive:
            await network.usage()  # the records of what it counts come before it
        return list(network.log)

    async def install(
        self,
        packages: Iterable[str],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - a limit of the sandbox, not of the await
    ) -> Installation:
        """Install Python packages, such as `["requests", "pandas>=2"]`; wheels only.

        Its contexts import them without a restart. Whatever the network policy, they come from the
        operator's package registries, as far as the operator allows them. `timeout`: seconds, 120
        without it. Raises `UsageError` with the reason if one cannot be installed.
        """
        from cellwall.engine.packages import installing

        wanted = installing.checked(packages)
        await self.live.enter()
        return await installing.install(
            self.live,
            self._outside,
            wanted,
            self._tasks,
            tenant=self._tenant,
            timeout_s=timeout,
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
        output_kb: int | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_event: OnEvent | None = None,
        on_start: OnStart | None = None,
        tools: Tools | None = None,
    ) -> Execution:
        """Run a cell in a context, or a program of a language that keeps no state beside it.

        Each language has a default context of its own; a named one decides the language.
        `output_kb` replaces the sandbox's limit of each stream; `tools` replace the sandbox's own
        for this run, and none is available if it is empty.
        """
        await self.live.enter()
        source, data = check_source(code), check_stdin(stdin)
        wanted = None if language is None else registry.find(language)
        limits = self.limits
        if timeout is not None or output_kb is not None:
            limits = limits.with_changes({"wall_s": timeout, "output_kb": output_kb})
        heard = by_stream(on_stdout, on_stderr, on_event)
        run = Run(source, data, limits, tools, heard, on_start, self._after)
        return await self._runs.run(run, wanted, context)

    def _after(self, outcome: Outcome) -> None:
        self.live.touch()
        if outcome.verdict is Verdict.MEMORY:
            self._keep_again()  # the next server must not count the kill again
        if outcome.verdict is Verdict.SANDBOX_ERROR or not self.live.is_alive:
            reason = f"a program in it ended with verdict {outcome.verdict.value}"
            if outcome.verdict is Verdict.MEMORY:
                self.live.explain(reason)
            self._end(reason)

    async def stream(self, code: str, **options: Any) -> AsyncIterator[Event]:  # noqa: ANN401 - of run
        """Yield the events of `run(code, …)` as they come; the last one is `end`.

        A slow reader pauses the guest instead of filling this process's memory.
        """
        run = partial(self.run, code, **options)
        async for event in events_of(self.live, lambda on_event: run(on_event=on_event)):
            yield event

    async def interrupt(self, context: str = "main") -> None:
        """Raise KeyboardInterrupt in the code that the context runs now."""
        await self.live.enter()
        self.contexts.check(context)
        name = inside(called(context))
        for recorder in self.live.running:
            recorder.interrupt_sent = recorder.interrupt_sent or recorder.context == name
        self.live.channel.tell("interrupt", context=name)

    async def for_model(
        self, result: Execution | CommandResult, budget_chars: int = DEFAULT_BUDGET_CHARS
    ) -> str:
        """Describe a result to a language model; the omitted output stays in a file inside."""
        from cellwall.surface.shared.kept_output import for_model

        return await for_model(self, result, budget_chars)

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

        A runtime that can copies every process, too; with `scope="tree"` none does less.

        Between cells only; this sandbox goes on meanwhile. Each entry has a sandbox or the error in
        its place, and what the copies have not, such as other processes. Random generators that
        programs share are seeded anew unless `reseed` is false. With threads beside its own it is
        refused, unless `threads` is "drop": copies go on without them. Raises Conflict with the
        reason if the session cannot be copied, HostUnsupported, CapacityError.
        """
        heritage = self.heritage()
        choice = CopyChoice(scope, threads)
        return await self._copies().fork(self, heritage, count, choice, reseed=reseed)

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
        choice = CopyChoice(scope, threads)
        return await self._copies().snapshot(self, self.heritage(), name, expires_s, choice)

    @staticmethod
    async def restore(snapshot: str, *, reseed: bool = True) -> AsyncSandbox:
        """Return a new sandbox that is the session of a snapshot, by its id or its name.

        Of this event loop's engine. Raises NotFound.
        """
        from cellwall.engine.loop_engines import loop_engine

        return await loop_engine().copies.restore(snapshot, "", reseed=reseed)

    def heritage(self) -> Heritage:
        """Return what its copies get of it besides memory and files."""
        from cellwall.engine.state.copies import Heritage

        policy, choice = self.network, self.pauses
        return Heritage(self.live.spec, policy, self.trust, self._tools, self._tenant, choice)

    # -- life ------------------------------------------------------------------------------

    async def extend(self, life_s: float) -> None:
        """Let the sandbox live `life_s` seconds from now."""
        self.live.check_alive()
        self.limits.with_changes({"life_s": life_s})  # checks the number
        self._pausing.extend(life_s)
        if self.is_kept:
            self.keep()
        await self.hibernation.note_times()

    def standstill(self) -> Standstill:
        """Return its clocks while it is paused, as a later process can read them."""
        return self._pausing.standstill()

    async def pause(self) -> None:
        """Stop its processes where they are; return when they stand still. Idempotent.

        Its deadlines, idle time and life stand still, too, and it uses no CPU time. A request
        resumes it, or with `resume="manual"` is refused as Conflict; looking at it does neither.
        Raises HostUnsupported where the runtime cannot, SandboxUnavailable if it has ended.
        """
        await self._pausing.pause()

    async def resume(self) -> None:
        """Let its processes go on; nothing happens if they run.

        A hibernated one comes back in fresh ones. Raises CapacityError if there is no room for it
        now; it is hibernated then as before.
        """
        await self._pausing.resume()

    async def hibernate(self, *, drop: bool = False, keep: Keep = "session") -> tuple[str, ...]:
        """Write its session and files to disk and end its processes; it uses no memory then.

        It goes on under its id with the next request or `resume`, as after a pause. What a snapshot
        leaves behind is refused as Conflict, unless `drop`: then it ends, and is returned by name.
        With `keep="files"` all that runs ends so, the session and executions under way, too, and
        a fresh sandbox with its files goes on. Idempotent. Raises HostUnsupported and Conflict
        where it cannot be written down, CapacityError if that has no room.
        """
        return await self._pausing.hibernate(check_keep(keep), drop=drop)

    def check_hibernation(self, keep: Keep = "session") -> None:
        """Raise HostUnsupported or Conflict if it cannot be hibernated so, whatever runs in it."""
        self.live.check_alive()
        self.hibernation.check(check_keep(keep))

    @property
    def stays_because(self) -> str:
        """Why its present pause has not become a hibernation (`hibernate_s`); empty: no reason."""
        return self._pausing.stays_because

    def on_laid_down(self) -> None:
        """Note that its processes have ended, and it has not: nothing of them is kept."""
        self._was_kept, self.is_kept = self._was_kept or self.is_kept, False

    def go_on_in_fresh(self) -> None:
        """Note that it has the processes of another sandbox from now on."""
        self._follow()
        if self._was_kept:
            with contextlib.suppress(CellwallError):  # then it ends with this process
                self.keep()

    def _follow(self) -> None:
        """Hear of the end of its processes."""
        channel = self.live.channel
        channel.on_end(partial(self._on_channel_ended, channel))

    def _on_channel_ended(self, channel: GuestChannel) -> None:
        if self.live.asleep is not None or channel is not self.live.channel:
            return  # they ended, and it goes on
        # An execution that runs in it gets a verdict, which says more (`_after`).
        self._end(str(self.live.channel.lost) if self.live.running else self.live.why_it_ended())

    def _end(self, reason: str) -> None:
        """Kill the sandbox and hand it to the engine for destruction; idempotent."""
        if self._closed:
            return
        self._stop()
        self.live.stop_all(reason)
        if "ports" in vars(self):
            self.ports.stop_listening()
        self.files.forget_history()
        self._on_closed(self)
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            try:
                listener(self.live.ended_because)
            except Exception as error:  # noqa: BLE001 - the other listeners are still called
                told = {"message": "on_ended: a callback failed", "exception": error}
                self._loop.call_exception_handler(told)

    def _stop(self) -> None:
        """Be over, and in no circle, which would stay until a collection."""
        self._closed = True
        self._pausing.stop()
        self.hibernation.end()
        self.commands.on_changed = bool

    async def close(self, because: str = "it was closed") -> None:
        """Destroy the sandbox; running executions end as cancelled. Idempotent."""
        self._end(because)

    async def __aenter__(self) -> AsyncSandbox:
        """Enter a context manager that closes the sandbox."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the sandbox."""
        await self.close()


async def _opened(template: str, options: Mapping[str, Any]) -> AsyncSandbox:
    from cellwall.engine.loop_engines import loop_engine

    return await loop_engine().create_sandbox(template, **options)

"""Programs of one engine: each runs once in a fresh sandbox, destroyed after the answer.

Called by `Engine.execute`, which counts the call. The requests to the guest are in `oneshot`, a
stage of compilation is in `compile_stage`. The invariant: whatever happens, a claimed sandbox is
killed and released; another one is tried only if none of the caller's code has run.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cellwall.engine.attempts.attempt import BeforeCode, NotBegun, OnEvent, OnStart, finish
from cellwall.engine.attempts.stages import Stages, report
from cellwall.engine.parts.network import with_way_out
from cellwall.engine.parts.roots import on_image, with_volumes
from cellwall.engine.policy.arguments import check_start
from cellwall.engine.programs.oneshot import Stage, begin, explain, purpose_of, run_stage
from cellwall.engine.programs.requests import Plan, Request, plan
from cellwall.model.execution import Compilation, Execution
from cellwall.model.ids import new_id
from cellwall.runtimes.base import SandboxSpec
from cellwall.runtimes.channel.replies import GuestRefused

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.images.image_store import ImageStore
    from cellwall.engine.parts.network import Outside
    from cellwall.engine.parts.trust import Egress
    from cellwall.engine.policy.levels import IsolationRequest
    from cellwall.engine.policy.settings import EngineSettings
    from cellwall.engine.programs.compile_stage import Compiled, Compiler, SandboxWork
    from cellwall.engine.volumes.volume_store import VolumeStore
    from cellwall.model.template import BuiltTemplate
    from cellwall.runtimes.base import Runtime
    from cellwall.runtimes.channel.sealed_files import Content


Done = TypeVar("Done")
_TRIES = 3
"""Number of tries for one program, each in a sandbox of its own, if the previous one ended before
the program began."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Callbacks and trust word of one execution."""

    on_event: OnEvent | None
    on_start: OnStart | None
    before_code: BeforeCode | None
    trust: str | None
    """Trust word repeated in the answer."""
    egress: Egress


class Host(NamedTuple):
    """The engine as its programs need it."""

    settings: EngineSettings
    compiled: Path
    """Directory of what compilers have made."""
    outside: Outside
    template: Callable[[str], Awaitable[BuiltTemplate]]
    choose: Callable[[IsolationRequest], Awaitable[Runtime]]
    claim: Callable[[Runtime, SandboxSpec], Awaitable[ClaimedSandbox]]
    release: Callable[[ClaimedSandbox, Runtime], None]
    install: Callable[[ClaimedSandbox, tuple[str, ...], str], Awaitable[None]]
    check_open: Callable[[], None]
    """Raises Conflict once the engine was closed."""
    check_packages: Callable[[Sequence[str]], tuple[str, ...]]
    images: Callable[[], ImageStore]
    volumes: Callable[[], VolumeStore]


class Programs:
    """The programs of one engine that run, and how many have begun."""

    def __init__(self, host: Host) -> None:
        """Touch nothing yet."""
        self._host = host
        self.runs = 0
        self.under_way: set[ClaimedSandbox] = set()
        """The sandboxes in which programs are."""

    @cached_property
    def _compiler(self) -> Compiler:
        """What compiles programs; most are never compiled."""
        from cellwall.engine.programs.compile_cache import CompileCache
        from cellwall.engine.programs.compile_stage import Compiler

        settings = self._host.settings
        cache = CompileCache(
            self._host.compiled,
            settings.compile_cache_mb << 20,
            settings.compile_cache_days * 86_400,
        )
        return Compiler(cache)

    async def execute(self, request: Request, watch: Watch) -> Execution:
        """Run one request, after the stage that compiles it if its language has one.

        Raises UsageError, HostUnsupported, CapacityError, Conflict if the engine was closed, and
        what `watch.before_code` raises.
        """
        work = plan(request, self._host.settings.limits)
        packages = self._host.check_packages(request.packages)
        template = await self._host.template(request.template)
        runtime = await self._host.choose(request.isolation_request)
        made_of = partial(
            SandboxSpec,
            template=template,
            demand_hard=request.demand_hard,
            start=check_start(request.start),
            language=work.spoken,
        )
        stages = Stages(watch.on_start)
        compilation: Compilation | None = None
        product: tuple[tuple[str, Content], ...] = ()
        if work.language.compile:
            from cellwall.engine.programs.compile_stage import CacheScope

            scope = CacheScope(runtime.name, template.digest, request.tenant)
            # A caller's environment could affect a compiler; only its programs get it, later.
            compile_spec = partial(made_of, limits=work.compile_limits, purpose="program")
            in_sandbox = partial(self._in_compiler, runtime, compile_spec, watch)
            made = await self._compiler.compiled(work, scope, in_sandbox, stages)
            if isinstance(made, Execution):
                self.runs += 1
                report(made, watch.on_event)
                return made
            compilation, product = made.stage, made.product.files
        program = run_stage(work, product)
        enclosed = program.with_files_enclosed()
        egress = watch.egress
        # Packages, and the files of trust, need more than a sandbox of a single program has.
        is_prepared = bool(packages) or egress.opened is not None or bool(request.volumes)
        purpose = "program" if is_prepared else purpose_of(work, enclosed)
        env = {**egress.variables, **work.env}
        spec = made_of(self._new_id(), limits=work.limits, purpose=purpose, env=env)
        spec = with_volumes(self._host.volumes, spec, request.volumes, request.tenant)
        spec = with_way_out(spec, egress.policy, needs_one=bool(packages))

        async def run(live: ClaimedSandbox) -> Execution:
            if not egress.policy.is_none:
                await self._host.outside.open(live, egress.policy, request.tenant, egress.opened)
            if packages:
                await self._host.install(live, packages, request.tenant)
                live.channel.most_held_bytes = -1  # the program is not the first of its sandbox
            stage = enclosed if live.channel.takes_files else program
            return await self._run_in(live, work, stage, watch, stages)

        if request.image is None:
            execution = await self._anew(runtime, spec, watch, run)
        else:
            execution = await self._anew_on_image(request, runtime, spec, watch, run)
        return execution if compilation is None else replace(execution, compilation=compilation)

    async def _in_compiler(
        self,
        runtime: Runtime,
        made_of: Callable[[str], SandboxSpec],
        watch: Watch,
        job: SandboxWork,
    ) -> Compiled | Execution:
        """Have a compiler work in a fresh sandbox, whose spec `made_of` makes of its id."""

        async def begun(live: ClaimedSandbox) -> Compiled | Execution:
            await self._before_code(watch)
            return await job(live)

        return await self._anew(runtime, made_of(self._new_id()), watch, begun)

    def _new_id(self) -> str:
        return new_id(self._host.settings.node)

    async def _anew(
        self,
        runtime: Runtime,
        spec: SandboxSpec,
        watch: Watch,
        job: Callable[[ClaimedSandbox], Awaitable[Done]],
    ) -> Done:
        """Do `job` in a fresh sandbox, and in another if the first ended before anything ran.

        The first has the id of `spec`, which no other sandbox may have.
        """
        for tries_left in reversed(range(_TRIES)):
            try:
                return await self._try(runtime, spec, watch, job)
            except NotBegun:
                if not tries_left:
                    raise
                spec = replace(spec, sandbox_id=self._new_id())
        raise AssertionError("the last try returns or raises")

    async def _anew_on_image(
        self,
        request: Request,
        runtime: Runtime,
        spec: SandboxSpec,
        watch: Watch,
        job: Callable[[ClaimedSandbox], Awaitable[Done]],
    ) -> Done:
        """Do `job` as `_anew` does, in sandboxes on the request's image."""
        plain = replace(spec, purpose="session")
        root = on_image(self._host.images, plain, request.image, request.user, request.packages)
        async with root as rooted:
            return await self._anew(runtime, rooted, watch, job)

    async def _try(
        self,
        runtime: Runtime,
        spec: SandboxSpec,
        watch: Watch,
        job: Callable[[ClaimedSandbox], Awaitable[Done]],
    ) -> Done:
        """Do `job` in one sandbox; `NotBegun` if that ended before the program began."""
        self._host.check_open()
        live = await self._host.claim(runtime, spec)
        self.under_way.add(live)
        try:
            live.trust = watch.trust
            self._host.check_open()  # the engine may have been closed during the claim
            return await job(live)
        finally:
            self.under_way.discard(live)
            live.kill("its one program has ended")
            self._host.release(live, runtime)

    async def _before_code(self, watch: Watch) -> None:
        if watch.before_code is not None:
            await watch.before_code()
            self._host.check_open()

    async def _run_in(
        self, live: ClaimedSandbox, work: Plan, program: Stage, watch: Watch, stages: Stages
    ) -> Execution:
        started_at = time.time()
        try:
            before = None if watch.before_code is None else partial(self._before_code, watch)
            if live.spec.image is not None and work.is_warm:
                from cellwall.engine.parts.contexts import DEFAULT, Contexts

                await Contexts(live).ensure(DEFAULT)  # the image's own interpreter
            attempt = await begin(live, program, watch.on_event, before)
            self.runs += 1
            attempt.hand_out(stages.begin)
            outcome = await attempt.wait()
            if live.network is not None:
                outcome = await live.network.added_to(outcome)
        except GuestRefused as refusal:
            raise explain(refusal, work, on_image=live.spec.image is not None) from None
        files: dict[str, bytes] = {}
        if work.collect or work.artifacts is not None:
            files, notes = await self._collect(live, work)
            outcome = replace(outcome, notes=outcome.notes + notes)
        return finish(attempt, outcome, work.language.name, started_at, files)

    async def _collect(
        self, live: ClaimedSandbox, work: Plan
    ) -> tuple[dict[str, bytes], tuple[str, ...]]:
        from cellwall.engine.programs import collect  # most programs only print

        room = self._host.settings.collect_bytes
        found, notes = await collect.files(live, work.collect, work.artifacts, room)
        if work.file_name not in work.collect and found.get(work.file_name) == work.source:
            del found[work.file_name]  # the program itself, as its caller sent it
        return found, notes

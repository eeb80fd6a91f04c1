"""Asynchronous client: `arun`, `AsyncSandbox` and the server's other objects, for asyncio programs.

Made by `aconnect`; lives on the event loop it was made on. It is not a second library: its objects
have the names, arguments and results of the embedded one.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cellwall.client.connection.attempts import Attempt
from cellwall.client.connection.transport import Ask, Transport, segment
from cellwall.client.images import AsyncImages
from cellwall.client.sandbox import AsyncSandbox
from cellwall.client.snapshots import AsyncSnapshots
from cellwall.client.submitted import AsyncSubmitted
from cellwall.client.templates.calls import AsyncTemplates
from cellwall.client.volumes import AsyncVolumes
from cellwall.model.ids import new_id
from cellwall.surface.shared.closing import AsyncClosing, Opening
from cellwall.surface.tools.tools import box_of
from cellwall.wire import asking
from cellwall.wire.reading import execution_of

if TYPE_CHECKING:
    from cellwall.client.connection.address import Address
    from cellwall.client.connection.transport import Json
    from cellwall.model.execution import Execution
    from cellwall.model.limits import Limits
    from cellwall.surface.shared.callbacks import OnEvent
    from cellwall.surface.tools.tools import Tools

_PAGE = 1000


class AsyncClient(AsyncClosing):
    """One server, for one caller."""

    def __init__(
        self, address: Address, timeout_s: float, transport: Transport | None = None
    ) -> None:
        """Connect to nothing yet; `aconnect` also checks the key.

        `transport` replaces the client's own connections to the server.
        """
        self._transport = transport or Transport(address, timeout_s)
        self.images = AsyncImages(self._transport)
        """Images that the caller may name."""
        self.volumes = AsyncVolumes(self._transport)
        """Volumes of the caller's tenant."""
        self.snapshots = AsyncSnapshots(self._transport)
        """Snapshots of the caller's tenant."""
        self.templates = AsyncTemplates(self._transport)
        """Templates that the caller's tenant builds."""
        self.AsyncSandbox = Sandboxes(self)
        """`client.AsyncSandbox.create(…)`, as in the embedded library."""

    @property
    def url(self) -> str:
        """Address of the server."""
        return self._transport.address.shown

    @property
    def transport(self) -> Transport:
        """Connections to the server, for requests that have no method here."""
        return self._transport

    # -- one-shot --------------------------------------------------------------------------

    async def arun(  # noqa: PLR0913 - each is a choice of the caller's
        self,
        code: str,
        *,
        language: str = "python",
        stdin: str | bytes | None = None,
        arguments: Mapping[str, Any] | None = None,
        files: Mapping[str, str | bytes] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - a limit of the sandbox, not of the await
        limits: Limits | Mapping[str, Any] | None = None,
        template: str = "python",
        runtime: str | None = None,
        isolation: str | None = None,
        trust: str | None = None,
        demand_hard: bool = False,
        start: str = "fork",
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        collect: Sequence[str] = (),
        artifacts: str | None = None,
        compile_options: Sequence[str] = (),
        compile_limits: Limits | Mapping[str, Any] | None = None,
        network: object = None,
        secrets: Sequence[str] = (),
        packages: Sequence[str] = (),
        image: str | None = None,
        user: str | None = None,
        volumes: Mapping[str, str] | None = None,
        on_event: OnEvent | None = None,
        tools: Tools | None = None,
    ) -> Execution:
        """Run `code` once in a fresh sandbox and return the execution.

        `tools`: functions of this process that it may call as `tools.name(…)`. `secrets`: names of
        secrets that the server keeps. `image`: a container image that its operator permits, such as
        `python:3.12-slim`, whose tree is the root, and `user` one of its users. `volumes`: volumes
        of the caller's tenant, such as `{"data": "/data"}`. Raises `ImageComing` while the image is
        being pulled.
        """
        box = box_of(tools)
        body = _program(
            code,
            language=language,
            stdin=stdin,
            arguments=arguments,
            files=files,
            timeout=timeout,
            limits=limits,
            template=template,
            runtime=runtime,
            isolation=isolation,
            trust=trust,
            demand_hard=demand_hard,
            start=start,
            env=env,
            args=args,
            collect=collect,
            artifacts=artifacts,
            compile_options=compile_options,
            compile_limits=compile_limits,
            network=network,
            secrets=secrets,
            packages=packages,
            image=image,
            user=user,
            volumes=volumes,
        )
        body |= asking.tools(None if box is None else box.manifest)
        attempt = Attempt(self._transport, "/execute", body, tools=box)
        return execution_of(await attempt.perform(on_event))

    async def submit(self, code: str, **options: Any) -> AsyncSubmitted:  # noqa: ANN401 - of arun
        """Let `code` run in the background; return once the request is on the server's disk.

        Options as in `arun`, except `on_event` and `tools`. It runs once, even if the server is
        killed before its turn; if that happens during the run, its result is the error
        `Interrupted`.
        """
        body = {**_program(code, **options), "background": True}
        facts = await self._transport.json(Ask("POST", "/execute", body=body, key=new_id()))
        return AsyncSubmitted(self._transport, facts["execution_id"])

    def execution(self, execution_id: str) -> AsyncSubmitted:
        """Return an execution that was submitted before, perhaps by another process."""
        return AsyncSubmitted(self._transport, execution_id)

    # -- sandboxes -------------------------------------------------------------------------

    async def create_sandbox(  # noqa: PLR0913 - each is a choice of the caller's
        self,
        template: str = "python",
        limits: Limits | Mapping[str, Any] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        runtime: str | None = None,
        isolation: str | None = None,
        trust: str | None = None,
        demand_hard: bool = False,
        start: str = "fork",
        profile: str | None = None,
        name: str | None = None,
        metadata: Mapping[str, str] | None = None,
        tools: Tools | None = None,
        network: object = None,
        secrets: Sequence[str] = (),
        packages: Sequence[str] = (),
        image: str | None = None,
        user: str | None = None,
        volumes: Mapping[str, str] | None = None,
        auto_pause_s: float | None = None,
        hibernate_s: float | None = None,
        resume: str | None = None,
    ) -> AsyncSandbox:
        """Create a sandbox; it lives until it is closed or its time is up.

        `tools`: functions of this process that its code may call as `tools.name(…)`; only
        executions started by this object may call them. `network`: where it may connect to, such as
        `["example.org"]`; None is no network. `secrets`: names of secrets that the server keeps.
        `packages`: Python packages to install first. `image`: a container image that the server's
        operator permits, such as `python:3.12-slim`, whose tree is the root, and `user` one of its
        users, by default the image's own. `volumes`: volumes of the caller's tenant, such as
        `{"data": "/data"}`. `profile`: `debug` if its programs may trace one another, where the
        operator permits it. `auto_pause_s`: seconds without activity after which it pauses instead
        of ending. `hibernate_s`: seconds of a pause after which its session is written to disk and
        its processes end, as far as nothing is lost. `resume`: `manual` if a request to a paused
        one is refused. Raises `ImageComing` while the image is being pulled.
        """
        box = box_of(tools)
        body = {
            "packages": asking.words(packages, "packages"),
            **asking.given(
                limits=asking.limits(limits),
                env=asking.env(env),
                profile=profile,
                name=name,
                metadata=None if metadata is None else dict(metadata),
                network=asking.network(network),
                secrets=asking.secrets(secrets),
                image=image,
                user=user,
                volumes=asking.volumes(volumes),
                auto_pause_s=auto_pause_s,
                hibernate_s=hibernate_s,
                resume=resume,
            ),
            **_place(template, (runtime, isolation, trust), demand_hard, start),
        }
        ask = Ask("POST", "/sandboxes", body=body, key=new_id(), is_held=True)
        return AsyncSandbox(self._transport, await self._transport.json(ask), box)

    async def attach(self, sandbox_id: str) -> AsyncSandbox:
        """Return an existing sandbox; leaving its `with` block closes it like a created one."""
        path = f"/sandboxes/{segment(sandbox_id, 'sandbox', remedy='list sandboxes')}"
        return AsyncSandbox(self._transport, await self._transport.json(Ask("GET", path)))

    async def restore(self, snapshot: str, *, reseed: bool = True) -> AsyncSandbox:
        """Return a new sandbox that is the session of a snapshot, by its id or its name.

        Raises NotFound, QuotaExceeded, CapacityError.
        """
        path = f"/snapshots/{segment(snapshot, 'snapshot', remedy='list snapshots')}/restore"
        ask = Ask("POST", path, body={"reseed": reseed}, key=new_id(), is_held=True)
        return AsyncSandbox(self._transport, await self._transport.json(ask))

    async def sandboxes(
        self, *, state: str | None = None, metadata: Mapping[str, str] | None = None
    ) -> builtins.list[AsyncSandbox]:
        """Return the caller's sandboxes, newest first; including those that ended recently."""
        filters = {f"metadata.{key}": value for key, value in (metadata or {}).items()}
        found: builtins.list[AsyncSandbox] = []
        after: str | None = None
        while True:
            params = {"state": state, "limit": _PAGE, "after": after, **filters}
            page = await self._transport.json(Ask("GET", "/sandboxes", params))
            found += [AsyncSandbox(self._transport, facts) for facts in page["sandboxes"]]
            after = page["next"]
            if after is None:
                return found

    async def statistics(self) -> Json:
        """Return the server's numbers: the object of `GET /stats`."""
        return await self._transport.json(Ask("GET", "/stats"))

    async def nodes(self) -> list[dict[str, Any]]:
        """Return a cluster's nodes as its gateway knows them; the key's scope has to be `admin`.

        Each has `name`, `state` and `why`; those that are not lost `address`, `in_flight` and
        `left`, too. Raises NotFound if the server is no gateway.
        """
        found: list[dict[str, Any]] = (await self._transport.json(Ask("GET", "/nodes")))["nodes"]
        return found

    async def drain(self, node: str) -> Json:
        """Have a node of a cluster take nothing new; return what is left on it.

        Repeating it is harmless. The key's scope has to be `admin`. Raises NodeUnreachable,
        NodeLost, NotFound.
        """
        return await self._order(node, "drain")

    async def undrain(self, node: str) -> Json:
        """Have a drained node take new work again; raises as `drain`, Conflict if it is to end."""
        return await self._order(node, "undrain")

    async def _order(self, node: str, word: str) -> Json:
        name = segment(node, "node", remedy="see `cellwall cluster status`")
        return await self._transport.json(Ask("POST", f"/nodes/{name}/{word}", is_repeatable=True))

    # -- life ------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close the connections; sandboxes live on. Idempotent."""
        await self._transport.aclose()


class Sandboxes:
    """Object in the place of the embedded library's class `AsyncSandbox`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    def create(self, template: str = "python", **options: Any) -> Opening[AsyncSandbox]:  # noqa: ANN401 - as create_sandbox
        """Create a sandbox: `async with client.AsyncSandbox.create() as sandbox`."""
        return Opening(lambda: self._client.create_sandbox(template, **options))


def _program(  # noqa: PLR0913 - each is a choice of the caller's
    code: str,
    *,
    language: str = "python",
    stdin: str | bytes | None = None,
    arguments: Mapping[str, Any] | None = None,
    files: Mapping[str, str | bytes] | None = None,
    timeout: float | None = None,
    limits: Limits | Mapping[str, Any] | None = None,
    template: str = "python",
    runtime: str | None = None,
    isolation: str | None = None,
    trust: str | None = None,
    demand_hard: bool = False,
    start: str = "fork",
    env: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
    collect: Sequence[str] = (),
    artifacts: str | None = None,
    compile_options: Sequence[str] = (),
    compile_limits: Limits | Mapping[str, Any] | None = None,
    network: object = None,
    secrets: Sequence[str] = (),
    packages: Sequence[str] = (),
    image: str | None = None,
    user: str | None = None,
    volumes: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the request body for one program."""
    wanted = asking.limits(limits)
    if timeout is not None:  # `timeout` is short for `wall_s`, and takes precedence
        wanted = {**(wanted or {}), "wall_s": timeout}
    return {
        **asking.source(code),
        **asking.stdin(stdin),
        **asking.given(
            language=language,
            arguments=None if arguments is None else dict(arguments),
            files=asking.files(files),
            limits=wanted,
            env=asking.env(env),
            artifacts=artifacts,
            compile_limits=asking.limits(compile_limits),
            network=asking.network(network),
            secrets=asking.secrets(secrets),
            image=image,
            user=user,
            volumes=asking.volumes(volumes),
        ),
        **_place(template, (runtime, isolation, trust), demand_hard, start),
        "compile_options": asking.words(compile_options, "compile_options"),
        "args": asking.words(args, "args"),
        "collect": asking.words(collect, "collect"),
        "packages": asking.words(packages, "packages"),
    }


def _place(
    template: str,
    where: tuple[str | None, str | None, str | None],
    demand_hard: bool,
    start: str,
) -> dict[str, Any]:
    """Return the fields of the place; `where` is the requested runtime, level and trust."""
    runtime, isolation, trust = where
    return asking.given(
        template=template,
        runtime=runtime,
        isolation=isolation,
        trust=trust,
        demand_hard=demand_hard,
        start=start,
    )


async def connected(address: Address, timeout_s: float) -> AsyncClient:
    """Return a client whose server answers and knows the key."""
    client = AsyncClient(address, timeout_s)
    try:
        await client.statistics()
    except BaseException:
        await client.aclose()
        raise
    return client

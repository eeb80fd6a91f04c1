"""Creation of sandboxes, and connections to those that exist.

A sandbox is made of a template or of a snapshot, whichever has the name. The invariant: an answer
says of a sandbox what it has; what it cannot have was refused before it was made.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from cellwall.apps.doors.door import Route
from cellwall.apps.doors.e2b.answers import missing, refused
from cellwall.apps.doors.e2b.control import bodies
from cellwall.apps.doors.e2b.control.finding import existing
from cellwall.apps.doors.e2b.control.networks import check_egress, policy_of, with_rules
from cellwall.apps.doors.e2b.control.snapshot_names import found as found_snapshot
from cellwall.apps.doors.e2b.deadlines import ends_at, prolong
from cellwall.apps.doors.e2b.facts import PREFIX, Facts, is_mask, state_of
from cellwall.apps.doors.e2b.templates.built_facts import BuiltFacts
from cellwall.apps.doors.e2b.templates.names import Shelf
from cellwall.apps.doors.e2b.templates.starting import started
from cellwall.client.connection.transport import Ask
from cellwall.client.sandbox import AsyncSandbox
from cellwall.model.errors import Conflict, HostUnsupported, NotFound
from cellwall.model.ids import new_id
from cellwall.server.core.errors import HttpError
from cellwall.wire import asking

if TYPE_CHECKING:
    from cellwall.apps.doors.door import Visit
    from cellwall.apps.doors.e2b.house import House
    from cellwall.model.snapshot import Snapshot
    from cellwall.server.core.request import Request

TIMEOUT_S = 300
"""Seconds that a sandbox lives, and that a connection adds, where the client says nothing."""
_OLD_TIMEOUT_S = 15
"""The same for the first release of the route."""
_ROOT = frozenset({"root", "0"})
_SHOWN = {
    "CELLWALL_CHARTS": "1",
    "CELLWALL_SAVED_IMAGES": "1",
    "CELLWALL_JAVA_PROPERTIES": "1",
}
"""Variables by which code shows what clients of the interpreter expect: figures with their data,
saved pictures, and the environment among Java's system properties."""


class Creating:
    """The routes."""

    def __init__(self, house: House) -> None:
        self._house = house
        house.state.engine.pool.park_with(_SHOWN)
        self.routes = (
            Route("POST", "/v2/sandboxes", self.create),
            Route("POST", "/sandboxes", self.create),
            Route("POST", "/v2/sandboxes/{sandbox_id}/connect", self.connect),
            Route("POST", "/sandboxes/{sandbox_id}/connect", self.connect),
            Route("POST", "/sandboxes/{sandbox_id}/resume", self.resume),
        )

    async def create(self, visit: Visit) -> None:
        """`POST /v2/sandboxes`, and `/sandboxes` of older clients."""
        request = visit.request
        body = await bodies.read(request, bodies.NewSandbox)
        is_old = not request.scope["path"].endswith("/v2/sandboxes")
        self._check(body)
        life_s = body.timeout or (_OLD_TIMEOUT_S if is_old else TIMEOUT_S)
        self.check_life(life_s)
        if is_old and body.allow_internet_access:
            body.allow_internet_access = None  # these clients always say so
        sandbox = await self._made(visit, body, life_s)
        await self._house.answer(request, self._house.shown(request, sandbox), 201)

    def _check(self, body: bodies.NewSandbox) -> None:
        bodies.check_absent(body, "iam", "volume_mounts")
        if _pauses_files(body) and body.auto_resume and body.auto_resume.enabled:
            raise refused("autoPauseMemory", "not with autoResume: traffic cannot boot it anew")
        for name in body.metadata or {}:
            if name.startswith(PREFIX):
                raise refused("metadata", f"names that begin with {PREFIX} are the server's")
        if body.network is None:
            return
        check_egress(body.network)
        bodies.check_absent(body.network, "https_ports")
        mask = body.network.mask_request_host
        if mask and not is_mask(mask):
            raise refused("network.maskRequestHost", "it is no host, nor one with a port")
        if body.network.allow_public_traffic and not self._house.options.public_ports:
            raise refused(
                "network.allowPublicTraffic",
                "ports need a token here; the operator may permit it with public_ports",
            )

    def check_life(self, life_s: float) -> None:
        """Raise the 400 for a life that is longer than the operator's ceiling."""
        if life_s > self.most_s:
            raise refused("timeout", f"cannot be greater than {self.most_s:g} seconds")

    @property
    def most_s(self) -> float:
        """The operator's ceiling of a life, in seconds."""
        return self._house.state.settings.most.life_s

    # -- of a template, or of a snapshot ---------------------------------------------------

    async def _made(self, visit: Visit, body: bodies.NewSandbox, life_s: float) -> AsyncSandbox:
        name = body.template_id
        known = self._house.options.templates.get(name)
        if known is None:
            snapshot = await found_snapshot(visit.client, name)
            if snapshot is not None:
                return await self._restored(visit, body, snapshot, life_s)
        own = None if known is not None else (await Shelf.of(visit.client)).meant(name)
        facts = BuiltFacts() if own is None else BuiltFacts.of(own)
        template = known or (name if own is None else str(own["name"]))
        if body.mcp:
            await _check_gateway(visit, template)
        try:
            sandbox = await self._new(visit, body, (template, facts), life_s)
        except NotFound:
            raise _no_template(name) from None
        await started(visit.client.transport, sandbox, facts)
        return sandbox

    async def _new(
        self,
        visit: Visit,
        body: bodies.NewSandbox,
        made_of: tuple[str, BuiltFacts],
        life_s: float,
    ) -> AsyncSandbox:
        template, facts = made_of
        most = self._house.state.settings.most
        asked = {
            "template": template,
            "limits": {
                "life_s": most.life_s if body.auto_pause else life_s,
                # A sandbox of E2B's ends by its timeout, and has no limit for a command.
                "idle_s": most.idle_s,
                "wall_s": most.wall_s,
                "cpu_s": most.cpu_s,
                **asking.given(cpus=facts.cpus, memory_mb=facts.memory_mb),
            },
            "metadata": replace(self._facts(body, life_s), user=facts.user).kept(),
            "network": self._network(body),
            "resume": "auto" if body.auto_resume and body.auto_resume.enabled else "manual",
            **asking.given(
                env={**_SHOWN, **(body.env_vars or {})},
                # Refused where nothing can be paused; otherwise what ended it would pause it.
                auto_pause_s=most.idle_s if body.auto_pause else None,
            ),
        }
        key = visit.request.headers.get("idempotency-key") or new_id()
        ask = Ask("POST", "/sandboxes", body=asked, key=key, is_held=True)
        transport = visit.client.transport
        sandbox = AsyncSandbox(transport, await transport.json(ask))
        if _pauses_files(body):
            await self._check_files_alone(sandbox)
        return sandbox

    async def _check_files_alone(self, sandbox: AsyncSandbox) -> None:
        """End a sandbox that cannot be paused as its client wants, and raise the 400."""
        if sandbox.status == "stopped":
            return  # the repetition of a request whose sandbox has ended
        try:
            self._house.state.sandboxes.all[sandbox.id].sandbox.check_hibernation("files")
        except (Conflict, HostUnsupported) as error:
            await sandbox.close()
            raise refused("autoPauseMemory", str(error)) from None

    def _network(self, body: bodies.NewSandbox) -> str | list[str] | dict[str, object]:
        """Return the policy; of a client that says nothing of it the Internet, if permitted."""
        said = body.network or bodies.Network()
        policy = policy_of(body.allow_internet_access, said.allow_out, said.deny_out)
        if policy is None:
            policy = "open" if self._house.state.engine.settings.network == "open" else "none"
        return with_rules(policy, said.rules or {})

    def _facts(self, body: bodies.NewSandbox, life_s: float) -> Facts:
        """Return what is kept of a request. Ports are public unless said otherwise, if they may."""
        said = None if body.network is None else body.network.allow_public_traffic
        is_public = self._house.options.public_ports and said is not False
        after_s = life_s if body.auto_pause else None
        return Facts(
            body.template_id,
            body.metadata or {},
            is_public,
            pause_after_s=after_s,
            pauses_files=_pauses_files(body),
            mask=(None if body.network is None else body.network.mask_request_host) or None,
        )

    async def _restored(
        self, visit: Visit, body: bodies.NewSandbox, snapshot: Snapshot, life_s: float
    ) -> AsyncSandbox:
        """Make a sandbox of a snapshot, which has an environment of its own."""
        bodies.check_absent(body, "env_vars", "auto_resume", "auto_pause", "mcp")
        if "idempotency-key" in visit.request.headers:
            raise refused("Idempotency-Key", "not with a snapshot")
        network = self._network(body)
        sandbox = await visit.client.restore(snapshot.id)
        try:
            await sandbox.change(life_s=life_s, metadata=self._facts(body, life_s).kept())
            await sandbox.set_network(network)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    # -- that exist ------------------------------------------------------------------------

    async def connect(self, visit: Visit) -> None:
        """`POST /v2/sandboxes/{id}/connect`: resumes a paused one, and prolongs its life."""
        request = visit.request
        body = await bodies.read(request, bodies.Connect)
        sandbox = await existing(visit)
        if body.memory is False and state_of(sandbox.status) == "paused":
            await sandbox.hibernate(keep="files")  # of one that runs it asks for nothing
        status = await self._continued(sandbox, body.timeout)
        await self._answer(request, sandbox, status)

    async def resume(self, visit: Visit) -> None:
        """`POST /sandboxes/{id}/resume`, of older clients."""
        request = visit.request
        body = await bodies.read(request, bodies.Resume)
        bodies.check_absent(body, "auto_pause")
        sandbox = await existing(visit)
        if sandbox.status == "running":
            raise _is_running(sandbox.id)
        await self._continued(sandbox, body.timeout)
        await self._answer(request, sandbox, 201)

    async def _continued(self, sandbox: AsyncSandbox, timeout_s: int | None) -> int:
        life_s = max(1, TIMEOUT_S if timeout_s is None else timeout_s)
        self.check_life(life_s)
        was_paused = state_of(sandbox.status) == "paused"
        if was_paused or ends_at(sandbox) < time.time() + life_s:
            await prolong(sandbox, life_s, self.most_s)
        if was_paused:
            await sandbox.resume()
        return 201 if was_paused else 200

    async def _answer(self, request: Request, sandbox: AsyncSandbox, status: int) -> None:
        await self._house.answer(request, self._house.shown(request, sandbox), status)


def _pauses_files(body: bodies.NewSandbox) -> bool:
    """Whether the pause at its timeout is to keep its files alone."""
    return bool(body.auto_pause) and body.auto_pause_memory is False


async def _check_gateway(visit: Visit, template: str) -> None:
    """Raise the 400 for a template whose sandboxes cannot have a gateway for servers of MCP.

    Clients start it, as root, in the sandbox that they were given.
    """
    own = (await Shelf.of(visit.client)).own.get(template)
    if own is None or str(own["user"] or "root") not in _ROOT:
        raise refused(
            "mcp",
            f"Failed to start MCP gateway: clients start it as root, and sandboxes of {template!r} "
            "have no root; use a template that you have built on an image with mcp-gateway",
        )


def _no_template(name: str) -> Exception:
    stem, colon, tag = name.partition(":")
    if colon:
        return missing(f"tag '{tag[:100]}' does not exist for template '{stem[:100]}'")
    return missing(f"template '{name[:100]}' not found")


def _is_running(sandbox_id: str) -> Exception:
    return HttpError(409, "conflict", f"Sandbox {sandbox_id} is already running")

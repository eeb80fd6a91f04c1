"""Templates that callers of a server build: who may build which, how large, and what a name means.

The builds are in `engine.images.builds`, the names in `engine.images.own_templates`. The
invariants: a tenant learns of its own templates and builds alone; a template is made of images that
the tenant may name; nothing that a caller says becomes a path of this machine.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cellwall.engine.scheduling.admission import Cost
from cellwall.engine.scheduling.quotas import exceeded
from cellwall.model.errors import Conflict, NotFound, QuotaExceeded, UsageError
from cellwall.server.core.errors import lacking
from cellwall.server.core.times import rfc3339

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cellwall.engine.engine import Engine
    from cellwall.engine.images.builder import BuildRequest
    from cellwall.engine.images.builds import Builds, BuildState
    from cellwall.engine.images.image_store import StoredImage
    from cellwall.engine.images.own_templates import OwnTemplate, OwnTemplates
    from cellwall.engine.scheduling.fair_queue import FairQueue
    from cellwall.server.core.image_door import ImageDoor
    from cellwall.server.core.settings import ServerSettings
    from cellwall.surface.shared.tasks import Tasks

_BASE = "python"
"""The operator's template whose interpreter serves in sandboxes on images."""


class TemplateDoor:
    """The templates that callers of one server may build and use."""

    def __init__(
        self,
        engine: Engine,
        settings: ServerSettings,
        images: ImageDoor,
        queue: FairQueue,
        tasks: Tasks,
    ) -> None:
        """Touch nothing: most servers have no templates of tenants.

        Raises `UsageError` if their steps would take the disk without a bound.
        """
        if settings.templates_mb and not engine.settings.images_mb:
            raise UsageError(
                "settings: templates_mb needs a bound of images_mb: steps of builds are images",
                remedy="give images_mb in [engine], or templates_mb = 0",
            )
        self._engine = engine
        self._settings = settings
        self._images = images
        self._queue = queue
        self._tasks = tasks
        self._naming = asyncio.Lock()

    @cached_property
    def builds(self) -> Builds:
        """The builds of this server."""
        from cellwall.engine.images.builds import Builds

        return Builds(self._tasks, self._settings.most_builds, self._settings.build_s)

    @cached_property
    def _own(self) -> OwnTemplates:
        from cellwall.engine.images.own_templates import OwnTemplates

        return OwnTemplates(self._engine.state_dir)

    # -- use -------------------------------------------------------------------------------

    def rooted(
        self, tenant: str, template: str, image: str | None, pinned: str | None = None
    ) -> dict[str, str] | None:
        """Return the fields of a request on a template of the tenant's own; None for others.

        `pinned`: the image that the name meant before. Raises `UsageError` if the request names an
        image as well, and at a node HttpError for a name that another node may have.
        """
        if template == _BASE or not self._settings.templates_mb:
            return None
        found = pinned or self._image_of(tenant, template)
        if found is None:
            self._check_known(template)
            return None
        if image is not None:
            raise UsageError(
                f"template: {template[:80]} is one that you built, with an image of its own",
                remedy="name a template or an image",
            )
        return {"image": found, "template": _BASE}

    def _check_known(self, template: str) -> None:
        """Raise HttpError at a node whose operator has no template of that name."""
        if self._engine.settings.node:
            try:
                self._engine.check_template(template)
            except NotFound as error:
                raise lacking(error, "template", template.partition(":")[0]) from None

    def _image_of(self, tenant: str, template: str) -> str | None:
        """Return the image of the tenant's template, unless the operator has one of that name."""
        from cellwall.engine.images.own_templates import whole_name
        from cellwall.engine.templates.definitions import definitions

        try:
            found = self._own.find(tenant, whole_name(template))
        except UsageError:
            return None
        return None if found is None or template in definitions() else found.image

    # -- building --------------------------------------------------------------------------

    def check_permitted(self) -> None:
        """Raise `UsageError` where the operator permits no templates of tenants."""
        if not self._settings.templates_mb:
            raise UsageError(
                "templates: this server's operator does not let callers build any",
                remedy="use those of GET /templates, or ask the operator for templates_mb",
            )

    def check_name(self, name: str) -> str:
        """Return a name with its tag; `UsageError` if it is none, or one of the operator's."""
        from cellwall.engine.images.own_templates import whole_name
        from cellwall.engine.templates.definitions import definitions

        whole = whole_name(name)
        if whole.partition(":")[0] in definitions():
            raise UsageError(
                f"template {name[:80]}: the operator has one of that name",
                remedy="choose another name",
            )
        return whole

    def check_tags(self, name: str, tags: Sequence[str]) -> tuple[str, ...]:
        """Return the other names of what is called `name`; `UsageError` for what is no tag."""
        stem = name.partition(":")[0]
        return tuple(dict.fromkeys(self.check_name(f"{stem}:{tag}") for tag in tags))

    def place(self, tenant: str, held: ExitStack) -> None:
        """Have `held` hold a place for one more build. Raises QuotaExceeded, CapacityError."""
        held.enter_context(self.builds.place(tenant, self._queue.tenants.use(tenant).quotas.builds))

    async def check_room(
        self, tenant: str, names: Sequence[str], stored: StoredImage | None = None
    ) -> None:
        """Raise `QuotaExceeded` unless the tenant may have templates of these names.

        `stored`: the image that they are to mean, once it is known.
        """
        quotas = self._queue.tenants.use(tenant).quotas
        others = [each for each in await self._all(tenant) if each.name not in names]
        if quotas.templates is not None and len(others) + len(names) > quotas.templates:
            raise exceeded("templates", len(others), quotas.templates, "remove a template", 60)
        most_mb = min(self._settings.templates_mb, quotas.templates_mb or 1 << 40)
        found = {each.image: self._engine.images.get(each.image) for each in others}
        used = sum(each.size_bytes for each in found.values() if each is not None)
        is_new = stored is not None and stored.digest not in found
        size_bytes = stored.size_bytes if stored is not None and is_new else 0
        if used + size_bytes > most_mb << 20 or (stored is None and used == most_mb << 20):
            raise QuotaExceeded(
                "templates_mb",
                f"quota templates_mb: {used >> 20} MiB of other templates and "
                f"{-(-size_bytes >> 20)} MiB of {names[0]} are more than a tenant's {most_mb} MiB",
                retry_after_s=60.0,
                remedy="remove templates, or begin from a smaller image",
            )

    async def begin(
        self, build: BuildState, request: BuildRequest, context: Path | None, held: ExitStack
    ) -> BuildState:
        """Begin a build, which then owns `held`. Raises what sandboxes raise for their limits."""
        self._engine.outside.checked(request.network)
        cost = Cost.of(request.limits)
        if b"--from" in request.source:  # then a step may have two sandboxes
            cost += cost
        await self._queue.room(build.owner, cost)
        promise = self._queue.hold(build.owner, cost)
        held.callback(promise.release)
        whole = replace(
            request,
            context=context,
            tenant=build.owner,
            floor=self._queue.tenants.floor(build.owner),
            bring=lambda name: self._bring(build.owner, name),
            on_event=build.tell,
        )

        async def work(_build: BuildState) -> StoredImage:
            from cellwall.engine.images import builder

            try:
                stored = await builder.build(self._engine, whole)
                return await self._name(build, stored)
            finally:
                if context is not None:
                    await asyncio.to_thread(shutil.rmtree, context, ignore_errors=True)

        return self.builds.begin(build, work, held.pop_all())

    async def _bring(self, tenant: str, name: str) -> StoredImage:
        """Return what `FROM` names: a template of the tenant's own, or an image it may name."""
        own = self._image_of(tenant, name)
        if own is None:
            return await self._images.brought(tenant, name)
        stored = self._engine.images.get(own)
        if stored is None:
            raise _gone(name)
        return stored

    async def _name(self, build: BuildState, stored: StoredImage) -> StoredImage:
        async with self._naming:
            names = (build.name, *build.further)
            await self.check_room(build.owner, names, stored)
            if self._engine.images.get(stored.digest) is None:
                raise _gone(build.name)
            await asyncio.to_thread(self._own.put, build.owner, names, stored.digest)
        return stored

    # -- what is there ---------------------------------------------------------------------

    async def _all(self, tenant: str) -> list[OwnTemplate]:
        return await asyncio.to_thread(self._own.all, tenant)

    async def found(self, tenant: str) -> list[dict[str, Any]]:
        """Return a tenant's templates as they are shown, by name."""
        if not self._settings.templates_mb:
            return []
        return [self.shown(each) for each in await self._all(tenant)]

    async def get(self, tenant: str, name: str) -> OwnTemplate:
        """Return one of them. Raises NotFound."""
        from cellwall.engine.images.own_templates import whole_name

        try:
            whole = whole_name(name)
        except UsageError:
            whole = name
        return await asyncio.to_thread(self._own.get, tenant, whole)

    async def remove(self, tenant: str, name: str) -> OwnTemplate:
        """Remove a template, and its image unless something else means it.

        Raises NotFound, and Conflict while a sandbox is on it.
        """
        async with self._naming:
            found = await self.get(tenant, name)
            stored = self._engine.images.get(found.image)
            is_last = (await asyncio.to_thread(self._own.images))[found.image] == 1
            if stored is not None and is_last and not self._engine.images.names_of(stored):
                await self._remove_image(found)
            await asyncio.to_thread(self._own.remove, tenant, found.name)
        return found

    async def _remove_image(self, found: OwnTemplate) -> None:
        try:
            await self._engine.images.remove(found.image)
        except NotFound:  # it has been removed meanwhile
            pass
        except Conflict:
            raise Conflict(
                f"template {found.name}: a sandbox is on it", remedy="delete its sandboxes first"
            ) from None

    def shown(self, own: OwnTemplate) -> dict[str, Any]:
        """Return the object of the routes."""
        stored = self._engine.images.get(own.image)
        config = None if stored is None else stored.config
        used_at = None if stored is None else self._engine.images.used_at(stored)
        return {
            "name": own.name,
            "image": own.image,
            "built_at": rfc3339(own.built_at),
            "is_here": stored is not None,
            "size_bytes": None if stored is None else stored.size_bytes,
            "inodes": None if stored is None else stored.inodes,
            "used_at": None if used_at is None else rfc3339(used_at),
            "user": None if config is None else config.user or "root",
            "working_dir": None if config is None else config.working_dir,
            "environment": None if config is None else dict(config.environment),
            "labels": None if config is None else dict(config.labels),
            "has_python": None if stored is None else stored.has_python,
        }


def _gone(name: str) -> NotFound:
    return NotFound(f"template {name[:120]}: its image is gone", remedy="build it again")

"""Images of the server's door: which ones a tenant may name, and the pulls of those not here.

Images lie in the engine's store, for all tenants. The invariants: a tenant learns of an image, and
gets a sandbox on it, only if the operator's patterns name it for that tenant; nothing that a caller
says becomes a path of this machine.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from cellwall.model.errors import NotFound, UsageError
from cellwall.server.core.errors import lacking

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine
    from cellwall.engine.images.image_store import StoredImage
    from cellwall.engine.images.pulls import Pulls, PullState
    from cellwall.engine.scheduling.quotas import Tenants
    from cellwall.images.reference import Reference
    from cellwall.server.core.settings import ServerSettings
    from cellwall.surface.shared.tasks import Tasks

_WAITS_S = 3600.0
"""How long an execution in the background waits for its image, at most."""


class ImageDoor:
    """The images that callers of one server may use."""

    def __init__(
        self, engine: Engine, settings: ServerSettings, tenants: Tenants, tasks: Tasks
    ) -> None:
        """Touch nothing: most servers have no images."""
        self._engine = engine
        self._settings = settings
        self._tenants = tenants
        self._tasks = tasks

    @cached_property
    def pulls(self) -> Pulls:
        """The pulls of this server."""
        from cellwall.engine.images.pulls import Pulls

        node = self._engine.settings.node
        return Pulls(self._engine.images, self._tasks, self._settings.most_pulls, node)

    def check(self, tenant: str, image: str | None, user: str | None) -> None:
        """Raise `UsageError` for an image that the tenant may not name; None is no image."""
        if image is None:
            if user is not None:
                raise UsageError("user: it is one of an image", remedy="name an image, too")
            return
        if not self._settings.images:
            raise UsageError(
                "image: this server's operator permits none",
                remedy="leave it out, or ask the operator to list it in the setting images",
            )
        meant = self._parsed(image)
        if self._may_be_elsewhere(tenant, meant):
            raise lacking(_not_permitted(image), "image", image)
        if not (self._is_allowed(tenant, meant) or self._is_known(tenant, meant)):
            raise _not_permitted(image)

    def _may_be_elsewhere(self, tenant: str, meant: Reference) -> bool:
        """Report whether this is a node, and `meant` the id of an image that it has not."""
        from cellwall.images.reference import ById

        is_id = bool(self._engine.settings.node) and isinstance(meant, ById)
        return is_id and not self._is_known(tenant, meant)

    async def wait_here(self, image: str | None, *, is_patient: bool = False) -> None:
        """Return when a permitted image is on this machine; the first who asks begins its pull.

        Raises `ImageComing` if it takes longer than the operator lets a request wait, and what the
        pull raises. `is_patient`: wait for the end of the pull.
        """
        if image is None or await self._engine.images.here(self._parsed(image)) is not None:
            return
        wait_s = _WAITS_S if is_patient else self._settings.image_wait_s
        await self.pulls.wait_here(self.begin(image), wait_s)

    async def brought(self, tenant: str, image: str) -> StoredImage:
        """Return an image that the tenant may name, pulled if it is not here.

        Raises `UsageError` for another one, `NotFound`, and what the pull raises.
        """
        self.check(tenant, image, None)
        await self.wait_here(image, is_patient=True)
        stored = await self._engine.images.here(self._parsed(image))
        if stored is None:
            raise NotFound(f"image {image[:120]}: it has gone again", remedy="try again")
        return stored

    def begin(self, image: str) -> PullState:
        """Begin the pull of a permitted image, or return the one under way."""
        return self.pulls.begin(image, self._parsed(image))

    def found(self, tenant: str) -> list[StoredImage]:
        """Return the images on this machine that a tenant may name."""
        if not self._settings.images:
            return []
        return [each for each in self._engine.images.images() if self._is_visible(tenant, each)]

    def find(self, tenant: str, image_id: str) -> StoredImage:
        """Return one of them by its id. Raises `NotFound`, also for what others may name."""
        for each in self.found(tenant):
            if each.digest == image_id:
                return each
        raise NotFound(f"image {image_id[:80]}: there is none", remedy="GET /images lists them")

    def pull_of(self, tenant: str, pull_id: str) -> PullState:
        """Return a pull of an image that the tenant may name. Raises `NotFound`."""
        pull = self.pulls.find(pull_id)
        if pull is None or not self._is_allowed(tenant, pull.meant):
            raise NotFound(f"pull {pull_id[:80]}: there is none", remedy="POST /images begins one")
        return pull

    def names_of(self, tenant: str, stored: StoredImage) -> list[str]:
        """Return the names of an image that the tenant may use."""
        names = self._engine.images.names_of(stored)
        return [name for name in names if self._is_allowed(tenant, self._parsed(name))]

    def _is_visible(self, tenant: str, stored: StoredImage) -> bool:
        by_id = self._is_allowed(tenant, self._parsed(stored.digest))
        return by_id or bool(self.names_of(tenant, stored))

    def _is_known(self, tenant: str, meant: Reference) -> bool:
        """Report whether `meant` is the id of an image that the tenant may use by name."""
        from cellwall.images.reference import ById

        return isinstance(meant, ById) and any(
            each.digest == meant.digest for each in self.found(tenant)
        )

    def _is_allowed(self, tenant: str, meant: Reference) -> bool:
        from cellwall.images.patterns import is_allowed  # most servers have no images

        own = self._tenants.images(tenant)
        return is_allowed(meant, self._settings.images) and (own is None or is_allowed(meant, own))

    def _parsed(self, image: str) -> Reference:
        from cellwall.images.reference import Archive, parse

        meant = parse(image)
        if isinstance(meant, Archive):  # SECURITY: never a path of the server's disk
            raise _not_permitted(image)
        return meant


def _not_permitted(image: str) -> UsageError:
    return UsageError(
        f"image: {image[:120]!r} is not one that the operator lets you name",
        remedy="GET /images lists what is here; the operator lists others in the setting images",
    )

"""Pulls: images on their way here, each brought once for all who ask for it.

Not how one is brought (`image_store`). For servers, whose callers do not wait as long as a pull may
take. The invariants: no more than `most` images come at once; a caller that goes away ends no pull.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cellwall.model.errors import CapacityError, ImageComing
from cellwall.model.ids import new_id

if TYPE_CHECKING:
    from cellwall.engine.images.image_store import ImageStore, StoredImage
    from cellwall.images.reference import Reference
    from cellwall.surface.shared.tasks import Tasks

_MOST_WAITING = 100
_KEPT_S = 600.0
_RETRY_S = 5.0


@dataclass(slots=True)
class PullState:
    """One pull, also for a while after its end."""

    name: str
    meant: Reference
    id: str
    come_bytes: int = 0
    all_bytes: int = 0
    """Number of bytes that will come; 0 until that is known."""
    stored: StoredImage | None = None
    failure: BaseException | None = None
    ended_at: float | None = None
    """When it ended, in seconds of the monotonic clock."""
    ended: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def status(self) -> str:
        """`coming`, `here` or `failed`."""
        if self.ended_at is None:
            return "coming"
        return "here" if self.failure is None else "failed"


class Pulls:
    """The pulls of one engine."""

    def __init__(self, store: ImageStore, tasks: Tasks, most: int, node: str = "") -> None:
        """`most`: how many images come at once; further ones wait. `node` begins their ids."""
        self._node = node
        self._store = store
        self._tasks = tasks
        self._gate = asyncio.Semaphore(most)
        self._all: dict[str, PullState] = {}
        self._coming: dict[str, PullState] = {}

    def begin(self, name: str, meant: Reference) -> PullState:
        """Return the pull of that name that is under way, or begin one.

        Raises `CapacityError` if too many wait.
        """
        self._expire()
        known = self._coming.get(name)
        if known is not None:
            return known
        if len(self._coming) >= _MOST_WAITING:
            raise CapacityError(
                f"image {name}: {_MOST_WAITING} others are on their way",
                retry_after_s=30,
                remedy="try again later",
            )
        made = PullState(name, meant, new_id(self._node))
        self._all[made.id] = self._coming[name] = made
        self._tasks.spawn(self._bring(made))
        return made

    async def _bring(self, pull: PullState) -> None:
        def came(come: int, whole: int) -> None:
            pull.come_bytes, pull.all_bytes = come, whole

        try:
            async with self._gate:
                pull.stored = await self._store.bring(pull.meant, came)
        except Exception as error:  # noqa: BLE001 - raised to the callers that wait
            pull.failure = error
        except BaseException as error:
            pull.failure = error
            raise
        finally:
            pull.ended_at = time.monotonic()
            self._coming.pop(pull.name, None)
            pull.ended.set_result(None)

    async def wait_here(self, pull: PullState, wait_s: float | None) -> StoredImage:
        """Return the image that a pull brings; `ImageComing` after `wait_s` seconds without it.

        Raises what ended the pull, too.
        """
        await asyncio.wait({pull.ended}, timeout=wait_s)
        if pull.stored is None:
            raise pull.failure or coming(pull)
        return pull.stored

    def find(self, pull_id: str) -> PullState | None:
        """Return a pull, also one that has ended in the last ten minutes."""
        self._expire()
        return self._all.get(pull_id)

    def _expire(self) -> None:
        limit = time.monotonic() - _KEPT_S
        for pull in list(self._all.values()):
            if pull.ended_at is not None and pull.ended_at < limit:
                del self._all[pull.id]


def coming(pull: PullState) -> ImageComing:
    """Return the answer to a caller that does not wait any longer."""
    how_much = ""
    if pull.all_bytes:
        how_much = f", {pull.come_bytes >> 20} of {pull.all_bytes >> 20} MiB are here"
    return ImageComing(
        f"image {pull.name}: it is on its way{how_much}",
        retry_after_s=_RETRY_S,
        remedy="ask again: it comes meanwhile",
    )

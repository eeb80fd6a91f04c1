"""Images for synchronous programs: `Images().build(…)`, `.pull(…)`, `.all()`, `.remove(…)`.

Each call is passed to the engine that `run` and `Sandbox` use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cellwall.embedded.on_engine import OnEngine
from cellwall.images.steps import ImageSteps

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine
    from cellwall.engine.images.builder import BuildEvent
    from cellwall.engine.images.image_store import StoredImage

T = TypeVar("T")


class Images(OnEngine):
    """The images of this machine; a sandbox gets one by `Sandbox(image="task")`."""

    def all(self) -> Sequence[StoredImage]:
        """Return the images, the newest first."""

        async def work(engine: Engine) -> Sequence[StoredImage]:
            return engine.images.images()

        return self._call(work)

    def pull(self, name: str) -> StoredImage:
        """Bring an image here, also if its name is known.

        Raises UsageError, NotFound, ImageInvalid, CapacityError, HostUnsupported.
        """

        async def work(engine: Engine) -> StoredImage:
            from cellwall.images import reference

            return await engine.images.bring(reference.parse(name))

        return self._call(work)

    def remove(self, name: str) -> StoredImage:
        """Remove an image, by its id or a name. Raises NotFound, Conflict if it is in use."""
        return self._call(lambda engine: engine.images.remove(name))

    def build(  # noqa: PLR0913 - the parts of a build
        self,
        source: ImageSteps | str | Path,
        *,
        context: str | Path | None = None,
        name: str | None = None,
        arguments: Mapping[str, str] | None = None,
        target: str | None = None,
        network: object = None,
        on_event: Callable[[BuildEvent], None] | None = None,
    ) -> StoredImage:
        """Build an image from steps, the path of a Dockerfile, or the text of one.

        `context`: the directory whose files `COPY` copies. `name`: what `image=` calls it from now
        on. `arguments`: values of `ARG`. `target`: the stage that is wanted, by default the last.
        `network`: what `Sandbox(network=…)` takes; by default the steps have none. `on_event` hears
        what is done, from another thread. Raises DockerfileInvalid, BuildFailed, UsageError,
        HostUnsupported, and what sandboxes raise.
        """

        text = source.read_bytes() if isinstance(source, Path) else str(source).encode()

        async def work(engine: Engine) -> StoredImage:
            from cellwall.engine.images.builder import BuildRequest, build

            request = BuildRequest(
                text,
                None if context is None else Path(context),
                name,
                dict(arguments or {}),
                target,
                network,
                on_event=on_event,
            )
            return await build(engine, request)

        return self._call(work)

"""One live sandbox for callers without an event loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cellwall.embedded.default import default
from cellwall.surface.sync.sandbox import SyncSandbox

if TYPE_CHECKING:
    from cellwall.embedded.runner import Runner
    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.model.limits import Limits
    from cellwall.surface.sync.loop_thread import LoopThread


class Sandbox(SyncSandbox):
    """One live sandbox, synchronously: `with Sandbox() as sandbox: sandbox.run("x = 1")`."""

    def __init__(
        self,
        template: str = "python",
        limits: Limits | Mapping[str, Any] | None = None,
        *,
        runner: Runner | None = None,
        **options: Any,  # noqa: ANN401 - of Engine.create_sandbox
    ) -> None:
        """Create the sandbox; options are those of `Engine.create_sandbox`.

        `runner` is for tests and embedders with an engine of their own.
        """
        thread = runner or default.get()
        made = thread.call(lambda engine, _put: engine.create_sandbox(template, limits, **options))
        super().__init__(thread, made)
        self._made = made

    @classmethod
    def restore(
        cls, snapshot: str, *, reseed: bool = True, runner: Runner | None = None
    ) -> Sandbox:
        """Return a new sandbox that is the session of a snapshot, by its id or its name.

        Raises NotFound.
        """
        thread = runner or default.get()
        return cls._of(
            thread,
            thread.call(lambda engine, _put: engine.copies.restore(snapshot, "", reseed=reseed)),
        )

    @classmethod
    def _of(cls, thread: LoopThread[Any], made: AsyncSandbox) -> Sandbox:
        """Return the face of a sandbox that exists."""
        face = cls.__new__(cls)
        SyncSandbox.__init__(face, thread, made)
        face._made = made
        return face

    def _twin(self, inner: AsyncSandbox) -> Sandbox:
        return self._of(self._thread, inner)

    @property
    def posture(self) -> Mapping[str, Any]:
        """Facts of its confinement, as read back from the OS."""
        return self._made.posture

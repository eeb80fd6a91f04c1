"""The contexts of a synchronous sandbox; the asynchronous `contexts` say what each call does."""

from __future__ import annotations

from cellwall.surface.part import Part


class SyncContexts(Part):
    """The contexts of one sandbox."""

    def create(self, name: str) -> None:
        """Start another context."""
        self._do(lambda: self._inner.contexts.create(name))

    def list(self) -> list[str]:
        """Return the names of the contexts that are alive."""
        return self._do(self._inner.contexts.list)

    def close(self, name: str) -> None:
        """End a context."""
        self._do(lambda: self._inner.contexts.close(name))

    def restart(self, name: str = "main") -> None:
        """End a context and start it afresh."""
        self._do(lambda: self._inner.contexts.restart(name))

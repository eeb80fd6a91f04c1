"""The contexts of a synchronous sandbox; the asynchronous `contexts` say what each call does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.surface.sync.part import Part

if TYPE_CHECKING:
    from cellwall.model.context import ContextName


class SyncContexts(Part):
    """The contexts of one sandbox."""

    def create(self, name: str, language: str = "python") -> ContextName:
        """Start another context of a language that keeps state between cells; return its name."""
        return self._do(lambda: self._inner.contexts.create(name, language))

    def list(self) -> list[ContextName]:
        """Return the names of the contexts that are alive; each knows its `language`."""
        return self._do(self._inner.contexts.list)

    def close(self, name: str) -> None:
        """End a context."""
        self._do(lambda: self._inner.contexts.close(name))

    def restart(self, name: str = "main") -> None:
        """End a context and start it afresh."""
        self._do(lambda: self._inner.contexts.restart(name))

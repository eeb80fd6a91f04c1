"""Keeper: one sandbox for a conversation, created on first use, replaced if it died, closed once.

It knows neither models nor frameworks. The invariant: after `close` no sandbox of a keeper is left,
and it never creates another.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import cellwall

if TYPE_CHECKING:
    from cellwall.surface.sync.sandbox import SyncSandbox

Files = Mapping[str, str | bytes]


class Keeper:
    """Keeper of one sandbox; safe to use from several threads."""

    def __init__(
        self,
        sandbox: SyncSandbox | None = None,
        *,
        client: Any = None,  # noqa: ANN401 - what `cellwall.connect` returned
        files: Files | None = None,
        snapshot: str | None = None,
        **options: Any,  # noqa: ANN401 - of `Sandbox`
    ) -> None:
        """Start nothing yet.

        `sandbox` is the caller's own, never closed or replaced here. Otherwise sandboxes are
        created with `options`, by the server of `client` or embedded, or are made of `snapshot`,
        which has a template and options of its own; `files` are written into each.
        """
        self._given = sandbox
        self._make = cellwall.Sandbox if client is None else client.Sandbox
        if snapshot is not None:
            self._make = partial(_restored, client or cellwall.Sandbox, snapshot)
            options.pop("template", None)
            if options:
                raise cellwall.UsageError(
                    f"snapshot: it has its own {', '.join(sorted(options))}",
                    remedy="leave them out, or make the snapshot of a sandbox that has them",
                )
        self._files = dict(files or {})
        self._options = options
        self._lock = threading.Lock()
        self._sandbox: SyncSandbox | None = None
        self._is_replaced = False
        """Whether a sandbox died and no call of `told` has acknowledged that yet."""
        self._is_closed = False

    @classmethod
    def for_agent(cls, sandbox: SyncSandbox | None = None, **options: Any) -> Keeper:  # noqa: ANN401 - of `Keeper`
        """Return a keeper for an agent: `limits` of its sandboxes default to `Limits.agent()`."""
        if options.get("snapshot") is None:  # it has limits of its own
            options.setdefault("limits", cellwall.Limits.agent())
        return cls(sandbox, **options)

    @property
    def is_own(self) -> bool:
        """Whether the keeper creates, replaces and closes the sandbox."""
        return self._given is None

    def take(self) -> tuple[SyncSandbox, bool]:
        """Return the living sandbox, and whether it has replaced a dead one.

        The second value stays true until `told`, however often the sandbox is taken before: a take
        may be only for a look, or its use may fail.
        """
        with self._lock:
            if self._is_closed:
                raise cellwall.UsageError("use a sandbox: it was closed", remedy="make a new one")
            if self._given is not None:
                return self._given, False
            if self._sandbox is not None and self._sandbox.status == "stopped":
                self._sandbox, self._is_replaced = None, True
            if self._sandbox is None:
                self._sandbox = self._new()
            return self._sandbox, self._is_replaced

    def fork(self, count: int, **options: Any) -> list[Keeper]:  # noqa: ANN401 - of `Sandbox.fork`
        """Return keepers of `count` copies of the sandbox; of none if one of them failed."""
        forks = self.take()[0].fork(count, **options)
        failed = [each.error for each in forks if each.error is not None]
        if failed:
            for each in forks:
                if each.made is not None:
                    each.made.close()
            raise failed[0]
        return [self._of(each.sandbox) for each in forks]

    def _of(self, sandbox: SyncSandbox) -> Keeper:
        """Return a keeper of its own for a copy; it replaces one that died as this one does."""
        made = Keeper(files=self._files, **self._options)
        made._make, made._sandbox = self._make, sandbox
        return made

    def told(self, sandbox: SyncSandbox) -> None:
        """Record that the caller has reported, or set up, the new sandbox."""
        with self._lock:
            if sandbox is self._sandbox:
                self._is_replaced = False

    def _new(self) -> SyncSandbox:
        sandbox: SyncSandbox = self._make(**self._options)
        try:
            for path, content in self._files.items():
                sandbox.files.write(path, content)
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def forget(self) -> None:
        """Close the sandbox, unless it is the caller's; the next `take` creates another."""
        with self._lock:
            sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.close()

    def close(self) -> None:
        """Close the sandbox, unless it is the caller's, for good; idempotent."""
        with self._lock:
            self._is_closed = True
        self.forget()


def _restored(maker: Any, snapshot: str) -> SyncSandbox:  # noqa: ANN401 - a client, or `Sandbox`
    made: SyncSandbox = maker.restore(snapshot)
    return made

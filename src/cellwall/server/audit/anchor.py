"""Anchors: writes the head of the audit's chain outside the store, at least each minute.

A chain alone does not show that its end was cut off, or that it was made anew as a whole; a head
that lies elsewhere does. The chain is in `chain`, the check against anchors in `check`. The
invariant: an anchor is never written before its record is durable, and a failing target is logged,
counted and tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING, Protocol

from cellwall.model.errors import CellwallError, UsageError
from cellwall.server.audit.check import anchor_line
from cellwall.server.core.times import rfc3339
from cellwall.server.observability.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellwall.store.records.rows import AuditRow
    from cellwall.store.store import Store

_log = logger("cellwall.audit")
_SYSLOG = "/dev/log"
_PRIORITY = 10 * 8 + 5
"""Syslog priority: facility authpriv, severity notice."""
MOST_S = 60.0


class Target(Protocol):
    """A destination for lines; raises `OSError`."""

    def write(self, line: str) -> None:
        """Write a line; it is on disk, or with another process, when this returns."""


class AnchorFile:
    """A file that is only appended to; `chattr +a` makes the kernel enforce that."""

    def __init__(self, path: str) -> None:
        """The file is opened afresh for each line, so that it can be rotated."""
        self._path = path

    def write(self, line: str) -> None:
        """Append the line and wait for the disk."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._path, flags, 0o640)
        try:
            os.write(fd, f"{line}\n".encode())
            os.fsync(fd)
        finally:
            os.close(fd)


class AnchorSyslog:
    """The system's log, which another process keeps or sends away."""

    def __init__(self, path: str = _SYSLOG) -> None:
        """`path` is the socket of the log's daemon."""
        self._path = path

    def write(self, line: str) -> None:
        """Send the line."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(5)
            sock.connect(self._path)
            sock.send(f"<{_PRIORITY}>cellwall: {line}".encode())


def target_of(setting: str) -> Target:
    """Return the target that `audit_anchor` names: `syslog`, `syslog:SOCKET` or a file."""
    kind, colon, path = setting.partition(":")
    if kind == "syslog":
        return AnchorSyslog(path) if colon else AnchorSyslog()
    return AnchorFile(setting)


class Anchoring:
    """Writes the head to a target while the server runs."""

    def __init__(
        self, store: Store, target: Target, every_s: float, on_failure: Callable[[], None]
    ) -> None:
        """Look each `every_s` seconds, at least each minute; `on_failure` counts failed writes."""
        self._store = store
        self._target = target
        self._every_s = min(every_s, MOST_S)
        self._on_failure = on_failure
        self._last = 0
        self._server = ""
        self._task: asyncio.Task[None] | None = None

    async def open(self, spawn: Callable[..., asyncio.Task[None]]) -> None:
        """Write the head as it is, and go on in the background; `UsageError` if that fails."""
        self._server = await self._store.server_id()
        try:
            await self._write()
        except OSError as error:
            raise UsageError(
                f"audit: write the anchor: {error}",
                remedy="set audit_anchor to a file the server may append to, or to syslog",
            ) from None
        self._task = spawn(self._go_on())

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.try_write()

    async def try_write(self, row: AuditRow | None = None) -> bool:
        """Write `row`, or the head if there are records since; a failure is logged and counted.

        Returns whether nothing failed.
        """
        try:
            await (self._write() if row is None else self._write_row(row))
        except (OSError, CellwallError) as error:
            self._on_failure()
            _log.error("anchor not written", reason=str(error))
            return False
        return True

    async def _write(self) -> None:
        head = await self._store.audit_head()
        if head is not None and head.seq != self._last:
            await self._write_row(head)
            self._last = head.seq

    async def _write_row(self, row: AuditRow) -> None:
        line = anchor_line(row.seq, row.hash, rfc3339(time.time()), self._server)
        await asyncio.to_thread(self._target.write, line)

    async def aclose(self) -> None:
        """Write the head for the last time."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self.try_write()

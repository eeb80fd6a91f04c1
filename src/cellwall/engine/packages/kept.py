"""Installations that come again: what the installer wrote in one sandbox, put into the next one.

Programs of one caller often ask for the same packages, each in a fresh sandbox. The installer takes
60 ms of processor time before it unpacks anything, and unpacking comes on top; putting the files
that it left into another sandbox takes half of the whole. From the second time on that a caller
asks for the same within some minutes, they are kept, in a file without a name on the engine's disk.

The invariants: files are taken from a sandbox in which the installer ran and nothing of its
caller's, and given to sandboxes of the same tenant, template, environment and package policy only,
which would have run that installer; the engine never looks inside, and they count against a
sandbox's limits as what the installer writes does; each package is on record as with the installer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import tempfile
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from cellwall.engine.packages.installing import install
from cellwall.engine.parts.transfers import PIECE_BYTES, get_tree, put_tree
from cellwall.model.errors import CellwallError
from cellwall.model.network import NO_NETWORK
from cellwall.runtimes.channel.replies import GuestRefused

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.parts.network import Outside
    from cellwall.model.packages import PackagePolicy
    from cellwall.surface.shared.tasks import Tasks

KEPT_S = 300.0
"""Seconds after an installation for which what it wrote is taken for what it would write now. The
public registry of Python packages lets its pages be twice as old."""
_MOST_BYTES = 1 << 30
"""Most bytes kept by one engine."""
_LARGEST_BYTES = 256 << 20
"""Most bytes of one installation that is kept."""
_MOST_ASKED = 1000
"""Most installations that are remembered as asked for once."""
_log = logging.getLogger("cellwall")
_FOLDER = "/home/user/.local"
"""Where the installer writes (`engine.templates.user_installs`); its cache is elsewhere."""


class _Asked(NamedTuple):
    """What an installation depends on."""

    tenant: str
    runtime: str
    template: str
    """The template's digest."""
    requirements: tuple[str, ...]
    policy: PackagePolicy
    env: tuple[tuple[str, str], ...]

    def digest(self) -> bytes:
        """Return what stands for it: a caller may give megabytes, and 1,000 are remembered."""
        return hashlib.sha256(repr(self).encode("utf-8", "surrogatepass")).digest()


@dataclass(slots=True)
class _Kept:
    file: IO[bytes]
    size: int
    records: tuple[dict[str, Any], ...]
    """What the package broker recorded of it."""
    end: asyncio.TimerHandle
    """Forgets it when its time is over, whether or not a caller asks for it again."""
    users: int = 0
    is_over: bool = False
    """Whether it is kept no longer; its file is closed by its last user."""


class KeptInstallations:
    """The installations of one engine. Lives on its event loop."""

    def __init__(self, folder: Path, outside: Outside, tasks: Tasks) -> None:
        """Keep files on the file system of `folder`, which exists."""
        self._folder = folder
        self._outside = outside
        self._tasks = tasks
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._size = 0
        self._asked: OrderedDict[bytes, float] = OrderedDict()
        """When each was last installed, the latest last."""
        self._coming: set[bytes] = set()
        """Those whose files are being read from a sandbox."""
        self.placed = 0
        """Number of sandboxes that got what was kept."""

    async def install(
        self, live: ClaimedSandbox, requirements: tuple[str, ...], tenant: str
    ) -> None:
        """Install into a sandbox in which nothing of its caller's ran. Raises as the installer."""
        if live.spec.volumes:  # one may lie where the installer writes
            await install(live, self._outside, requirements, self._tasks, tenant=tenant)
            return
        asked = self._asked_of(live, requirements, tenant)
        found = self._kept.get(asked)
        if found is not None and await self._place(asked, live, found, tenant):
            return
        await install(live, self._outside, requirements, self._tasks, tenant=tenant)
        if self._comes_again(asked):
            await self._keep(asked, live)

    def _asked_of(self, live: ClaimedSandbox, requirements: tuple[str, ...], tenant: str) -> bytes:
        own = None if live.network is None else live.network.policy.packages
        return _Asked(
            tenant,
            live.isolation.runtime,
            live.spec.template.digest,
            requirements,
            self._outside.check_packages() if own is None else own,
            tuple(sorted(live.spec.env.items())),
        ).digest()

    def _comes_again(self, asked: bytes) -> bool:
        """Note that it was installed; whether that was so already within the time."""
        now_s, before_s = _now_s(), self._asked.pop(asked, None)
        self._asked[asked] = now_s
        if len(self._asked) > _MOST_ASKED:
            self._asked.popitem(last=False)
        return before_s is not None and now_s - before_s < KEPT_S

    # -- into a sandbox --------------------------------------------------------------------

    async def _place(self, asked: bytes, live: ClaimedSandbox, kept: _Kept, tenant: str) -> bool:
        """Put it into a sandbox; False if it could not have it, which then has nothing of it.

        Raises SandboxUnavailable if the sandbox ends.
        """
        kept.users += 1
        try:
            with live.speaking():
                await put_tree(live, _FOLDER, _pieces(kept))
        except GuestRefused:  # such as a limit of its disk, of which the installer says more
            await _removed(live)
            return False
        except OSError:  # the engine's disk cannot be read
            self._forget(asked)
            await _removed(live)
            return False
        finally:
            kept.users -= 1
            _close_unused(kept)
        self.placed += 1
        self._record(live, kept, tenant)
        return True

    def _record(self, live: ClaimedSandbox, kept: _Kept, tenant: str) -> None:
        """Put each package on record, as the broker would have."""
        if live.network is None:
            self._outside.know(live, NO_NETWORK, tenant)
        for record in kept.records:
            again = {**record, "at": time.time(), "received_bytes": 0, "kept": True}
            self._outside.heard(live.spec.sandbox_id, again)

    # -- out of a sandbox ------------------------------------------------------------------

    async def _keep(self, asked: bytes, live: ClaimedSandbox) -> None:
        """Keep what the installer has just written; the next one installs again if that fails."""
        if asked in self._coming or asked in self._kept:
            return
        self._coming.add(asked)
        try:
            file = await asyncio.to_thread(self._made)
            try:
                size = await _copied(live, file)
            except BaseException:
                file.close()
                raise
        except OSError as error:
            _log.warning("an installation of packages is not kept: %s", error)
            return
        except (CellwallError, _TooLarge):
            return
        finally:
            self._coming.discard(asked)
        log = () if live.network is None else tuple(live.network.log)
        records = tuple(each for each in log if each["event"] == "package")
        end = asyncio.get_running_loop().call_later(KEPT_S, self._forget, asked)
        self._kept[asked] = _Kept(file, size, records, end)
        self._size += size
        while self._size > _MOST_BYTES:
            self._forget(next(iter(self._kept)))

    def _made(self) -> IO[bytes]:
        return tempfile.TemporaryFile(dir=self._folder)

    def _forget(self, asked: bytes) -> None:
        gone = self._kept.pop(asked, None)
        if gone is None:
            return
        gone.end.cancel()
        self._size -= gone.size
        gone.is_over = True
        _close_unused(gone)

    def close(self) -> None:
        """Forget all of it; what is being put into a sandbox stays until that is done."""
        for asked in list(self._kept):
            self._forget(asked)


class _TooLarge(Exception):
    """It is more than may be kept."""


async def _removed(live: ClaimedSandbox) -> None:
    """Remove the installer's folder. Raises GuestRefused if something of it may be left."""
    try:
        with live.speaking():
            await live.channel.request("file_remove", path=_FOLDER, recursive=True)
    except GuestRefused as refusal:
        if refusal.reason != "not_found":
            raise


async def _copied(live: ClaimedSandbox, file: IO[bytes]) -> int:
    """Copy the installer's folder into a file; return its size."""
    size = 0
    with live.speaking():
        async with contextlib.aclosing(get_tree(live, "tree_get", {"path": _FOLDER})) as pieces:
            async for piece in pieces:
                size += len(piece)
                if size > _LARGEST_BYTES:
                    raise _TooLarge
                await asyncio.to_thread(file.write, piece)
    await asyncio.to_thread(file.flush)
    return size


async def _pieces(kept: _Kept) -> AsyncIterator[bytes]:
    offset = 0
    while offset < kept.size:
        piece = await asyncio.to_thread(os.pread, kept.file.fileno(), PIECE_BYTES, offset)
        if not piece:
            raise OSError("a kept installation has become shorter")
        offset += len(piece)
        yield piece


def _close_unused(kept: _Kept) -> None:
    if kept.is_over and not kept.users:
        kept.file.close()


def _now_s() -> float:
    return asyncio.get_running_loop().time()

"""The host's half of `jail.processes.idmapper`: detached mounts of images, one for each start.

Runs on asyncio in the engine process. The process that makes the mounts is started with the first
sandbox on an image and ends with the engine's end of their socket. The invariant: a mount is handed
out only as the answer to its own request.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from cellwall.jail.processes import idmapper
from cellwall.jail.protocol import fds
from cellwall.linux import uid_ranges
from cellwall.model.errors import HostUnsupported, SandboxBroken
from cellwall.model.shortage import shortage
from cellwall.runtimes.jail.starting.bundle import bundle_in
from cellwall.runtimes.shared import helper_process
from cellwall.runtimes.shared.helper_process import HelperProcess
from cellwall.runtimes.shared.replies import error_number, receive

_TIMEOUT_S = 20.0


class Mapper:
    """The process that maps ids of images."""

    def __init__(self, state_dir: Path, *, maps: bool = True) -> None:
        """Start nothing yet. `maps`: False for an ordinary user, who may map no ids of files."""
        self._state_dir, self._maps = state_dir, maps
        self._helper: HelperProcess | None = None
        self._lock = asyncio.Lock()

    async def mount(self, tree: str, first: int, count: int) -> int:
        """Return a detached mount of `tree`, whose files belong to `count` ids from `first` on.

        An ordinary user's files have their ids on disk. The caller owns the descriptor. Raises
        HostUnsupported, SandboxBroken.
        """
        if not self._maps:
            return await asyncio.shield(self._asked({"tree": tree}, ()))
        directory = os.open(tree, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        request = {"first": first, "count": count, "base": uid_ranges.IMAGE_BASE}
        try:
            # A request that was sent is answered to the end, also if its caller has left.
            return await asyncio.shield(self._asked(request, (os.dup(directory),)))
        finally:
            os.close(directory)

    async def _asked(self, request: dict[str, Any], directories: tuple[int, ...]) -> int:
        try:
            async with self._lock:
                control = (self._helper or self._started()).control
                try:
                    fds.send_message(control, request, directories)
                    message, received = await receive(control, _TIMEOUT_S)
                except (fds.ControlClosed, OSError, TimeoutError) as error:
                    await self._end()
                    raise SandboxBroken(f"image: the id mapper is gone ({error})") from error
        finally:
            fds.close_all(directories)
        if len(received) == 1:
            return received[0]
        fds.close_all(received)
        number, problem = error_number(message), str(message.get("error"))
        raise shortage(number, "map the ids of an image", problem) or HostUnsupported(
            "images",
            f"map the ids of an image: {problem}",
            remedy="keep the state directory on ext4, XFS or Btrfs, and use Linux 6.6 or newer",
            errno=number,
        )

    def _started(self) -> HelperProcess:
        after = () if self._maps else (idmapper.OWN_NAMESPACES,)
        try:
            made = helper_process.start(bundle_in(self._state_dir), ["idmapper"], after)
        except OSError as error:
            raise shortage(error.errno, "start the id mapper", error) or error from error
        made.control.setblocking(False)
        self._helper = made
        return made

    async def _end(self) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            await asyncio.to_thread(helper.end)

    def abandon(self) -> None:
        """Close our end of the socket, in a forked child; the process stays the parent's."""
        if self._helper is not None:
            self._helper.abandon()

    async def aclose(self) -> None:
        """End the process."""
        async with self._lock:
            await self._end()

"""The host's half of `jail.volumes.keeper`: the process of one engine that has volumes mounted.

Runs on asyncio in the engine process. Which volumes may be mounted is decided in `holder`. The
process starts with the first volume, or ahead of it, and ends with the engine's end of their
socket.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cellwall.jail.protocol import fds
from cellwall.model.errors import CellwallError, HostUnsupported, SandboxBroken
from cellwall.model.shortage import shortage
from cellwall.runtimes.shared import helper_process
from cellwall.runtimes.shared.guest_bundle import build_bundle
from cellwall.runtimes.shared.helper_process import HelperProcess

_TIMEOUT_S = 60.0
_BUNDLE = (
    "cellwall.jail.processes.id_namespaces",
    "cellwall.jail.protocol.fds",
    "cellwall.jail.volumes.attachment",
    "cellwall.jail.volumes.keeper",
    "cellwall.linux.syscalls",
)
_ENTRY = "cellwall.jail.volumes.keeper:begin"
_NO_DEVICE = frozenset({errno.ENOENT, errno.ENXIO, errno.ENODEV, errno.EBUSY, errno.ENOSPC})
"""Error numbers of a mount where no loop device can be had."""


class KeeperProcess:
    """The process that has this engine's volumes mounted."""

    def __init__(self, state_dir: Path) -> None:
        """Start nothing yet."""
        self._state_dir = state_dir
        self._helper: HelperProcess | None = None
        self._lock = asyncio.Lock()
        self.generation = 0
        """Number of processes that have ended; what they had mounted is unmounted."""

    async def prepare(self) -> None:
        """Start the process ahead of its use. Raises CapacityError, OSError."""
        async with self._lock:
            if self._helper is None:
                self._started()

    async def ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> list[int]:
        """Return the descriptors of the answer to a request; the caller owns them.

        Raises HostUnsupported, CapacityError, and SandboxBroken if the process is gone.
        """
        async with self._lock:
            control = (self._helper or self._started()).control
            try:
                answer, received = await asyncio.to_thread(_asked, control, request, descriptors)
            except (fds.ControlClosed, OSError, ValueError) as error:
                await self._end()
                raise SandboxBroken(f"volume: the keeper is gone ({error})") from error
        if "error" not in answer:
            return received
        fds.close_all(received)
        raise _explained(answer.get("errno"), str(answer["error"]), str(request["do"]))

    def _started(self) -> HelperProcess:
        bundle = build_bundle(self._state_dir, _BUNDLE, _ENTRY)
        folder = self._state_dir / "volumes"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            made = helper_process.start(bundle, after=[str(folder)])
        except OSError as error:
            raise shortage(error.errno, "start the keeper of volumes", error) or error from error
        made.control.settimeout(_TIMEOUT_S)
        self._helper = made
        return made

    async def _end(self) -> None:
        helper, self._helper = self._helper, None
        self.generation += 1
        if helper is not None:
            await asyncio.to_thread(helper.end)

    def abandon(self) -> None:
        """Close our end of the socket, in a forked child; the process stays the parent's."""
        if self._helper is not None:
            self._helper.abandon()

    async def aclose(self) -> None:
        """End the process, and with it its mounts."""
        async with self._lock:
            await self._end()


def _asked(
    control: socket.socket, request: Mapping[str, Any], descriptors: Sequence[int]
) -> tuple[dict[str, Any], list[int]]:
    fds.send_message(control, dict(request), descriptors)
    return fds.receive_message(control)


def _explained(number: Any, problem: str, step: str) -> CellwallError:  # noqa: ANN401 - said
    known = number if isinstance(number, int) else None
    if step == "mount" and known in _NO_DEVICE:
        return HostUnsupported(
            "volumes",
            f"volume: mount it: {problem}",
            remedy="have a free loop device: `modprobe loop`, /dev/loop-control, `losetup -a`",
            errno=known,
        )
    return shortage(known, f"volume: {step}", problem) or HostUnsupported(
        "volumes",
        f"volume: {step}: {problem}",
        remedy="run cellwall as root on a host with ext4, and Linux 6.6 or newer",
        errno=known,
    )

"""Abilities: what the `checkpoint` of one `runsc` can do on this host, asked and tried.

Versions up to 2022 have `-leave-running`, but end what they write down all the same, so the word of
the binary is not enough: a newer one has to show it once with a program that does nothing else, and
is refused if it fails. The result is kept by the digest of the binary, as that of a platform.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cellwall.model.errors import CellwallError, HostUnsupported
from cellwall.runtimes.gvisor.trees import writing

if TYPE_CHECKING:
    from cellwall.runtimes.gvisor.binary import Binary
    from cellwall.runtimes.gvisor.keeper import Keeper

ECHO = ("/usr/bin/sh", "-c", 'while read line; do echo "$line"; done')
"""Program of a trial: it says what it reads, and nothing else shows that it goes on."""
Trial = Callable[[], Awaitable[str]]
_TRY_S = 15.0
_LOOK_S = 0.05
_OPTIONAL = {"compression": "--compression=none"}
"""Flags that make a source stand still for a shorter time, where a version has them."""


class Abilities(NamedTuple):
    """How one `runsc` writes a sandbox down."""

    runsc: Sequence[str]
    """The program with its flags."""
    stays: bool
    """Whether the sandbox goes on; otherwise it ends, and has to be started again."""
    flags: Sequence[str]
    """Flags of `checkpoint`."""


async def of(
    binary: Binary, runsc: Sequence[str], known: Set[str], trial: Trial | None
) -> Abilities:
    """Return what a binary can do whose `checkpoint` has flags. Raises HostUnsupported.

    `trial` returns why it does not leave running what it writes down; None: its version says that.
    """
    flags = [flag for word, flag in _OPTIONAL.items() if word in known]
    if trial is None:
        return Abilities(runsc, False, flags)
    reason = await trial()
    if reason:
        raise HostUnsupported(
            "copies",
            f"gVisor: {binary.path} {binary.version} copies nothing here: {reason}",
            remedy="install another runsc, as Debian 13 has",
        )
    return Abilities(runsc, True, [*flags, "--leave-running"])


async def shown(keeper: Keeper, line: socket.socket, runsc: Sequence[str], folder: Path) -> str:
    """Have a sandbox that runs `ECHO` written down; return why it does not go on, or nothing."""
    if not await _echoes(keeper, line, "before"):
        return keeper.said()[-300:] or "the program of the trial does not answer"
    try:
        image = await asyncio.to_thread(
            writing.take, keeper.pid, runsc, folder, ["--leave-running"], _TRY_S
        )
    except CellwallError as error:
        return error.message
    for fd in image:
        os.close(fd)
    return "" if await _echoes(keeper, line, "after") else "it does not go on"


async def _echoes(keeper: Keeper, line: socket.socket, word: str) -> bool:
    """Report whether the program says a word that it is told."""
    deadline = asyncio.get_running_loop().time() + _TRY_S
    try:
        line.send(f"{word}\n".encode())
    except OSError:
        return False
    while word not in keeper.said() and not keeper.has_ended:
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(_LOOK_S)
    return word in keeper.said()

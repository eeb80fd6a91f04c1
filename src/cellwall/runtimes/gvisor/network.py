"""The way out of a gVisor sandbox: a pair of devices into a namespace with listeners.

gVisor takes over the devices of the network namespace that its keeper made. For a sandbox with a
network the engine puts one end of a pair there before `runsc` starts; the other end is in a
namespace of its own, which nothing but the listeners uses (`linux.network.pair`).
"""

from __future__ import annotations

import asyncio
import os
import socket

from cellwall.linux.network import listeners, pair
from cellwall.model.errors import SandboxBroken
from cellwall.runtimes.gvisor.keeper import Keeper
from cellwall.runtimes.shared.network_listeners import WayOut, in_thread

NAME_SERVER = pair.OUTER
"""Address of the name server and of the HTTP proxy inside."""
_NAMESPACE_S = 10.0
_LOOK_S = 0.002


class Outer:
    """The outer end of one sandbox's pair."""

    def __init__(self, made: pair.Pair) -> None:
        """Own the namespace's descriptor and the listeners."""
        self._namespace = made.namespace
        self.way_out = WayOut(self._opened_again, made.listeners.sockets())

    async def _opened_again(self) -> list[socket.socket]:
        return (await in_thread(self._namespace, lambda _: pair.open_again())).sockets()

    def close(self) -> None:
        """Close what is held here; the pair goes with the last listener. Idempotent."""
        self.way_out.close()
        if self._namespace >= 0:
            os.close(self._namespace)
            self._namespace = -1


async def connect(keeper: Keeper) -> Outer:
    """Join a keeper that has not begun to a namespace with listeners.

    Raises HostUnsupported, SandboxBroken.
    """
    inner = await _namespace_of(keeper)
    try:
        # The thread moves on from the namespace it enters: `connect` makes another one.
        return Outer(await in_thread(inner, pair.connect))
    finally:
        os.close(inner)


async def _namespace_of(keeper: Keeper) -> int:
    """Return a descriptor of the network namespace that the keeper has made for its sandbox.

    SECURITY: never this process's own, which the keeper is in until it has made one.
    """
    ours = os.stat("/proc/self/ns/net").st_ino
    try:
        async with asyncio.timeout(_NAMESPACE_S):
            while not keeper.has_ended:
                found = listeners.namespace_of(keeper.pid)
                if os.fstat(found).st_ino != ours:
                    return found
                os.close(found)
                await asyncio.sleep(_LOOK_S)  # a process tells nothing of a change of namespaces
    except (TimeoutError, OSError) as error:
        raise SandboxBroken(f"gVisor: open the network: {error}") from None
    raise SandboxBroken("gVisor: open the network: the keeper has ended")

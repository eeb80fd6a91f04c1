"""Opening of a sandbox's way out: listeners in its network namespace, from the engine process.

For runtimes whose sandbox is a process of this host with a network namespace of its own. It takes
CAP_NET_ADMIN over that namespace: root has it, and an ordinary user in a process that enters the
user namespace.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from cellwall.linux import own_module
from cellwall.linux.network import listeners, probe
from cellwall.linux.network.pair import Pair
from cellwall.model.errors import HostUnsupported, SandboxBroken
from cellwall.runtimes.base import Finding


class WayOut:
    """The listeners of one sandbox, from when they are opened until its owner takes them."""

    def __init__(
        self,
        opening: Callable[[], Awaitable[list[socket.socket]]],
        ready: Sequence[socket.socket] = (),
    ) -> None:
        """`opening` opens them; `ready` are open already."""
        self._opening = opening
        self._ready = list(ready)

    async def prepare(self) -> None:
        """Open them ahead, for a sandbox that waits for its owner."""
        self._ready = await self._opening()

    async def take(self) -> list[socket.socket]:
        """Return them; new ones if they were taken before, and the first closed since."""
        ready, self._ready = self._ready, []
        return ready or await self._opening()

    def close(self) -> None:
        """Close those that were not taken."""
        ready, self._ready = self._ready, []
        for each in ready:
            each.close()


async def opened(pid: int, pidfd: int) -> list[socket.socket]:
    """Return the listeners of the sandbox whose first process has that pid and pidfd.

    The order is that of `linux.network.listeners.Listeners`. The caller owns the sockets. Raises
    HostUnsupported, SandboxBroken.
    """
    try:
        namespace = listeners.namespace_of(pid)
    except OSError as error:
        raise _broken(error) from None
    try:
        # Until its pidfd is readable no other process can get its pid.
        if select.select([pidfd], [], [], 0)[0]:
            raise SandboxBroken("open the network: the sandbox has ended")
        if os.geteuid() != 0:
            return await _in_process(namespace)
        return (await in_thread(namespace, lambda _: listeners.open_listeners())).sockets()
    finally:
        os.close(namespace)


def _broken(error: OSError) -> Exception:
    if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.EPERM, errno.EPROTONOSUPPORT):
        return HostUnsupported("network", f"open the network: {error}", remedy=probe.REMEDY)
    return SandboxBroken(f"open the network: {error}")


async def _in_process(namespace: int) -> list[socket.socket]:
    """Open them by a process that enters the user namespace, for an ordinary user's engine."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            numbers = (theirs.fileno(), namespace)
            opener = await asyncio.create_subprocess_exec(
                *own_module.command("cellwall.linux.network.opener:main", *map(str, numbers)),
                stdin=subprocess.DEVNULL,
                pass_fds=numbers,
                cwd="/",
                env={"LANG": "C.UTF-8"},
            )
        await opener.wait()
        ours.setblocking(False)
        try:
            text, descriptors, _, _ = socket.recv_fds(ours, 4096, 8)
        except BlockingIOError:
            text, descriptors = b"", []
    if descriptors:
        return [socket.socket(fileno=each) for each in descriptors]
    number, _, message = text.decode("utf-8", "replace").partition(" ")
    raise _broken(OSError(int(number) if number.isdecimal() else 0, message or "it ended"))


T = TypeVar("T", listeners.Listeners, Pair)


async def in_thread(namespace: int, job: Callable[[int], T]) -> T:
    """Return what `job` makes in a thread that has entered a network namespace.

    `job` gets a descriptor of the namespace. Raises HostUnsupported, SandboxBroken. What it makes
    is closed if the caller has gone.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T | BaseException] = loop.create_future()

    def take(result: T | BaseException) -> None:
        if not answer.cancelled():
            answer.set_result(result)
        elif not isinstance(result, BaseException):
            result.close()  # the caller has gone

    def tell(result: T | BaseException) -> None:
        loop.call_soon_threadsafe(take, result)

    try:
        listeners.call_in_namespace(namespace, job, tell)
    except OSError as error:
        raise _broken(error) from None
    found = await answer
    if isinstance(found, OSError):
        raise _broken(found) from found
    if isinstance(found, BaseException):
        raise found
    return found


def finding() -> Finding:
    """Return whether sandboxes can have a network here; blocks for some milliseconds."""
    why_not = probe.why_not()
    if why_not:
        return Finding("network", "CAUTION", f"no sandbox with one: {why_not}", probe.REMEDY)
    return Finding("network", "PASS", "policies none, allow and open can be enforced")


def missing() -> Finding:
    """Return the finding of a runtime that can give no sandbox a network."""
    return Finding(
        "network",
        "CAUTION",
        "this runtime's sandboxes can have none",
        "use runtime 'jail', 'docker' or 'gvisor' for sandboxes with a network",
    )

"""The engine's end of the egress proxy: start it, hand it sandboxes, hear what they did, end it.

The proxy is started when the first sandbox needs it. The invariant: the engine keeps no copy of a
listener, so that the end of the proxy is the end of every sandbox's network; a proxy that does not
answer is killed for the same reason. What it held is then reported as lost, never as closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cellwall.egress.proxy import control
from cellwall.linux import own_module, uid_ranges
from cellwall.model.errors import CellwallError, HostUnsupported, SandboxBroken
from cellwall.model.network import NetworkPolicy
from cellwall.model.secret import Secret

_log = logging.getLogger("cellwall")

_START_S = 20.0
_ANSWER_S = 10.0
_PING_EVERY_S = 2.0
_PATIENCE_S = 6.0
"""Seconds without an answer to a ping after which the proxy counts as stopped and is killed."""

Record = dict[str, Any]
OnRecord = Callable[[str, Record], None]


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """What the operator decides for the proxy."""

    networks: tuple[str, ...] = ()
    """Networks of the operator's (`10.1.0.0/16`) that sandboxes may connect to, where their policy
    allows it, beside public addresses."""
    name_servers: tuple[str, ...] = ()
    """Name servers, as `address` or `address:port`; empty: as this machine resolves."""
    authorities: str = ""
    """Path of a PEM file with the operator's certificates, by which servers are verified beside
    this machine's; empty: none."""


@dataclass(frozen=True, slots=True)
class PackageSource:
    """What the package broker is made of."""

    upstreams: Sequence[object] = field(repr=False)
    """JSON objects of registries (`Upstream.of`); URLs may carry passwords."""
    open_files: Callable[[int], list[int]]
    """Returns descriptors for a proxy with this user id: of the folder that it keeps packages in,
    and maybe of a PEM file with the authorities to trust. Called on a thread."""


class EgressProxy:
    """The proxy of one engine; its methods are called on one event loop."""

    def __init__(self, settings: ProxySettings, on_record: OnRecord) -> None:
        """Start nothing yet. `on_record` gets the id of a sandbox and a record of a connection."""
        self._settings = settings
        self._on_record = on_record
        self._starting: asyncio.Task[_Running] | None = None
        self._last: _Running | None = None
        self._sandboxes: dict[str, Callable[[str], None]] = {}
        self._packages: PackageSource | None = None
        self._giving = asyncio.Lock()
        """Held while a process gets its package broker, so that it gets one."""
        self._ids: uid_ranges.UidRange | None = None
        """User ids that no other process has, one of which is the proxy's; None for an ordinary
        user, whose proxy has the user's."""

    async def add(
        self,
        sandbox: str,
        listeners: Sequence[socket.socket],
        policy: NetworkPolicy,
        on_lost: Callable[[str], None],
        opened: Sequence[Secret] | None = None,
    ) -> str:
        """Serve a sandbox. The listeners are closed here in any case, also on an error.

        It does not wait for the proxy's answer: until the proxy serves them, connections wait in
        the listeners. `on_lost` is called with the reason if the proxy ends before `drop`, or
        cannot serve the sandbox. Where TLS is opened, for `opened` secrets or for none, it does
        wait, and returns the certificate of the sandbox's authority.
        """
        try:
            running = await self._running()
            fds = [each.fileno() for each in listeners]
            message = {"op": "add", "id": sandbox, "policy": policy.as_json()}
            if opened is not None:
                message["opening"] = {"secrets": [each.for_proxy() for each in opened]}
                reply = await running.ask(message, fds)
                self._sandboxes[sandbox] = on_lost
                return str(reply["certificate"])
            await running.tell(message, fds, lambda why: self._not_served(sandbox, why))
            self._sandboxes[sandbox] = on_lost
            return ""
        finally:
            for each in listeners:
                each.close()

    async def start(self) -> None:
        """Start the process if it does not run. Raises HostUnsupported."""
        await self._running()

    async def serve_packages(self, source: PackageSource) -> None:
        """Have a package broker from now on, also in a process that replaces this one.

        It is made when this returns. Raises HostUnsupported for what the operator can mend, and
        SandboxBroken.
        """
        running = await self._running()
        async with self._giving:
            if not running.has_packages:
                await self._give_packages(running, source)
                self._packages = source

    async def _give_packages(self, running: _Running, source: PackageSource) -> None:
        uid = os.geteuid() if self._ids is None else self._ids.host_uid(1)
        fds = await asyncio.to_thread(source.open_files, uid)
        try:
            await running.ask({"op": "packages", "upstreams": [*source.upstreams]}, fds)
        finally:
            for fd in fds:
                os.close(fd)
        running.has_packages = True

    async def _give_packages_again(self, running: _Running, source: PackageSource) -> None:
        """Give a process that replaces another one its broker, or let it go on without."""
        try:
            await self._give_packages(running, source)
        except CellwallError as error:
            _log.error("egress proxy: it was started again and has no package broker: %s", error)

    def serves(self, sandbox: str) -> bool:
        """Whether the proxy runs and has the sandbox's listeners."""
        return sandbox in self._sandboxes and self._now() is not None

    def _not_served(self, sandbox: str, why: str) -> None:
        on_lost = self._sandboxes.pop(sandbox, None)
        if on_lost is not None:
            on_lost(why)

    async def set_policy(self, sandbox: str, policy: NetworkPolicy) -> None:
        """Change a sandbox's policy; connections that it does not allow are closed."""
        await self._known(sandbox).ask({"op": "policy", "id": sandbox, "policy": policy.as_json()})

    async def usage(self, sandbox: str) -> dict[str, int]:
        """Return a sandbox's counters: connections, refused, sent_bytes, received_bytes."""
        reply = await self._known(sandbox).ask({"op": "usage", "id": sandbox})
        return dict(reply["usage"])

    async def drop(self, sandbox: str) -> dict[str, int]:
        """Serve a sandbox no longer; return its last counters, empty if the proxy has ended."""
        self._sandboxes.pop(sandbox, None)
        running = self._now()
        if running is None:
            return {}
        try:
            return dict((await running.ask({"op": "drop", "id": sandbox}))["usage"])
        except SandboxBroken:
            return {}

    async def aclose(self) -> None:
        """End the proxy and wait for its end."""
        self._sandboxes.clear()
        starting, self._starting = self._starting, None
        if starting is not None:
            with contextlib.suppress(HostUnsupported, SandboxBroken, OSError):
                await (await starting).aclose()
        if self._ids is not None:
            self._ids.release()

    def abandon(self) -> None:
        """Release the descriptors in a forked child, and end nothing."""
        running = self._now()
        if running is not None:
            running.control.close()

    @property
    def pid(self) -> int | None:
        """Process id of the proxy, if it runs."""
        running = self._now()
        return None if running is None else running.process.pid

    def _now(self) -> _Running | None:
        task = self._starting
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result() if task.result().is_open else None

    def _known(self, sandbox: str) -> _Running:
        running = self._now()
        if running is None or sandbox not in self._sandboxes:
            raise SandboxBroken("network: the egress proxy of this sandbox has ended")
        return running

    async def _running(self) -> _Running:
        task = self._starting
        if task is None or (task.done() and self._now() is None):
            task = asyncio.get_running_loop().create_task(self._start())
            self._starting = task
        return await asyncio.shield(task)

    async def _start(self) -> _Running:
        """Start the process, once the one before is gone. Raises HostUnsupported."""
        if self._last is not None:
            await self._last.wait_gone()
        if self._ids is None and not uid_ranges.is_rootless():
            self._ids = uid_ranges.acquire()
        uid = None if self._ids is None else self._ids.host_uid(1)
        running = _Running(self._settings, uid, self._heard, self._on_ended)
        self._last = running
        await running.is_ready()
        if self._packages is not None:
            await self._give_packages_again(running, self._packages)
        return running

    def _heard(self, message: dict[str, Any]) -> None:
        if message.get("lost"):
            _log.error("egress proxy: %d records of connections were lost", message["lost"])
        for record in message.get("records", ()):
            self._on_record(record.pop("id"), record)

    def _on_ended(self, why: str) -> None:
        lost, self._sandboxes = self._sandboxes, {}
        if lost:
            _log.error("egress proxy: %s; %d sandboxes have no network now", why, len(lost))
        for tell in lost.values():
            tell(why)


class _Running:
    """One process of the proxy."""

    def __init__(
        self,
        settings: ProxySettings,
        uid: int | None,
        heard: Callable[[dict[str, Any]], None],
        ended: Callable[[str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._heard = heard
        self._ended = ended
        self._number = 0
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._why = "it ended by itself"
        self.is_open = True
        self.has_packages = False
        """Whether it has a package broker."""
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        try:
            with theirs:
                self.process = _spawn(theirs.fileno(), settings, uid)
        except HostUnsupported:
            self.control.close()
            raise
        except OSError as error:
            self.control.close()
            raise HostUnsupported(
                "processes",
                f"start the egress proxy: {error.strerror}",
                remedy="is this host short of memory or processes?",
                errno=error.errno,
            ) from error
        self._loop.add_reader(self.control, self._on_messages)
        self._sending = asyncio.Lock()
        """Held while a message is sent: the event loop has one place for what waits for room."""
        self._watching = self._loop.create_task(self._watch())

    async def is_ready(self) -> None:
        """Return once it serves. Raises HostUnsupported."""
        try:
            async with asyncio.timeout(_START_S):
                await self._ready
        except (TimeoutError, SandboxBroken) as error:
            await self.aclose()
            raise HostUnsupported(
                "network",
                f"start the egress proxy: {str(error) or 'it was not ready in time'}",
                remedy="its error stands in the engine's standard error",
            ) from None

    async def ask(self, message: dict[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        """Ask and return the answer. Raises SandboxBroken, UsageError.

        Raises HostUnsupported for an error that comes with a remedy.
        """
        number, answer = await self._asking(message, fds)
        try:
            async with asyncio.timeout(_ANSWER_S):
                reply = await answer
        except TimeoutError:
            self._kill("it did not answer")
            raise SandboxBroken("network: the egress proxy did not answer") from None
        finally:
            self._asked.pop(number, None)
        if "remedy" in reply:
            raise HostUnsupported("network", str(reply["error"]), remedy=str(reply["remedy"]))
        if "error" in reply:
            raise SandboxBroken(f"network: the egress proxy: {reply['error']}")
        return reply

    async def tell(
        self, message: dict[str, Any], fds: Sequence[int], failed: Callable[[str], None]
    ) -> None:
        """Ask without waiting for the answer; `failed` gets its error, if it is one."""
        number, answer = await self._asking(message, fds)

        def take(reply: asyncio.Future[dict[str, Any]]) -> None:
            self._asked.pop(number, None)
            if not reply.cancelled() and reply.exception() is None and "error" in reply.result():
                failed(str(reply.result()["error"]))

        answer.add_done_callback(take)

    async def _asking(
        self, message: dict[str, Any], fds: Sequence[int]
    ) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        if not self.is_open:
            raise SandboxBroken(f"network: the egress proxy has ended: {self._why}")
        self._number += 1
        number = self._number
        data = control.packed({**message, "n": number})
        answer = self._asked[number] = self._loop.create_future()
        try:
            async with asyncio.timeout(_ANSWER_S), self._sending:
                await self._send(data, fds)
        except BaseException as error:
            del self._asked[number]
            if isinstance(error, TimeoutError):
                self._kill("it does not read")
                raise SandboxBroken("network: the egress proxy does not read") from None
            raise
        return number, answer

    async def _send(self, data: bytes, fds: Sequence[int]) -> None:
        while True:
            try:
                socket.send_fds(self.control, [data], fds)
            except BlockingIOError:
                await self._writable()
            except OSError as error:
                raise SandboxBroken(f"network: the egress proxy has ended: {error}") from None
            else:
                return

    async def _writable(self) -> None:
        is_writable: asyncio.Future[None] = self._loop.create_future()

        def tell() -> None:
            if not is_writable.done():
                is_writable.set_result(None)

        self._loop.add_writer(self.control, tell)
        try:
            await is_writable
        finally:
            self._loop.remove_writer(self.control)

    def _on_messages(self) -> None:
        for _ in range(32):
            try:
                # SECURITY: without room for descriptors, so that the kernel drops what it sends.
                data = self.control.recv(control.MOST_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._end()
                return
            try:
                self._take(json.loads(data))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                self._kill(f"it sent what is no message: {error!r:.200}")
                return

    def _take(self, message: dict[str, Any]) -> None:
        if "re" in message:
            answer = self._asked.get(message["re"])
            if answer is not None and not answer.done():
                answer.set_result(message)
        elif "ready" in message:
            if not self._ready.done():
                self._ready.set_result(None)
        else:
            self._heard(message)

    async def _watch(self) -> None:
        """Kill a proxy that does not answer: a stopped one lets programs wait for nothing."""
        with contextlib.suppress(SandboxBroken):
            await self._ready
            while self.is_open:
                await asyncio.sleep(_PING_EVERY_S)
                try:
                    async with asyncio.timeout(_PATIENCE_S):
                        await self.ask({"op": "ping"})
                except TimeoutError:
                    self._kill(f"it did not answer for {_PATIENCE_S:g} s")
                    return

    def _kill(self, why: str) -> None:
        self._why = why
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)

    def _end(self) -> None:
        """Take note of the end, once."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self.control)
        self.control.close()
        error = SandboxBroken(f"network: the egress proxy has ended: {self._why}")
        waiting: list[asyncio.Future[Any]] = [self._ready, *self._asked.values()]
        for each in waiting:
            if not each.done():
                each.set_exception(error)
        if not self._ready.cancelled():
            self._ready.exception()  # is_ready may have been given up
        self._kill(self._why)  # it has closed the socket, and may hold listeners still
        self._watching.cancel()
        self._reaping = self._loop.create_task(self._reap())

    async def _reap(self) -> None:
        """Wait for the end, which closes the last of its listeners, and then tell of it."""
        await asyncio.to_thread(self.process.wait)
        self._ended(self._why)

    async def wait_gone(self) -> None:
        """Return when the process, which has ended, is reaped and its sandboxes were told."""
        await asyncio.shield(self._reaping)

    async def aclose(self) -> None:
        """End the process and wait for it."""
        self._why = "the engine ended it"
        if self.is_open:
            self._kill(self._why)
            self._end()
        await self._reaping
        await asyncio.gather(self._watching, return_exceptions=True)


def _spawn(control_fd: int, settings: ProxySettings, uid: int | None) -> subprocess.Popen[bytes]:
    with _opened(settings.authorities) as fds:
        words = {
            "listed": settings.networks,
            "name_servers": settings.name_servers,
            "authorities": fds[0] if fds else None,
            "uid": uid,
            "parent": os.getpid(),
        }
        entry, text = "cellwall.egress.proxy.main:main", json.dumps(words)
        return subprocess.Popen(
            own_module.command(entry, str(control_fd), text),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(control_fd, *fds),
            cwd="/",
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
        )


@contextlib.contextmanager
def _opened(authorities: str) -> Iterator[list[int]]:
    """Yield the descriptor of the operator's certificates, if there are any. HostUnsupported."""
    fds = []
    if authorities:
        try:
            fds.append(os.open(authorities, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise HostUnsupported(
                "network",
                f"network: the operator's certificates in {authorities} cannot be read: "
                f"{error.strerror}",
                remedy="correct the file that CELLWALL_NETWORK_AUTHORITIES names",
                errno=error.errno,
            ) from None
    try:
        yield fds
    finally:
        for fd in fds:
            os.close(fd)

"""The egress proxy's process: it serves the networks of all sandboxes of one engine.

Started by `proxy_process` with a socket to the engine. It drops every privilege before it
takes the first listener; as an ordinary user's process it has none. It ends with the engine, or
when the socket does, and with it every listener: without this process there is no network.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import ssl
import sys
from typing import TYPE_CHECKING, Any

from cellwall.egress.addresses import AddressPolicy
from cellwall.egress.proxy import control
from cellwall.egress.proxy.listening import Listening
from cellwall.egress.proxy.naming import resolver
from cellwall.egress.proxy.sandbox_network import Refused, SandboxNetwork
from cellwall.linux.syscalls import process
from cellwall.model.errors import UsageError
from cellwall.model.network import NetworkPolicy
from cellwall.model.secret import Secret

if TYPE_CHECKING:
    from cellwall.egress.packages.broker import Broker
    from cellwall.egress.tls.opening import Opening

_MOST_WAITING = 10_000
"""Most records that wait for an engine that does not read; more are counted and lost."""
_MOST_RECORD_BYTES = control.MOST_BYTES // 2
"""Most bytes of records in one message; a record is bounded by what it names, some 10 KiB."""
_FLUSH_S = 0.02
"""Seconds for which records wait for others."""
_CACHE_BYTES = 8 << 30
"""Most bytes of packages that are kept, those that were used last."""


class Proxy:
    """All sandboxes of one engine."""

    def __init__(
        self,
        held: socket.socket,
        listed: list[str],
        name_servers: list[str],
        authorities: str = "",
    ) -> None:
        """`listed` are the operator's networks that may be dialled beside public addresses.

        `authorities` are the operator's certificates, as PEM, by which servers are verified beside
        this machine's.
        """
        self._control = held
        self._listed_texts = tuple(listed)
        self._listed = AddressPolicy(listed)
        self._ask = resolver.by_servers(name_servers) if name_servers else resolver.by_the_machine()
        self._loop = asyncio.get_running_loop()
        self._served: dict[str, Listening] = {}
        self._authorities = authorities
        self._servers: ssl.SSLContext | None = None
        self._records: list[dict[str, Any]] = []
        self._lost = 0
        self._saying = asyncio.Lock()
        """Held while a message is sent: of two that wait for room, asyncio would forget one."""
        self._flushing: asyncio.TimerHandle | None = None
        self._broker: Broker | None = None
        self._ended = self._loop.create_future()

    async def serve(self) -> None:
        """Serve until the engine closes the socket."""
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._on_messages)
        await self._say({"ready": True})
        await self._ended

    def _on_messages(self) -> None:
        while True:
            try:
                message, descriptors = control.receive(self._control)
            except BlockingIOError:
                return
            if message is None:
                self._loop.remove_reader(self._control)
                self._ended.set_result(None)
                return
            self._do(message, descriptors)

    def _do(self, message: dict[str, Any], descriptors: list[int]) -> None:
        sandbox = str(message.get("id"))
        reply: dict[str, Any] = {"re": message["n"]}
        try:
            match message["op"]:
                case "add":
                    reply["certificate"] = self._add(sandbox, message, descriptors)
                case "policy":
                    policy = NetworkPolicy.of(message["policy"])
                    self._served[sandbox].network.set_policy(policy)
                case "packages":
                    made = self._make_broker(message["upstreams"], descriptors, reply)
                    self._loop.create_task(made)
                    return
                case "usage":
                    reply["usage"] = self._served[sandbox].network.usage()
                    self._loop.create_task(self._say_after_records(reply))
                    return
                case "drop":
                    self._loop.create_task(self._drop(sandbox, reply))
                    return
                case _:  # a ping wants an answer only
                    pass
        except Exception as error:  # noqa: BLE001 - the engine hears of it
            _close(descriptors)
            reply |= _told(error)
        self._loop.create_task(self._say(reply))

    def _add(self, sandbox: str, message: dict[str, Any], descriptors: list[int]) -> str | None:
        """Serve a sandbox; return the certificate of its authority, if TLS is opened."""
        if sandbox in self._served:
            raise ValueError("the sandbox is served already")
        policy = NetworkPolicy.of(message["policy"])

        def report(record: dict[str, Any]) -> None:
            self._report({"id": sandbox, **record})

        opening = self._opening(sandbox, message.get("opening"))
        network = SandboxNetwork(policy, self._listed, self._ask, report, self._of_broker, opening)
        listeners = [socket.socket(fileno=fd) for fd in descriptors]
        descriptors.clear()  # the sockets own them now
        self._served[sandbox] = Listening(network, listeners)
        return None if opening is None else opening.certificate

    def _opening(self, sandbox: str, asked: dict[str, Any] | None) -> Opening | None:
        """Return with what a sandbox's TLS is opened, if that was asked for."""
        if asked is None:
            return None
        # Imported here: most proxies open nothing.
        from cellwall.egress.tls import authority, opening

        if self._servers is None:
            self._servers = authority.context_to_servers(self._authorities)
        secrets = [Secret.of_proxy(each) for each in asked["secrets"]]
        return opening.Opening(sandbox, secrets, self._servers)

    async def _make_broker(
        self, upstreams: list[object], descriptors: list[int], reply: dict[str, Any]
    ) -> None:
        """Answer when there is a package broker, or with what is wrong.

        Its imports take 0.1 s, for which no sandbox shall wait.
        """
        folder_fd, *done = descriptors
        try:
            authorities_fd = done[0] if done else None
            self._broker = await asyncio.to_thread(
                _broker_of, upstreams, folder_fd, authorities_fd, self._listed_texts
            )
        except Exception as error:  # noqa: BLE001 - the engine hears of it
            done.append(folder_fd)
            reply |= _told(error)
        _close(done)
        await self._say(reply)

    def _of_broker(self) -> Broker:
        if self._broker is None:
            raise Refused("no package broker runs here")
        return self._broker

    async def _drop(self, sandbox: str, reply: dict[str, Any]) -> None:
        served = self._served.pop(sandbox, None)
        if served is None:
            reply["error"] = "the sandbox is not served"
        else:
            await served.close()
            reply["usage"] = served.network.usage()
        await self._say_after_records(reply)

    async def _say_after_records(self, reply: dict[str, Any]) -> None:
        """Answer once everything that was counted has been reported."""
        await self._flush()
        await self._say(reply)

    def _report(self, record: dict[str, Any]) -> None:
        if len(self._records) >= _MOST_WAITING:
            self._lost += 1
            return
        self._records.append(record)
        if self._flushing is None:
            self._flushing = self._loop.call_later(_FLUSH_S, self._flush_now)

    def _flush_now(self) -> None:
        self._flushing = None
        self._loop.create_task(self._flush())

    async def _flush(self) -> None:
        while self._records:
            count = size = 0
            for record in self._records:
                size += len(json.dumps(record))
                if count and size > _MOST_RECORD_BYTES:
                    break
                count += 1
            some, self._records = self._records[:count], self._records[count:]
            lost, self._lost = self._lost, 0
            await self._say({"records": some, "lost": lost})

    async def _say(self, message: dict[str, Any]) -> None:
        try:
            async with self._saying:
                await self._loop.sock_sendall(self._control, control.packed(message))
        except OSError:  # the engine has gone; its end is read next
            return


def _close(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)


def _told(error: Exception) -> dict[str, str]:
    """Return what an answer says of an error, with a remedy where an operator has one."""
    if isinstance(error, UsageError):
        return {"error": error.message, "remedy": error.remedy or ""}
    return {"error": f"{type(error).__name__}: {error}"}


def _broker_of(
    upstreams: list[object], folder_fd: int, authorities_fd: int | None, listed: tuple[str, ...]
) -> Broker:
    """Return the package broker. Raises `UsageError` for what its operator can mend."""
    from cellwall.egress.packages.broker import Broker, BrokerSettings
    from cellwall.egress.packages.handed import cache_of, tls_of
    from cellwall.egress.packages.upstream import Upstream

    return Broker(
        list(map(Upstream.of, upstreams)),
        cache_of(folder_fd, most_bytes=_CACHE_BYTES),
        BrokerSettings(listed=listed),
        tls=tls_of(authorities_fd),
    )


def _drop_privileges(uid: int | None) -> None:
    """Become an ordinary user for good, without a capability or a way to a new one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    for call in (
        process.prepare_capabilities(0),  # a root that has no other id keeps its own
        process.prepare_no_new_privs(),
        process.prepare_no_dumps(),
        process.prepare_parent_death_signal(signal.SIGKILL),
    ):
        process.do(call)


def main() -> None:
    """Run `CONTROL_FD SETTINGS`: JSON with `listed`, `name_servers`, `authorities` and others.

    `authorities` is the descriptor of a PEM file, or null.
    """
    control_fd, settings = int(sys.argv[1]), json.loads(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a Ctrl-C at the embedder's terminal must not end it
    os.setsid()
    fd, authorities = settings["authorities"], ""
    if fd is not None:
        with open(fd, encoding="ascii", errors="ignore") as file:
            authorities = file.read()
    _drop_privileges(settings["uid"])
    if os.getppid() != settings["parent"]:
        sys.exit(0)  # the engine died before the death signal was set
    held = socket.socket(fileno=control_fd)

    async def serve() -> None:
        await Proxy(held, settings["listed"], settings["name_servers"], authorities).serve()

    asyncio.run(serve())

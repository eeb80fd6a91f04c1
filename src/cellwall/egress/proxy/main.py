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
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellwall.egress.addresses import AddressPolicy
from cellwall.egress.proxy import control
from cellwall.egress.proxy.listening import Listening
from cellwall.egress.proxy.naming import resolver
from cellwall.egress.proxy.sandbox_network import Refused, SandboxNetwork
from cellwall.linux.syscalls import process
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
MakeBroker = Callable[[dict[str, Any], str, tuple[str, ...]], "Broker"]


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
        self._flushing: asyncio.TimerHandle | None = None
        self._broker: asyncio.Task[Broker] | None = None
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
                    made = self._made_broker(message["source"], descriptors.pop())
                    self._broker = self._loop.create_task(made)
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
            for fd in descriptors:
                os.close(fd)
            reply["error"] = f"{type(error).__name__}: {error}"
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

    async def _made_broker(self, source: dict[str, Any], folder_fd: int) -> Broker:
        """Return the package broker; its imports take 0.1 s, which no sandbox shall wait for."""
        make = await asyncio.to_thread(_import_broker)
        # The folder itself, wherever it lies: its path may lead through what we may not enter.
        broker = make(source, f"/proc/self/fd/{folder_fd}/.", self._listed_texts)
        await broker.prepare()
        return broker

    async def _of_broker(self) -> Broker:
        if self._broker is None:
            raise Refused("no package broker runs here")
        try:
            return await asyncio.shield(self._broker)
        except Exception as error:
            raise Refused(f"the package broker cannot start: {error}") from error

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
            await self._loop.sock_sendall(self._control, control.packed(message))
        except OSError:  # the engine has gone; its end is read next
            return


def _import_broker() -> MakeBroker:
    import ssl

    from cellwall.egress.packages.broker import Broker, BrokerSettings
    from cellwall.egress.packages.cache import Cache
    from cellwall.egress.packages.upstream import Upstream

    def make(source: dict[str, Any], directory: str, listed: tuple[str, ...]) -> Broker:
        cache = Cache(directory, most_bytes=_CACHE_BYTES)
        settings = BrokerSettings(listed=listed)
        tls = ssl.create_default_context(cafile=source["certificates"])
        return Broker(list(map(Upstream.of, source["upstreams"])), cache, settings, tls=tls)

    return make


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
    """Run `CONTROL_FD SETTINGS`: JSON with `listed`, `name_servers`, `authorities` and others."""
    control_fd, settings = int(sys.argv[1]), json.loads(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a Ctrl-C at the embedder's terminal must not end it
    os.setsid()
    # Before the drop: an ordinary user may not be able to read it.
    file = settings["authorities"]
    authorities = Path(file).read_text(encoding="ascii") if file else ""
    _drop_privileges(settings["uid"])
    if os.getppid() != settings["parent"]:
        sys.exit(0)  # the engine died before the death signal was set
    held = socket.socket(fileno=control_fd)

    async def serve() -> None:
        await Proxy(held, settings["listed"], settings["name_servers"], authorities).serve()

    asyncio.run(serve())

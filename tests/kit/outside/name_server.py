"""An authoritative name server whose records a test changes, and which remembers every question."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

Addresses = list[str] | Callable[[], list[str]]


class NameServer:
    """Serves UDP on loopback from a thread; a context manager."""

    def __init__(
        self, records: Mapping[str, Addresses], address: tuple[str, int] = ("127.0.0.1", 0)
    ) -> None:
        """`records`: addresses by name, or a function that makes them anew for each question.

        `*.` and a name stand for every name one label longer that has none of its own.
        """
        self.records: dict[str, Addresses] = dict(records)
        self.aliases: dict[str, str] = {}
        self.asked: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def address(self) -> str:
        """`address:port` for a setting."""
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def __enter__(self) -> Self:
        """Begin to serve."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End."""
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            data, peer = self._socket.recvfrom(4096)
            if not data:
                return
            self._socket.sendto(self._answer(data), peer)

    def _answer(self, data: bytes) -> bytes:
        question = dns.message.from_wire(data)
        (one,) = question.question
        name = one.name.to_text(omit_final_dot=True).lower()
        self.asked.append(name)
        reply = dns.message.make_response(question)
        reply.flags |= dns.flags.AA
        if name in self.aliases:
            target = self.aliases[name]
            reply.answer.append(dns.rrset.from_text(one.name, 1, "IN", "CNAME", f"{target}."))
            name = target
        found = self.records.get(name) or self.records.get(f"*.{name.partition('.')[2]}")
        if found is None:
            reply.set_rcode(dns.rcode.NXDOMAIN)
            return reply.to_wire()
        addresses = found() if callable(found) else found
        kind = {dns.rdatatype.A: "A", dns.rdatatype.AAAA: "AAAA"}.get(one.rdtype)
        fit = [each for each in addresses if (":" in each) == (kind == "AAAA")]
        if kind is not None and fit:
            reply.answer.append(dns.rrset.from_text(f"{name}.", 1, "IN", kind, *fit))
        return reply.to_wire()

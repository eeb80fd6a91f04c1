"""What a client's connection takes, in the order in which it comes."""

from __future__ import annotations

import asyncio
from typing import cast

from cellwall.cluster.gateway.wire.front import Begin, ClientLink


class _Transport(asyncio.Transport):
    """Takes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """End nothing."""

    def pause_reading(self) -> None:
        """Hold nothing."""

    def resume_reading(self) -> None:
        """Hold nothing."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Have none."""


class _Served:
    """Notes what comes of one request."""

    def __init__(self, method: bytes) -> None:
        self.method, self.body, self.is_whole = method, b"", False

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_whole(self) -> None:
        self.is_whole = True

    def on_gone(self) -> None:
        """Leave nothing."""


def test_body_that_comes_before_its_waiting_head_was_taken_is_parsed_after_it() -> None:
    """A loop may call `data_received` between the end of an answer and what it was to do next."""
    served: list[_Served] = []

    def begin(_link: object, head: object, _fault: object) -> _Served:
        served.append(_Served(head.method))  # type: ignore[attr-defined]
        return served[-1]

    async def main() -> bytes:
        link, transport = ClientLink(cast(Begin, begin), set()), _Transport()
        link.connection_made(transport)
        link.data_received(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        link.data_received(b"POST /execute HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n")
        link.done()
        link.data_received(b"{}")
        await asyncio.sleep(0)
        link.connection_lost(None)
        return transport.written

    assert asyncio.run(main()) == b""
    assert [(each.method, each.body) for each in served] == [(b"GET", b""), (b"POST", b"{}")]
    assert all(each.is_whole for each in served)

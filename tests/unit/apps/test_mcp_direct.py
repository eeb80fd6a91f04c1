"""Tool calls that do without the SDK: which ones, and that nobody can tell by the answers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mcp_types import PARSE_ERROR
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION

from cellwall.apps.mcp import direct
from cellwall.apps.mcp.session import Session
from cellwall.apps.mcp.tools.catalog import Catalog
from cellwall.apps.mcp.transport import dialogue, stdio
from cellwall.apps.mcp.transport.calls import Calls, DirectCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

CALL: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "run_code", "arguments": {"code": "1"}},
}
LEGACY = direct.Spoken("2025-11-25", {})
META = {
    "io.modelcontextprotocol/protocolVersion": LATEST_MODERN_VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class _NoLibrary:
    async def aclose(self) -> None:
        return


def _a_session() -> Session:
    return Session(_NoLibrary(), None)  # type: ignore[arg-type]  # makes no sandbox


# -- which ones ------------------------------------------------------------------------------------


def test_a_plain_call_is_taken() -> None:
    asked = direct.plain_call(CALL, LEGACY)
    assert asked == direct.Asked(1, "run_code", {"code": "1"})
    modern = {**CALL, "params": {**CALL["params"], "_meta": META}}
    assert direct.plain_call(modern, direct.spoken(LATEST_MODERN_VERSION, modern["params"]))


@pytest.mark.parametrize(
    "change",
    [
        {"jsonrpc": "1.0"},
        {"id": True},
        {"id": None},
        {"id": 1.0},
        {"method": "tools/list"},
        {"more": 1},
        {"params": None},
        {"params": {"arguments": {}}},
        {"params": {"name": 5}},
        {"params": {"name": "run_code", "arguments": []}},
        {"params": {"name": "run_code", "arguments": None}},
        {"params": {"name": "run_code", "task": {}}},
        {"params": {"name": "run_code", "_meta": {"progressToken": 1}}},
        {"params": {"name": "run_code", "_meta": META}},
        {"params": {"name": "run_code", "_meta": 5}},
    ],
)
def test_what_is_not_plain_is_for_the_sdk(change: dict[str, Any]) -> None:
    assert direct.plain_call(CALL, LEGACY) is not None  # the control
    assert direct.plain_call({**CALL, **change}, LEGACY) is None
    others: tuple[object, ...] = (None, [CALL], "x", {})
    assert [direct.plain_call(other, LEGACY) for other in others] == [None] * 4
    assert direct.plain_call(CALL, None) is None


@pytest.mark.parametrize("message", [None, 5, {}, {"method": "notifications/cancelled"}])
def test_what_cancels_nothing(message: object) -> None:
    assert direct.cancelled(message) is None


# -- the answers -----------------------------------------------------------------------------------


class _Pipes:
    """A client of `dialogue.speak`, on pipes of the kernel."""

    def __init__(self) -> None:
        self.source, self._write = os.pipe()
        self._read, self.sink = os.pipe()
        self._answers = os.fdopen(self._read, "rb")

    async def ask(self, message: dict[str, Any] | bytes) -> dict[str, Any]:
        await asyncio.to_thread(self.say, message)
        answer: dict[str, Any] = json.loads(await asyncio.to_thread(self._answers.readline))
        return answer

    def say(self, message: dict[str, Any] | bytes) -> None:
        line = message if isinstance(message, bytes) else json.dumps(message).encode()
        os.write(self._write, line + b"\n")

    def hang_up(self) -> None:
        os.close(self._write)

    def close(self) -> None:
        os.close(self.source)
        os.close(self.sink)
        self._answers.close()


def _spoken_with(client: Callable[[_Pipes], Awaitable[None]], folder: Path) -> None:
    async def main() -> None:
        session, pipes = _a_session(), _Pipes()
        talk = asyncio.ensure_future(
            dialogue.speak(session, Catalog(folder), pipes.source, pipes.sink)
        )
        try:
            await client(pipes)
        finally:
            pipes.hang_up()
            await talk
            pipes.close()
            await session.close()

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each message that was looked at was taken from the SDK."""
    seen: list[bool] = []
    real = Calls.begin

    def begin(calls: Calls, message: Any) -> DirectCall | None:
        call = real(calls, message)
        seen.append(call is not None)
        return call

    monkeypatch.setattr(Calls, "begin", begin)
    return seen


@pytest.mark.parametrize("version", [*HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION])
def test_the_second_answer_is_as_the_sdks_first(
    version: str, taken: list[bool], tmp_path: Path
) -> None:
    is_modern = version == LATEST_MODERN_VERSION

    async def client(pipes: _Pipes) -> None:
        if not is_modern:
            params = {
                "protocolVersion": version,
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            }
            hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
            assert (await pipes.ask(hello))["result"]["protocolVersion"] == version
            pipes.say({"jsonrpc": "2.0", "method": "notifications/initialized"})
        meta = {"_meta": META} if is_modern else {}
        for params in (
            {"name": "run_code", "arguments": {"cod": "1"}, **meta},
            {"name": "nothing", **meta},
        ):
            answers = [
                await pipes.ask({**CALL, "id": number, "params": given})
                for number, given in enumerate(
                    [
                        {**params, "_meta": {**meta.get("_meta", {}), "progressToken": 7}},
                        params,
                    ]
                )
            ]
            assert [answer.pop("id") for answer in answers] == [0, 1]
            assert answers[0] == answers[1]
            assert answers[0]["result"]["isError"]

    _spoken_with(client, tmp_path)
    assert taken == [False, True, False, True]


def test_before_the_handshake_nothing_is_taken(taken: list[bool], tmp_path: Path) -> None:
    async def client(pipes: _Pipes) -> None:
        for number in range(2):
            assert "error" in await pipes.ask({**CALL, "id": number})

    _spoken_with(client, tmp_path)
    assert taken == [False, False]


@pytest.mark.parametrize(
    ("line", "request_id"),
    [
        (rb'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"\ud83d"}}', 5),
        (rb'{"jsonrpc":"2.0","id":"a","method":"ping","params":{"_meta":{"x":"\ud83d"}}}', "a"),
        (rb'{"jsonrpc":"2.0","id":"\ud83d","method":"ping"}', None),
        (b'{"jsonrpc":"2.0","id":5,"meth', None),
        (b"[" * 100_000, None),
    ],
)
def test_line_that_is_no_message_is_answered_and_the_next_one_served(
    line: bytes, request_id: int | str | None, tmp_path: Path
) -> None:
    async def client(pipes: _Pipes) -> None:
        refused = await pipes.ask(line)
        assert (refused["id"], refused["error"]["code"]) == (request_id, PARSE_ERROR)
        pipes.say(b"")
        params = {"name": "nothing", "_meta": META}
        assert (await pipes.ask({**CALL, "id": 6, "params": params}))["id"] == 6

    _spoken_with(client, tmp_path)


# -- the end of the process ------------------------------------------------------------------------


def test_a_signal_does_not_cut_the_end_short(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    class Engine:
        state_dir = Path("nowhere")

        async def aclose(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(50):  # the loop hears of the signal meanwhile
                await asyncio.sleep(0)
            ended.append("whole")

    async def nothing(*_: object) -> None:
        return

    monkeypatch.setattr(stdio, "_talk", nothing)
    monkeypatch.setattr(stdio, "_warm", nothing)
    stdio.run(Engine, 1000)  # type: ignore[arg-type]  # only its end is asked of it
    assert ended == ["whole"]

"""The channel between engine and egress proxy while its other end does not read."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket

from cellwall.egress.proxy import control
from cellwall.egress.proxy.main import Proxy
from cellwall.egress.proxy.proxy_process import EgressProxy, ProxySettings

_COUNT = 600
"""More messages than a socket takes while its other end reads none."""


def _is_full(sock: socket.socket) -> bool:
    return not select.select([], [sock], [], 0)[1]


async def _until_full(sock: socket.socket) -> None:
    while not _is_full(sock):  # noqa: ASYNC110 - what fills it is another task of this loop
        await asyncio.sleep(0)


async def _answered_after_a_pause() -> list[int]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    loop = asyncio.get_running_loop()
    with ours, theirs:
        serving = loop.create_task(Proxy(theirs, [], []).serve())
        for number in range(_COUNT):
            await loop.sock_sendall(ours, control.packed({"op": "ping", "n": number}))
        await _until_full(theirs)
        answers: list[int] = []
        async with asyncio.timeout(20):
            while len(answers) < _COUNT:
                said = json.loads(await loop.sock_recv(ours, control.MOST_BYTES))
                if "re" in said:  # it begins with the word that it is ready
                    answers.append(said["re"])
        ours.close()
        await serving
    return answers


def test_answers_that_wait_for_room_are_all_sent_in_their_order() -> None:
    assert asyncio.run(_answered_after_a_pause()) == list(range(_COUNT))


async def _asked_while_it_is_stopped() -> tuple[int, int | None]:
    proxy = EgressProxy(ProxySettings(), lambda *_: None)
    try:
        running = await proxy._running()
        pid = running.process.pid
        os.kill(pid, signal.SIGSTOP)
        asked = [asyncio.ensure_future(running.ask({"op": "ping"})) for _ in range(_COUNT)]
        await _until_full(running.control)
        os.kill(pid, signal.SIGCONT)
        await asyncio.gather(*asked)
        return pid, proxy.pid
    finally:
        await proxy.aclose()


def test_questions_that_wait_for_room_are_all_answered() -> None:
    before, after = asyncio.run(_asked_while_it_is_stopped())
    assert after == before  # it was not taken for stopped

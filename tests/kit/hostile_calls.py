"""Caller code that speaks to init's socket itself, past everything that `tools` checks; its tools.

For the attacks on host tools of the library and of a server's client.
"""

from __future__ import annotations

import asyncio

RAW = """
import json, socket, struct
address = __import__("tools")._line._link._address
def call(tool, body):
    head = json.dumps({"ev": "call", "tool": tool}).encode()
    line = socket.socket(socket.AF_UNIX)
    line.connect(address)
    line.sendall(struct.pack(">II", len(head), len(body)) + head + body)
    return line
def hear(line):
    data = b""
    while len(data) < 8: data += line.recv(65536) or b" " * 8
    head, size = struct.unpack(">II", data[:8])
    while len(data) < 8 + head + size: data += line.recv(65536)
    return json.loads(data[8 + head:])
"""

# Two hundred lines open at any time; nobody ever reads an answer.
_FLOOD = """
body = b'{"x": "' + b"x" * SIZE + b'"}'
kept = []
for n in range(COUNT):
    kept.append(call("TOOL", body))
    if len(kept) > 200: kept.pop(0).close()
print("made", n + 1)
"""


async def hang(x: str) -> None:
    await asyncio.get_running_loop().create_future()


async def big(x: str) -> str:
    return "y" * 250_000


def flood(tool: str, count: int = 10_000, size: int = 10_000) -> str:
    code = _FLOOD.replace("TOOL", tool).replace("SIZE", str(size)).replace("COUNT", str(count))
    return RAW + code

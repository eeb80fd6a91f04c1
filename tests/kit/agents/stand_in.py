"""A stand-in for a model's HTTP API: answers from a script, and keeps what it was sent.

The SDKs in front of it are the real ones. Not a model, and no judge of requests: tests read
`requests`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]


@dataclass
class StandIn:
    """What it says next, and what it was asked."""

    script: list[Json]
    url: str = ""
    requests: list[Json] = field(default_factory=list)


@contextmanager
def standing_in(script: list[Json]) -> Iterator[StandIn]:
    """Serve `script`, an answer for each request, on a port of the loopback."""
    stand_in = StandIn(script)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            stand_in.requests.append(json.loads(body))
            answer = json.dumps(stand_in.script[len(stand_in.requests) - 1]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        stand_in.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield stand_in
        finally:
            server.shutdown()
            thread.join()


PLOT = """import matplotlib.pyplot as plt
squares = [n * n for n in range(1, 11)]
plt.plot(squares)
plt.show()"""
SUM = "print(sum(squares))"
LAST = "The sum is 385."


def chat_script() -> list[Json]:
    """Return what a chat completion says: a plot, a sum, the end."""

    def calls(code: str, call_id: str) -> Json:
        function = {"name": "run_code", "arguments": json.dumps({"code": code})}
        call = {"id": call_id, "type": "function", "function": function}
        return _chat({"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls")

    last = _chat({"role": "assistant", "content": LAST}, "stop")
    return [calls(PLOT, "call_1"), calls(SUM, "call_2"), last]


def _chat(message: Json, reason: str) -> Json:
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def response_script() -> list[Json]:
    """Return the same as responses."""

    def calls(code: str, call_id: str) -> Json:
        return {
            "type": "function_call",
            "id": f"fc_{call_id}",
            "call_id": call_id,
            "name": "run_code",
            "arguments": json.dumps({"code": code}),
            "status": "completed",
        }

    text = {"type": "output_text", "text": LAST, "annotations": []}
    last = {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "status": "completed",
        "content": [text],
    }
    return [_response(calls(PLOT, "call_1")), _response(calls(SUM, "call_2")), _response(last)]


def _response(item: Json) -> Json:
    return {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "status": "completed",
    }


def message_script() -> list[Json]:
    """Return the same as messages of Anthropic's API."""

    def calls(code: str, call_id: str) -> Json:
        use = {"type": "tool_use", "id": call_id, "name": "run_code", "input": {"code": code}}
        return _message(use, "tool_use")

    last = _message({"type": "text", "text": LAST}, "end_turn")
    return [calls(PLOT, "toolu_1"), calls(SUM, "toolu_2"), last]


def _message(block: Json, reason: str) -> Json:
    return {
        "id": "msg",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [block],
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }

"""Traces of a real server, as a collector gets them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kit.servers import configuration, start

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(HTTPServer):
    """Takes spans over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Any] = []


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        sent = ExportTraceServiceRequest()
        sent.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
        assert isinstance(self.server, Collector)
        for resource in sent.resource_spans:
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.serve_forever, args=(0.05,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def endpoint(collector: Collector) -> str:
    return f"http://127.0.0.1:{collector.server_port}/v1/traces"


def test_an_execution_is_a_request_with_four_parts(collector: Collector, tmp_path: Path) -> None:
    config = configuration(otel_endpoint=endpoint(collector))
    server = start(tmp_path, "--port", "0", config=config)
    client = server.client()
    answer = client.post("/execute", json={"code": "1"}, headers={"traceparent": PARENT})
    client.get("/sandboxes", headers={"traceparent": "00-zz"}).raise_for_status()
    assert server.stop() == 0  # which sends what is left
    by_name = {span.name: span for span in collector.spans}
    request = by_name["POST /execute"]
    assert request.trace_id.hex() == PARENT.split("-")[1]
    assert request.parent_span_id.hex() == PARENT.split("-")[2]
    facts = {each.key: each.value for each in request.attributes}
    assert facts["http.response.status_code"].int_value == 200
    assert facts["cellwall.tenant"].string_value == "alice"
    assert facts["cellwall.execution_id"].string_value == answer.json()["execution_id"]
    parts = [by_name[name] for name in ("admit", "claim", "run", "answer")]
    assert {part.parent_span_id for part in parts} == {request.span_id}
    times = [
        time for part in parts for time in (part.start_time_unix_nano, part.end_time_unix_nano)
    ]
    assert times == sorted(times)
    other = by_name["GET /sandboxes"]
    assert not other.parent_span_id
    assert other.trace_id != request.trace_id


def test_a_collector_that_is_gone_costs_no_request(tmp_path: Path) -> None:
    gone = Collector()
    address = endpoint(gone)
    gone.server_close()
    server = start(tmp_path, "--port", "0", config=configuration(otel_endpoint=address))
    client = server.client()
    for _ in range(20):
        client.post("/execute", json={"code": "1"}).raise_for_status()
    assert server.stop() == 0


def test_without_a_collector_nothing_of_it_is_imported(tmp_path: Path) -> None:
    server = start(tmp_path, "--port", "0", config=configuration(warm=[]))
    server.client().get("/sandboxes").raise_for_status()
    maps = Path(f"/proc/{server.process.pid}/maps").read_text(encoding="utf-8")
    assert server.stop() == 0
    assert "protobuf" not in maps and "opentelemetry" not in maps  # noqa: PT018 - one claim

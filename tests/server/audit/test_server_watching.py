"""What a real server writes about requests: its log, its metrics, and nothing secret in either."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cellwall.server.auth.keys import digest_of
from kit.servers import (
    ALICE,
    Server,
    configuration,
    log_records,
    logged,
    metrics_address,
    new_sandbox,
    running,
    start,
)

TOKEN = "scrape-token-0123456789abcdef0123456789"


@pytest.fixture(scope="module")
def watched() -> Iterator[Server]:
    """A server with metrics, on an address of their own, that want a token."""
    digest = digest_of(TOKEN)
    with running(metrics_port=0, metrics_token_sha256=digest, flag_limit_hits=3) as made:
        yield made


def scrape(server: Server) -> str:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = httpx.get(metrics_address(server), headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.text


def value(page: str, series: str) -> float:
    found = re.search(rf"^{re.escape(series)} (\S+)$", page, re.MULTILINE)
    return 0.0 if found is None else float(found[1])


def test_copies_and_snapshots_are_counted(watched: Server) -> None:
    client = watched.client()
    source = client.post("/sandboxes", json={}).json()["id"]
    before = scrape(watched)
    client.post(f"/sandboxes/{source}/fork", json={"count": 2})
    kept = client.post(f"/sandboxes/{source}/snapshots", json={}).json()
    client.post(f"/snapshots/{kept['id']}/restore", json={})
    code = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    client.post(f"/sandboxes/{source}/execute", json={"code": code})
    client.post(f"/sandboxes/{source}/fork", json={})
    asleep = client.post("/sandboxes", json={}).json()["id"]
    for _ in range(2):
        client.post(f"/sandboxes/{asleep}/execute", json={"code": "1"})
        client.post(f"/sandboxes/{asleep}/hibernate", json={})
    after = scrape(watched)
    size = kept["memory_bytes"] + kept["files_bytes"]
    for series, more in (
        ('cellwall_copies_total{by="fork"}', 2), ('cellwall_copies_total{by="restore"}', 1),
        ("cellwall_snapshots", 1), ("cellwall_snapshots_bytes", size),
        ("cellwall_snapshots_made_total", 1),
        ('cellwall_copies_refused_total{cause="conflict"}', 1),
        ("cellwall_sandboxes_hibernated", 1),
        ('cellwall_hibernations_total{turn="hibernated"}', 2),
        ('cellwall_hibernations_total{turn="back"}', 1),
    ):  # fmt: skip
        assert value(after, series) - value(before, series) == more, series


def test_each_request_is_one_record(watched: Server) -> None:
    client = watched.client()
    answer = client.post("/execute", json={"code": "1"}, headers={"X-Request-Id": "mine-1"})
    found = logged(watched, lambda each: each.get("request_id") == "mine-1")
    assert found["event"] == "request"
    assert found["method"] == "POST"
    assert found["route"] == "/execute"
    assert found["status"] == 200
    assert found["tenant"] == "alice"
    assert found["execution_id"] == answer.json()["execution_id"]
    assert 0 < found["ms"] < 60_000
    client.get("/sandboxes/nobodys", headers={"X-Request-Id": "mine-2"})
    found = logged(watched, lambda each: each.get("request_id") == "mine-2")
    assert (found["route"], found["status"]) == ("/sandboxes/{sandbox_id}", 404)


def test_a_hostile_request_cannot_write_records(watched: Server) -> None:
    """K07 from outside: the line a log reader would believe."""
    client = watched.client()
    forged = '{"event":"request","status":200,"tenant":"admin"}'
    client.get("/x%0a" + forged, headers={"User-Agent": forged, "X-Request-Id": "forged"})
    client.post("/execute", json={"code": f"print({forged!r})"})
    found = logged(watched, lambda each: each.get("status") == 404 and each["route"] == "none")
    assert found["tenant"] == "alice"
    assert not [each for each in log_records(watched) if each.get("tenant") == "admin"]


def test_metrics_have_their_own_listener_and_want_the_token(watched: Server) -> None:
    address = metrics_address(watched)
    assert httpx.get(address).status_code == 401
    assert httpx.get(address, headers={"Authorization": f"Bearer {ALICE}"}).status_code == 401
    token = {"Authorization": f"Bearer {TOKEN}"}
    assert httpx.get(address, headers=token).status_code == 200
    assert httpx.get(address, headers={**token, "Host": "evil.example"}).status_code == 403
    assert httpx.get(address.replace("/metrics", "/health"), headers=token).status_code == 404
    assert httpx.post(address, headers=token, content=b"x").status_code == 405
    admin = watched.client()
    assert admin.get("/metrics").status_code == 404


def test_metrics_are_off_unless_asked_for(server: Server) -> None:
    """API-22: by what the process listens on, not by what it says."""
    inodes = {
        line.split()[9]
        for line in Path(f"/proc/{server.process.pid}/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    }
    folder = Path(f"/proc/{server.process.pid}/fd")
    held = [link.readlink().name for link in folder.iterdir() if link.is_symlink()]
    sockets = {name[8:-1] for name in held if name.startswith("socket:[")}
    assert len(inodes & sockets) == 1


def test_metrics_off_this_machine_need_a_token(tmp_path: Path) -> None:
    config = configuration(metrics_port=0, metrics_host="0.0.0.0")
    with pytest.raises(AssertionError, match="could be read by everybody"):
        start(tmp_path, "--port", "0", config=config)


def test_runs_are_counted_by_verdict_and_route(watched: Server) -> None:
    client = watched.client()
    ok = 'cellwall_executions_total{runtime="jail",template="python",verdict="ok"}'
    wall = 'cellwall_executions_total{runtime="jail",template="python",verdict="wall_time"}'
    route = 'cellwall_requests_total{method="POST",route="/execute",status="200"}'
    before = scrape(watched)
    client.post("/execute", json={"code": "print(1)"}).raise_for_status()
    client.post("/execute", json={"code": "while 1: pass", "timeout": 0.2}).raise_for_status()
    after = scrape(watched)
    assert value(after, ok) - value(before, ok) == 1
    assert value(after, wall) - value(before, wall) == 1
    assert value(after, route) - value(before, route) == 2
    count = 'cellwall_execution_seconds_count{runtime="jail",template="python"}'
    assert value(after, count) - value(before, count) == 2
    for name in ("cellwall_pool", "cellwall_sandboxes", "cellwall_log_dropped_total"):
        assert f"\n{name}" in after


def test_callers_cannot_make_series(watched: Server) -> None:
    client = watched.client()
    for number in range(200):
        client.request(f"M{number}", f"/nowhere/{number}")
    page = scrape(watched)
    assert page.count("cellwall_requests_total{") < 120
    assert "/nowhere/" not in page


ANY_STATUS = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(self.path[1:])); self.end_headers()
http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


def test_servers_inside_cannot_make_series(watched: Server) -> None:
    """What they choose is counted by its class; what we answer in their place is our own."""
    client = watched.client()
    sandbox = f"/sandboxes/{new_sandbox(client)}"
    client.post(
        f"{sandbox}/commands", json={"argv": ["python", "-c", ANY_STATUS], "background": True}
    )
    deadline = time.monotonic() + 20
    while client.get(f"{sandbox}/ports/8000/200").status_code == 502:
        assert time.monotonic() < deadline
    for status in range(400, 440):
        assert client.get(f"{sandbox}/ports/8000/{status}").status_code == status
    assert client.get(f"{sandbox}/ports/8001/").status_code == 502
    page = scrape(watched)
    series = re.findall(r'cellwall_requests_total{.*/ports/.*,status="(\w+)"}', page)
    assert sorted(set(series)) == ["2xx", "4xx", "502"]


def test_a_row_of_limit_hits_is_flagged(watched: Server) -> None:
    client = watched.client()
    for _ in range(3):
        client.post("/execute", json={"code": "while 1: pass", "timeout": 0.1})
    found = logged(watched, lambda each: each["event"] == "unusual")
    assert (found["rule"], found["who"]) == ("limit_hits", "alice")
    assert value(scrape(watched), 'cellwall_alerts_total{rule="limit_hits"}') >= 1


def test_commands_of_a_sandbox_are_counted_too(watched: Server) -> None:
    client = watched.client()
    sandbox = new_sandbox(client)
    series = 'cellwall_executions_total{runtime="jail",template="python",verdict="nonzero_exit"}'
    before = value(scrape(watched), series)
    client.post(f"/sandboxes/{sandbox}/commands", json={"command": "exit 3"})
    assert value(scrape(watched), series) == before + 1


def test_a_log_nobody_reads_does_not_stop_the_server(tmp_path: Path) -> None:
    """FI-36: stderr is a pipe that is full."""
    config = tmp_path / "cellwall.toml"
    config.write_text(configuration(warm=[]), encoding="utf-8")
    argv = [sys.executable, "-m", "cellwall.apps.cli.main", "serve", "--port", "0"]
    process = subprocess.Popen(
        [*argv, "--config", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        address = process.stdout.readline().removeprefix("listening on ").strip()
        with httpx.Client(base_url=address, headers={"X-API-Key": ALICE}, timeout=20) as client:
            for _ in range(1200):  # some 200 KiB of log, where a pipe holds 64
                assert client.get("/sandboxes").status_code == 200
    finally:
        process.terminate()
        process.wait(30)  # the end does not wait for a reader either
        process.stdout.close()
        process.stderr.close()
    assert process.returncode == 0

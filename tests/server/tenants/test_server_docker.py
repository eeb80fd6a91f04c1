"""A server whose container engine dies: 503 for that runtime, a record, everything else goes on."""

from __future__ import annotations

import pytest

from kit.docker_daemon import Daemon
from kit.servers import ADMIN, ALICE, Server, running

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]


def _execute(server: Server, runtime: str) -> tuple[int, dict[str, object]]:
    body = {"code": "print(6 * 7)", "runtime": runtime}
    answer = server.client(ALICE).post("/execute", json=body, timeout=90)
    return answer.status_code, answer.json()


def _wait_for_record(server: Server, action: str) -> dict[str, object]:
    """What is only noted is written a moment later."""
    found: list[dict[str, object]] = []
    for _ in range(200):
        found = server.client(ADMIN).get("/audit", params={"limit": 1000}).json()["records"]
        for each in found:
            if each["action"] == action:
                return dict(each)
    raise AssertionError(f"no {action} in {found}")


def test_dead_engine_is_503_for_its_runtime_only_and_on_record(docker_daemon: Daemon) -> None:
    """FI-08 as a caller sees it."""
    with running() as server:
        status, said = _execute(server, "docker")
        assert (status, said["stdout"]) == (200, "42\n"), said
        docker_daemon.kill()
        try:
            status, said = _execute(server, "docker")
            assert status == 503
            assert "systemctl start docker" in str(said["error"])
            assert _execute(server, "jail")[0] == 200
            assert server.client(ALICE).get("/health").status_code == 200
            noted = _wait_for_record(server, "runtime.take_out")
            assert (noted["object"], noted["actor"]) == ("docker", "server")
            (shown,) = (
                each
                for each in server.client(ALICE).get("/runtimes").json()["runtimes"]
                if each["name"] == "docker"
            )
            assert (shown["level"], shown["available"]) == ("namespace", False)
        finally:
            docker_daemon.start()

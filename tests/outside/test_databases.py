"""Clients of databases, which speak no HTTP, reach an allowed server by a rule for its port."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import require_capability, require_command
from kit import postgres_server
from kit.outside.servers import OUTSIDE
from kit.outside.world import World
from kit.waiting import wait_until

pytestmark = pytest.mark.root

_PASSWORD = "not-a-secret"


def _unused_port() -> int:
    with socket.create_server((OUTSIDE, 0)) as held:
        return int(held.getsockname()[1])


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[int]:
    """Run a real Redis server that wants a password; yield its port."""
    program, port = require_command("redis-server"), _unused_port()
    settings = ["--bind", OUTSIDE, "--port", str(port), "--requirepass", _PASSWORD]
    settings += ["--save", "", "--appendonly", "no", "--dir", str(tmp_path)]
    argv = ["setpriv", "--pdeathsig", "KILL", program, *settings]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as server:
        try:
            wait_until(lambda: not _is_refused(port), "Redis listens")
            yield port
        finally:
            server.kill()


def _is_refused(port: int) -> bool:
    with socket.socket() as held:
        return held.connect_ex((OUTSIDE, port)) != 0


@pytest.fixture
def postgres() -> Iterator[int]:
    """Run a real PostgreSQL server with a role that has to say its password; yield its port."""
    require_command("psql")
    has_server = postgres_server.programs() is not None
    require_capability("PostgreSQL", has_server, "run: apt-get install postgresql")
    port = _unused_port()
    with postgres_server.another(listen=OUTSIDE, port=port) as server:
        server.sql(f"CREATE ROLE caller LOGIN PASSWORD '{_PASSWORD}'")
        yield port


def _said(outside: World, command: str, rules: list[str]) -> str:
    done = outside.runner.call(
        lambda engine, _put: engine.run(command, language="bash", network=rules, timeout=30)
    )
    return done.stdout + done.stderr


def test_psql_against_a_real_server(outside: World, postgres: int) -> None:
    command = (
        f"PGPASSWORD={_PASSWORD} psql -XAt 'host=web.test port={postgres} user=caller"
        " dbname=postgres connect_timeout=5' -c 'SELECT 6 * 7' -c \"\\copy (SELECT * FROM"
        ' generate_series(1, 100000)) TO rows" 2>&1; wc -l < rows'
    )
    assert _said(outside, command, [f"web.test:{postgres}"]) == "42\nCOPY 100000\n100000\n"
    # The control: a rule for another port lets nothing through.
    assert "42" not in _said(outside, command, [f"web.test:{postgres - 1}"])


def test_redis_cli_against_a_real_server(outside: World, redis: int) -> None:
    command = (
        f"REDISCLI_AUTH={_PASSWORD} timeout 5 redis-cli -h web.test -p {redis} <<'END'\n"
        "SET answer 42\nINCRBY answer 1\nSUBSCRIBE news\nEND\n"
    )
    found = _said(outside, command, [f"web.test:{redis}"])
    assert found.split("\n")[:2] == ["OK", "43"]
    assert "subscribe" in found
    assert "43" not in _said(outside, command, [f"web.test:{redis - 1}"])

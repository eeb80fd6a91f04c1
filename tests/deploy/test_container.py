"""deploy/Dockerfile and compose.yaml: the jail works in a container with exactly those rights.

Slow, because it starts a container engine and builds the image (`make deployment`). Each right is
taken away once, as the control: without it `doctor` fails and nothing runs.
"""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from conftest import require_capability
from kit.deploy.containers import DEPLOY, IMAGE, Docker, docker, grants, missing, services

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(240)]

_KEY = "container-key-0123456789abcdef0123456789abcdef"
_HOG = "kept = []\nwhile True:\n    kept.append(b'x' * (1 << 20))\n"
_V1 = Path("/sys/fs/cgroup/memory/tasks").exists()


@pytest.fixture(scope="module")
def engine() -> Iterator[Docker]:
    require_capability("a container engine", not missing(), missing())
    with docker() as made:
        done = made.cellwall(grants(services()), "templates", "build", "python")
        assert done.returncode == 0, done.stderr
        yield made


@pytest.fixture(scope="module")
def client(engine: Docker) -> Iterator[httpx.Client]:
    """A client of `cellwall serve` in a container with the rights of compose.yaml."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = {**services()["environment"], "CELLWALL_API_KEY": _KEY, "CELLWALL_PORT": port}
    environment = [word for k, v in given.items() for word in ("--env", f"{k}={v}")]
    flags = [*grants(services()), *environment, "--detach", "--network=host"]
    name = engine.call("run", *flags, IMAGE).stdout.strip()
    client = httpx.Client(
        base_url=f"http://127.0.0.1:{port}", headers={"X-API-Key": _KEY}, timeout=40
    )
    client.headers["X-Container"] = name
    with client:
        _wait_until_healthy(engine, name)
        yield client
    assert engine.call("stop", "--time", "30", name).returncode == 0
    assert json.loads(engine.call("inspect", name).stdout)[0]["State"]["ExitCode"] == 0


def _wait_until_healthy(engine: Docker, name: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        state = json.loads(engine.call("inspect", name).stdout)[0]["State"]
        if state["Health"]["Status"] == "healthy":
            return
        logs = engine.call("logs", name).stderr
        assert state["Running"], logs
        assert time.monotonic() < deadline, (state, logs)
        time.sleep(0.2)


def findings(engine: Docker, flags: list[str]) -> tuple[int, dict[str, str]]:
    """Return doctor's status and the grade of each of the jail's features."""
    done = engine.cellwall(flags, "doctor", "--json")
    found: list[dict[str, str]] = json.loads(done.stdout)["jail"]
    return done.returncode, {each["feature"]: each["grade"] for each in found}


def test_doctor_fails_nothing_with_the_rights_of_compose(engine: Docker) -> None:
    status, grades = findings(engine, grants(services()))
    assert status == 0
    assert grades["user namespaces"] == grades["private /proc"] == "PASS"


@pytest.mark.parametrize(
    ("right", "feature"),
    [("seccomp", "user namespaces"), ("systempaths", "private /proc")],
)
def test_without_a_right_doctor_names_it_and_nothing_runs(
    engine: Docker, right: str, feature: str
) -> None:
    flags = grants(services(), without=right)
    status, grades = findings(engine, flags)
    assert (status, grades[feature]) == (1, "FAIL")
    nonce = secrets.token_hex(8)
    done = engine.cellwall(flags, "run", "-", stdin=f"print({nonce!r})")
    assert nonce not in done.stdout
    assert "doctor" in done.stderr
    assert (
        nonce in engine.cellwall(grants(services()), "run", "-", stdin=f"print({nonce!r})").stdout
    )


def execute(client: httpx.Client, code: str, **body: object) -> dict[str, Any]:
    answer = client.post("/execute", json={"code": code, **body})
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()
    return said


def test_server_in_a_container_runs_programs(client: httpx.Client) -> None:
    said = execute(client, "print(6 * 7)")
    assert (said["verdict"], said["stdout"]) == ("ok", "42\n")
    assert said["isolation"]["level"] == "namespace"


def test_memory_without_a_cgroup_is_held_softly_and_said_to_be(client: httpx.Client) -> None:
    said = execute(client, _HOG, limits={"memory_mb": 128}, timeout=20)
    assert said["verdict"] == "memory"
    assert said["isolation"]["limits"]["memory_mb"] == "soft"


def test_program_does_not_see_the_container(engine: Docker, client: httpx.Client) -> None:
    """Control: a process of the container's own user sees the file and the key."""
    name = client.headers["X-Container"]
    look = (
        "import os\nfound = []\n"
        "for pid in filter(str.isdecimal, os.listdir('/proc')):\n"
        "    try: found.append(open(f'/proc/{pid}/environ').read())\n"
        "    except OSError: pass\n"
        "print(os.path.exists('/var/lib/cellwall/templates'), 'CELLWALL_API_KEY' in str(found))"
    )
    control = engine.call("exec", name, "python3", "-c", look)
    assert control.stdout == "True True\n"
    assert execute(client, look)["stdout"] == "False False\n"


@pytest.fixture
def delegated() -> Iterator[None]:
    """The cgroup of compose.hard.yaml."""
    require_capability("cgroup v1", _V1, "a host with cgroup v1 or hybrid")
    subprocess.run([str(DEPLOY / "delegate-cgroup"), "10001"], check=True)
    yield
    for path in Path("/sys/fs/cgroup").glob("*/cellwall-box"):
        if path.parent.name in {"memory", "pids", "cpu", "cpuacct"}:
            path.rmdir()


@pytest.mark.usefixtures("delegated")
def test_a_cgroup_of_our_own_makes_limits_hard(engine: Docker) -> None:
    flags = grants(services("compose.hard.yaml"))
    assert findings(engine, flags)[1]["cgroups"] == "PASS"
    hog = ("run", "--json", "--demand-hard", "--memory", "128", "-")
    said = json.loads(engine.cellwall(flags, *hog, stdin=_HOG).stdout)
    assert (said["verdict"], said["isolation"]["limits"]["memory_mb"]) == ("memory", "hard")
    refused = engine.cellwall(grants(services()), *hog, stdin=_HOG)
    assert refused.returncode == 125
    assert "can only be held softly" in refused.stderr


def test_no_right_is_more_than_the_jail_needs() -> None:
    service = services()
    assert service["cap_drop"] == ["ALL"]
    assert not {"privileged", "cap_add", "devices", "pid", "network_mode"} & set(service)
    assert "no-new-privileges:true" in service["security_opt"]

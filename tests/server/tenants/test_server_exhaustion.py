"""A host that runs out of descriptors, processes or inodes: 503, and nothing half-made (FI-13).

The bounds of admission are set far away where the real wall is to be met.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from kit.servers import ADMIN, Server, configuration, descendants, error_of, start

REAL = "from cellwall.apps.cli.main import main; main()"
DESCRIPTORS = 280
FEW_DESCRIPTORS = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}))
{REAL}
"""
UNBOUNDED = {"capacity_memory_mb": 10**9, "capacity_processes": 10**9}


def refusals(answers: list[httpx.Response]) -> list[httpx.Response]:
    """Return those that are no success; each must be a proper 503."""
    refused = [each for each in answers if each.status_code not in {200, 201}]
    for each in refused:
        assert (each.status_code, error_of(each)["code"]) == (503, "capacity"), each.text
        assert int(each.headers["retry-after"]) >= 1
    return refused


def check_nothing_half_made(server: Server, made: list[str]) -> None:
    """What was answered is what there is; and all of it can go, so that new work is done."""
    client, admin = server.client(), server.client(ADMIN)
    assert admin.get("/stats").json()["server"]["sandboxes"] == len(made)
    for each in made:
        assert client.delete(f"/sandboxes/{each}").status_code == 200
    deadline = time.monotonic() + 30
    while client.post("/execute", json={"code": "1"}).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    pool_most = 16
    while len(descendants(server.process.pid)) > 4 * (pool_most + 4):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    stats = admin.get("/stats").json()["server"]
    assert stats["sandboxes"] == 0
    assert stats["promises"]["memory_mb"] == stats["promises"]["processes"] == 0


def created(server: Server, count: int) -> list[httpx.Response]:
    """Create so many at once."""
    answers: list[httpx.Response] = []
    clients = [server.client() for _ in range(count)]

    def create(client: httpx.Client) -> None:
        answers.append(client.post("/sandboxes", json={}))

    threads = [threading.Thread(target=create, args=(each,)) for each in clients]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for client in clients:
        client.close()
    return answers


def ids_of(answers: list[httpx.Response]) -> list[str]:
    return [each.json()["id"] for each in answers if each.status_code == 201]


@pytest.fixture
def starved(tmp_path: Path) -> Iterator[Server]:
    config = configuration(**UNBOUNDED)
    server = start(tmp_path, "--port", "0", config=config, entry=("-c", FEW_DESCRIPTORS))
    yield server
    server.stop()


def test_last_descriptors_are_kept_for_the_server_itself(starved: Server) -> None:
    client = starved.client()
    answers: list[httpx.Response] = []
    while len(refusals(answers)) < 5:
        answers.append(client.post("/sandboxes", json={}))
        assert len(answers) < DESCRIPTORS
    made = ids_of(answers)
    assert len(made) > 20
    assert starved.descriptors() < DESCRIPTORS - 20
    assert client.get("/health").status_code == 200
    check_nothing_half_made(starved, made)


def test_burst_beyond_the_descriptors_is_refused(starved: Server) -> None:
    """They come at once: the kernel itself says no, in the middle of starting."""
    answers = created(starved, 110)
    assert refusals(answers)
    made = ids_of(answers)
    assert made
    check_nothing_half_made(starved, made)


PIDS = 130
IN_GROUP = f"""
import os
with open(os.environ["CELLWALL_TEST_GROUP"], "w") as file:
    file.write(str(os.getpid()))
{REAL}
"""


@pytest.fixture
def few_processes(require: Callable[[str, bool, str], None]) -> Iterator[Path]:
    """Return a pids cgroup of our own; the server and all below it live there."""
    point = Path("/sys/fs/cgroup/pids")
    require("pids cgroup v1", os.access(point / "cgroup.procs", os.W_OK), "mount cgroup v1 pids")
    group = point / f"cellwall-test-few-{os.getpid()}"
    group.mkdir()
    yield group
    deadline = time.monotonic() + 30
    for each in sorted(group.rglob("*"), reverse=True):
        if each.is_dir():
            each.rmdir()
    while True:
        try:
            group.rmdir()
            return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_host_without_processes_refuses(few_processes: Path, tmp_path: Path) -> None:
    (few_processes / "pids.max").write_text(str(PIDS))
    environ = {"CELLWALL_TEST_GROUP": str(few_processes / "cgroup.procs")}
    config = configuration(**UNBOUNDED)
    server = start(tmp_path, "--port", "0", environ=environ, config=config, entry=("-c", IN_GROUP))
    try:
        answers = created(server, 80)
        assert refusals(answers)
        made = ids_of(answers)
        assert made
        check_nothing_half_made(server, made)
    finally:
        server.stop()


INODES = 64
FEW_INODES = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
folder = os.environ["CELLWALL_STATE_DIR"] + "/server"
os.makedirs(folder, 0o700)
MS_PRIVATE, MS_REC, CLONE_NEWNS = 1 << 18, 1 << 14, 0x20000
for done in (
    libc.unshare(CLONE_NEWNS),
    libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None),
    libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, b"nr_inodes={INODES},mode=700"),
):
    if done:
        sys.exit(os.strerror(ctypes.get_errno()))
{REAL}
"""


def fill(folder: Path) -> None:
    """Use up the inodes of a small file system; raise as its kernel does when they are gone."""
    for number in range(INODES + 1):
        (folder / f"filler{number}").touch()


@pytest.mark.root
def test_disk_without_inodes_is_no_reason_to_fail(tmp_path: Path) -> None:
    """Sandboxes lie in memory of their own, and the store's files are there from the start."""
    server = start(tmp_path, "--port", "0", config=configuration(), entry=("-c", FEW_INODES))
    try:
        folder = Path(f"/proc/{server.process.pid}/root{tmp_path}/state/server")
        with pytest.raises(OSError, match="No space left"):
            fill(folder)
        client = server.client()
        answers = [client.post("/execute", json={"code": "print(1)"}) for _ in range(5)]
        answers += [client.post("/sandboxes", json={}) for _ in range(5)]
        assert refusals(answers) == []
        assert client.get(f"/executions/{answers[0].json()['execution_id']}").status_code == 200
        check_nothing_half_made(server, ids_of(answers))
    finally:
        server.stop()

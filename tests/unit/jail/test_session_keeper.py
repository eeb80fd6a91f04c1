"""The session keeper as a process: what it keeps, for whom, and when it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.jail.processes import session_keeper
from cellwall.model.errors import Conflict, SandboxBroken, UsageError
from cellwall.runtimes.jail.keeping.client import KeeperClient
from cellwall.runtimes.jail.starting.bundle import bundle_in

MOST_RESIDENT_KIB = 12 * 1024


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_in(tmp_path_factory.mktemp("state"))


@pytest.fixture
def keeper(tmp_path: Path, bundle: Path) -> Iterator[KeeperClient]:
    client = KeeperClient.connect(tmp_path, bundle, grace_s=0.5)
    pid = client.pid
    yield client
    client.close()
    if is_alive(pid):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def kept() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for a sandbox's init: it ends when its channel does."""
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    yield process
    process.kill()
    process.communicate()


def put(keeper: KeeperClient, process: subprocess.Popen[bytes], record: bytes = b"{}") -> None:
    assert process.stdin is not None
    pidfd = os.pidfd_open(process.pid)
    keeper.put("one", record, [pidfd, process.stdin.fileno()])
    os.close(pidfd)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_gone(keeper: KeeperClient) -> None:
    """Wait for the end of a keeper whose client may be closed."""
    try:
        pidfd = os.pidfd_open(keeper.pid)
    except ProcessLookupError:
        return
    assert select.select([pidfd], [], [], 3.0)[0], "the keeper still runs"
    os.close(pidfd)


def test_keeper_holds_a_channel_for_the_next_server(
    keeper: KeeperClient, kept: subprocess.Popen[bytes], tmp_path: Path, bundle: Path
) -> None:
    put(keeper, kept, b'{"a": 1}')
    keeper.close()
    assert kept.stdin is not None
    kept.stdin.close()
    following = KeeperClient.connect(tmp_path, bundle)
    taken = following.take("one")
    assert (following.pid, following.names(), taken.record) == (keeper.pid, ["one"], b'{"a": 1}')
    assert kept.poll() is None
    following.drop("one")
    for fd in taken.descriptors:
        os.close(fd)
    assert kept.wait(2) == 0
    following.close()


def test_keeper_replaces_a_record_and_keeps_the_descriptors(
    keeper: KeeperClient, kept: subprocess.Popen[bytes]
) -> None:
    put(keeper, kept, b"old")
    keeper.put("one", b"new")
    taken = keeper.take("one")
    assert (taken.record, len(taken.descriptors)) == (b"new", 2)
    for fd in taken.descriptors:
        os.close(fd)


def test_keeper_serves_one_server_at_a_time(keeper: KeeperClient, tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="another server"):
        KeeperClient.find(tmp_path)
    assert keeper.names() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_keeper_refuses_another_user(
    keeper: KeeperClient, kept: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """With rights on the socket's file, so that only the keeper's own check is left."""
    put(keeper, kept)
    path = tmp_path / "keeper.sock"
    for folder in (path, tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o777)
    keeper.close()
    assert said_as(0, path) == b"ok "
    assert said_as(65534, path) == b"no another user's sessions are kept here"


def said_as(uid: int, path: Path) -> bytes:
    """Return the keeper's first word to a process of that user."""
    code = (
        "import os, socket, sys; os.setuid(int(sys.argv[1]));"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[2]);"
        "sys.stdout.buffer.write(s.recv(200))"
    )
    words = [sys.executable, "-I", "-S", "-c", code, str(uid), str(path)]
    return subprocess.run(words, capture_output=True, check=True).stdout


def test_keeper_refuses_a_record_that_is_too_large(
    keeper: KeeperClient, kept: subprocess.Popen[bytes]
) -> None:
    put(keeper, kept, b"x" * session_keeper.MOST_RECORD_BYTES)
    with pytest.raises(UsageError, match="above"):
        put(keeper, kept, b"x" * (session_keeper.MOST_RECORD_BYTES + 1))
    assert keeper.names() == ["one"]


@pytest.mark.parametrize(
    "said", [b"", b"put", b"put one record", b"take one", b"drop one", b"nonsense", b"\xff \xff"]
)
def test_keeper_survives_what_it_cannot_do(
    keeper: KeeperClient, said: bytes, kept: subprocess.Popen[bytes]
) -> None:
    if said:
        with pytest.raises(Conflict):
            keeper._ask(said)
    put(keeper, kept)
    assert keeper.names() == ["one"]


def test_keeper_ends_with_its_last_sandbox(
    keeper: KeeperClient, kept: subprocess.Popen[bytes]
) -> None:
    put(keeper, kept)
    assert kept.stdin is not None
    kept.kill()
    keeper.names()
    assert is_alive(keeper.pid)  # as long as it has a server
    keeper.close()
    wait_gone(keeper)


def test_keeper_lets_all_die_when_its_grace_is_over(
    keeper: KeeperClient, kept: subprocess.Popen[bytes]
) -> None:
    put(keeper, kept)
    assert kept.stdin is not None
    kept.stdin.close()
    keeper.close()
    began = time.monotonic()
    assert kept.wait(5) == 0
    assert time.monotonic() - began > 0.4
    wait_gone(keeper)


def test_keeper_that_is_killed_takes_all_with_it(
    keeper: KeeperClient, kept: subprocess.Popen[bytes]
) -> None:
    put(keeper, kept)
    assert kept.stdin is not None
    kept.stdin.close()
    os.kill(keeper.pid, signal.SIGKILL)
    assert kept.wait(2) == 0
    with pytest.raises(SandboxBroken, match="gone"):
        keeper.names()


def test_keeper_of_a_dead_server_is_replaced_if_it_was_killed(
    keeper: KeeperClient, tmp_path: Path, bundle: Path
) -> None:
    os.kill(keeper.pid, signal.SIGKILL)
    wait_gone(keeper)
    following = KeeperClient.connect(tmp_path, bundle, grace_s=0.1)
    assert following.pid != keeper.pid
    following.close()
    wait_gone(following)


def test_keeper_is_small(keeper: KeeperClient, kept: subprocess.Popen[bytes]) -> None:
    assert kept.stdin is not None
    pidfd = os.pidfd_open(kept.pid)
    for number in range(300):
        keeper.put(f"s{number}", b"x" * 2000, [pidfd, kept.stdin.fileno()])
    os.close(pidfd)
    status = Path(f"/proc/{keeper.pid}/status").read_text()
    resident = int(status.partition("VmRSS:")[2].split()[0])
    assert resident <= MOST_RESIDENT_KIB, resident


def test_keeper_inherits_nothing(keeper: KeeperClient) -> None:
    """Three times /dev/null, its listener, its server."""
    found = [
        os.readlink(f"/proc/{keeper.pid}/fd/{name}")
        for name in os.listdir(f"/proc/{keeper.pid}/fd")
    ]
    assert sorted(each.partition(":")[0] for each in found) == ["/dev/null"] * 3 + ["socket"] * 2

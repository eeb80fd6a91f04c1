"""The attack corpus in containers: the same probes, the same controls, the same denials.

The tests are those of the jail's modules; only the arena is another one. What a container shows
differently is asserted here, so that a change of it is seen.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from attack.corpus import test_attack_calls, test_attack_privilege
from cellwall import Engine, EngineSettings, Verdict
from cellwall.jail.inspect.posture import PostureMismatch
from cellwall.model.limits import Limits
from cellwall.runtimes.docker import ids, posture
from cellwall.runtimes.docker.images import KEY_LABEL
from cellwall.testing.bare import BareTemplates
from kit import controls
from kit.arena import Arena
from kit.docker_daemon import Daemon

pytestmark = [pytest.mark.attack, pytest.mark.root]
_PROBES = {
    "test_call_is_denied": "probe_calls",
    "test_privilege_is_denied": "probe_privilege",
    "test_view_is_denied": "probe_views",
    "test_what_this_kernel_has_is_hidden": "probe_views",
}


def _cases(test: object) -> list[Any]:
    """The cases of one of the jail's tests."""
    (mark,) = getattr(test, "pytestmark")  # noqa: B009 - pytest's, which functions do not declare
    return list(mark.args[1])


@pytest.fixture(scope="module")
def arena(docker_ground: tuple[Path, BareTemplates]) -> Iterator[Arena]:
    state, templates = docker_ground
    settings = EngineSettings(pool_min=0, pool_max=0)
    made = Arena(lambda: Engine(state, settings, templates=templates), runtime="docker")
    yield made
    made.close()


@pytest.fixture(scope="module")
def all_tried(arena: Arena) -> Mapping[str, controls.Both]:
    me = str(os.getpid())
    with (
        tempfile.TemporaryDirectory(prefix="bait-") as work,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        Path(work).chmod(0o777)
        port = f"0100007F:{server.getsockname()[1]:04X}"
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        common = {
            **{"host_pid": me, "hostname": os.uname().nodename, "boot_id": boot_id},
            "port": port,
        }
        inside = {"work": "/tmp", "pid": "1", **common}
        outside = {"work": work, "pid": me, **common}
        setting = {"inside": inside, "outside": outside}
        return {name: controls.both(arena, name, setting) for name in set(_PROBES.values())}


@pytest.fixture
def tried(all_tried: Mapping[str, controls.Both], request: pytest.FixtureRequest) -> controls.Both:
    return all_tried[_PROBES[request.node.originalname]]


@pytest.mark.parametrize(("case", "words"), _cases(test_attack_calls.test_call_is_denied))
def test_call_is_denied(tried: controls.Both, case: str, words: str) -> None:
    tried.denied(case, words, poisoned=True, optional=True)


@pytest.mark.parametrize(
    ("case", "words", "poisoned"), _cases(test_attack_privilege.test_privilege_is_denied)
)
def test_privilege_is_denied(tried: controls.Both, case: str, words: str, poisoned: bool) -> None:
    # Pid 1 is listed here, and its own files refuse: /proc is mounted without `hidepid`.
    tried.denied(case, f"{words} EACCES" if case == "D05" else words, poisoned=poisoned)


@pytest.mark.parametrize("case", ["H01", "H02", "H10"])
def test_view_is_denied(tried: controls.Both, case: str) -> None:
    tried.denied(case, "ENOENT EACCES EPERM MASKED")


@pytest.mark.parametrize(
    ("case", "least"), [("H03", 5), ("H04", 5), ("H05", 1), ("H06", 1), ("H07", 5), ("H11", 3)]
)
def test_what_this_kernel_has_is_hidden(tried: controls.Both, case: str, least: int) -> None:
    inside = [t for (name, _), t in tried.inside.items() if name == case]
    assert [t for t in inside if t.word not in {"ENOENT", "EACCES", "EPERM", "MASKED"}] == []
    outside = [t for (name, _), t in tried.outside.items() if name == case and t.reached]
    assert len(outside) >= least


def test_unconfined_container_is_no_sandbox(arena: Arena, docker_daemon: Daemon) -> None:
    """The control of the posture: the same image as root, with everything a daemon gives."""
    arena.run("0")
    ours = ("images", "--quiet", "--filter", f"label={KEY_LABEL}")
    image = docker_daemon.call(*ours).stdout.split()[0]
    words = ("--network=none", "--user=0", "--entrypoint", "/usr/bin/sleep", image, "60")
    made = docker_daemon.call("run", "--detach", *words).stdout.strip()
    try:
        pid = int(docker_daemon.call("inspect", "--format", "{{.State.Pid}}", made).stdout)
        with pytest.raises(PostureMismatch) as caught:
            posture.verify(pid, made, Limits(), ())
        found = set(caught.value.differences)
        assert {"Uid", "CapEff", "CapBnd", "NoNewPrivs", "Max file size"} <= found
    finally:
        docker_daemon.call("rm", "--force", made)


def test_limit_leaves_no_container(arena: Arena, docker_daemon: Daemon) -> None:
    """A tree in sessions of its own, cut off by its wall time."""
    code = """
import os, time
print(flush=True)
for _ in range(8):
    if os.fork() == 0:
        os.setsid()
        break
time.sleep(60)
"""
    execution = arena.run(code, timeout=1)
    assert execution.verdict is Verdict.WALL_TIME
    arena.settle()
    assert docker_daemon.containers() == []


def test_container_takes_no_count_from_the_hosts_users(arena: Arena) -> None:
    """As the host's kernel has them: two containers, two users, and nobody's account."""
    code = "import os, pwd; print(os.getuid(), pwd.getpwuid(os.getuid()).pw_name, os.getcwd())"
    seen = [arena.run(code).stdout.splitlines()[-1].split() for _ in range(2)]
    first, second = (int(words[0]) for words in seen)
    assert first != second
    assert all(ids.FIRST <= uid < ids.FIRST + ids.COUNT for uid in (first, second))
    assert [words[1:] for words in seen] == [["user", "/home/user"]] * 2


_TAKE_ALL = """
import os, socket
kept = []
try:
    while True:
        kept.append(socket.socketpair())
        socket.send_fds(kept[-1][0], [b"x"], [0] * 250)
except OSError as error:
    print(error.errno)
"""
_SEND_ONE = """
import socket
ours, theirs = socket.socketpair()
try: socket.send_fds(ours, [b"x"], [0])
except OSError as error: print(error.errno)
else: print("sent")
"""


def _beside_one_with_all_in_flight(arena: Arena) -> list[str]:
    """What a neighbour can send and read before and while, and what the other's own child can."""

    async def attack() -> list[str]:
        async with arena.sandbox() as hog, arena.sandbox() as neighbour:
            said = [(await neighbour.run(_SEND_ONE)).stdout, (await hog.run(_TAKE_ALL)).stdout]
            said += [(await hog.commands.run(["python3", "-c", _SEND_ONE])).stdout]
            said += [(await neighbour.run(_SEND_ONE)).stdout]
            said += [(await neighbour.run("print(input())", stdin="1 2 3")).stdout]
            return [each.strip() for each in said]

    return arena.do(attack())


def test_descriptors_in_flight_of_one_container_stop_no_other(arena: Arena) -> None:
    """The control is the one's own child, which the kernel refuses: the count was full."""
    assert _beside_one_with_all_in_flight(arena) == ["sent", "109", "109", "sent", "1 2 3"]


def test_control_containers_of_one_id_share_what_is_in_flight(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even then a program's input comes to it."""
    monkeypatch.setattr(ids.ContainerIds, "take", lambda _self: ids.FIRST)
    assert _beside_one_with_all_in_flight(arena) == ["sent", "109", "109", "109", "1 2 3"]

"""The pure parts of runtime `docker`: what is asked for, what an image is made of, what is read."""

from __future__ import annotations

import pwd
import socket
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest

from cellwall.linux.seccomp import RET_ALLOW, load_policy, parse_policy
from cellwall.model.errors import CapacityError
from cellwall.model.limits import Limits
from cellwall.runtimes.docker import base_files, ids, inside, layers, posture, seccomp_profile
from cellwall.runtimes.docker.attached import AttachedSocket
from cellwall.runtimes.docker.container import request, shared_memory_mb


def asked(limits: Limits | None = None) -> dict[str, Any]:
    return request(
        limits or Limits(),
        sandbox_id="one",
        owner="somebody",
        image="sha256:abc",
        oci_runtime=None,
        cpu_set="0",
        masked=("/proc/keys",),
    )


def test_container_has_no_right_and_no_way_out() -> None:
    body = asked()
    host = body["HostConfig"]
    assert (body["User"], body["Tty"], body["NetworkDisabled"]) == ("1000:1000", False, True)
    assert (host["CapDrop"], host["CapAdd"], host["Privileged"]) == (["ALL"], [], False)
    assert host["NetworkMode"] == "none"
    assert host["ReadonlyRootfs"]
    assert (host["Binds"], host["Devices"], host["PublishAllPorts"]) == ([], [], False)
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["LogConfig"]["Type"] == "none"
    assert host["AutoRemove"]


def test_swap_is_off_and_the_work_area_is_the_limit() -> None:
    limits = Limits(memory_mb=300, disk_mb=100, inodes=1000)
    host = asked(limits)["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == 300 << 20
    sizes = [option.partition("size=")[2].partition("m,")[0] for option in host["Tmpfs"].values()]
    assert sum(map(int, sizes)) == 100
    inodes = [int(option.partition("nr_inodes=")[2]) for option in host["Tmpfs"].values()]
    assert sum(inodes) == 1000 + len(inside.TOP_NAMES)


@pytest.mark.parametrize("disk_mb", [1, 2, 100, 100_000])
def test_shared_memory_is_a_part_of_the_work_area(disk_mb: int) -> None:
    assert 1 <= shared_memory_mb(Limits(disk_mb=disk_mb)) <= max(1, disk_mb // 4)


def test_profile_refuses_whatever_the_policy_never_allows() -> None:
    rules = parse_policy(load_policy())
    never = {n for n, found in rules.items() if not any(r.action == RET_ALLOW for r in found)}
    ours = {"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"}
    profile = seccomp_profile.profile()
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    allowed = {
        name
        for call in profile["syscalls"]
        if call["action"] == "SCMP_ACT_ALLOW"
        for name in call["names"]
    }
    assert not (never - ours) & allowed
    assert {"read", "mmap", "execve"} <= allowed


@pytest.mark.parametrize("name", ["socket", "ioctl", "clone"])
def test_profile_allows_these_by_argument_only(name: str) -> None:
    calls = [c for c in seccomp_profile.profile()["syscalls"] if name in c["names"]]
    assert calls
    assert all(call["action"] == "SCMP_ACT_ALLOW" and call["args"] for call in calls)
    assert all(a["op"] == "SCMP_CMP_MASKED_EQ" for call in calls for a in call["args"])


def _frame(kind: int, body: bytes) -> bytes:
    return struct.pack(">BxxxI", kind, len(body)) + body


def test_attached_stream_loses_its_headers_however_it_is_cut() -> None:
    said = _frame(1, b"one ") + _frame(2, b"complaint") + _frame(1, b"") + _frame(1, b"two")
    for step in (1, 3, 8, 100):
        theirs, ours = socket.socketpair()
        with theirs:
            attached = AttachedSocket(ours)
            attached.setblocking(False)
            got, room = b"", memoryview(bytearray(4096))
            for start in range(0, len(said), step):
                theirs.sendall(said[start : start + step])
                try:
                    got += room[: attached.recv_into(room)]
                except BlockingIOError:
                    continue
            assert (got, attached.said) == (b"one two", "complaint")
            theirs.close()
            assert attached.recv_into(room) == 0
            attached.close()


def test_attached_stream_of_complaints_keeps_nobody() -> None:
    """One read at a time: what comes as fast as it is read would be read for ever."""
    theirs, ours = socket.socketpair()
    with theirs:
        attached = AttachedSocket(ours)
        attached.setblocking(False)
        theirs.sendall(_frame(2, b"complain") * 2)
        with pytest.raises(BlockingIOError):
            attached.recv_into(memoryview(bytearray(16)))
        assert len(ours.recv(100)) == 16
        attached.close()


_STATUS = """Package: base
Status: install ok installed
Essential: yes
Version: 1
Architecture: all
Depends: library (>= 2) | other, virtual

Package: library
Status: install ok installed
Version: 2
Architecture: amd64
Depends: missing | tail:any

Package: tail
Status: install ok installed
Version: 1
Architecture: all
Provides: virtual (= 1)

Package: removed
Status: deinstall ok config-files
Version: 1

Package: unrelated
Status: install ok installed
Version: 1
Architecture: all
"""


def test_closure_is_what_packages_need_and_no_more() -> None:
    packages = base_files.parse_status(_STATUS)
    assert set(packages) == {"base", "library", "tail", "unrelated"}
    assert [p.name for p in base_files.closure(packages, ())] == ["base", "library", "tail"]
    wanted = base_files.closure(packages, ("unrelated", "removed"))
    assert [p.name for p in wanted] == ["base", "library", "tail", "unrelated"]


def test_identity_follows_versions_only() -> None:
    packages = base_files.parse_status(_STATUS)
    newer = base_files.parse_status(_STATUS.replace("Version: 2", "Version: 3"))
    names = ("base",)
    before = base_files.identity(base_files.closure(packages, names))
    assert before == base_files.identity(reversed(base_files.closure(packages, names)))
    assert before != base_files.identity(base_files.closure(newer, names))


def test_layer_holds_the_same_bytes_each_time_and_nothing_secret(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub/tool").write_text("run")
    (tree / "sub/tool").chmod(0o4755)
    (tree / "secret").write_text("key")
    (tree / "secret").chmod(0o600)
    (tree / "link").symlink_to("sub/tool")
    made = []
    for name in ("a.tar", "b.tar"):
        writer = layers.LayerWriter(tmp_path / name)
        writer.tree(str(tree), "/opt/env")
        made.append(writer.close())
        (tree / "sub/tool").touch()
    assert made[0].digest == made[1].digest
    with tarfile.open(made[0].path) as tar:
        found = {entry.name: entry for entry in tar}
    assert set(found) == {"opt", "opt/env", "opt/env/sub", "opt/env/sub/tool", "opt/env/link"}
    assert found["opt/env/sub/tool"].mode == 0o755
    assert {(entry.uid, entry.gid, entry.mtime) for entry in found.values()} == {(0, 0, 0)}


def test_compiled_modules_stay_valid(tmp_path: Path) -> None:
    """They name the time of their source; with another one each start would compile again."""
    (tmp_path / "module.py").write_text("x = 1")
    writer = layers.LayerWriter(tmp_path / "layer.tar")
    writer.copy(str(tmp_path / "module.py"), "/module.py")
    with tarfile.open(writer.close().path) as tar:
        assert tar.getmember("module.py").mtime == int((tmp_path / "module.py").stat().st_mtime)


def test_mount_under_a_later_one_can_not_be_written() -> None:
    rw, ro = frozenset({"rw"}), frozenset({"ro"})
    mounts = [("/", ro), ("/sys", ro), ("/sys/fs/cgroup", rw), ("/sys", ro), ("/home", rw)]
    assert posture._writable(mounts) == ["/home"]
    assert posture._writable([*mounts, ("/sys/x", rw)]) == ["/home", "/sys/x"]


def test_containers_in_turn_have_ids_that_no_account_has() -> None:
    own = ids.ContainerIds()
    taken = [own.take() for _ in range(ids.COUNT)]
    assert len(set(taken)) == ids.COUNT
    assert ids.FIRST <= min(taken) < max(taken) < 2**31
    assert not set(taken) & {entry.pw_uid for entry in pwd.getpwall()}
    with pytest.raises(CapacityError):
        own.take()
    own.give_back(taken[7])
    assert own.take() == taken[7]


def test_container_and_its_files_are_its_users() -> None:
    body = request(
        Limits(),
        sandbox_id="one",
        owner="somebody",
        image="sha256:abc",
        oci_runtime=None,
        cpu_set="0",
        masked=(),
        uid=ids.FIRST + 5,
    )
    assert body["User"] == f"{ids.FIRST + 5}:1000"
    assert all(f"uid={ids.FIRST + 5}," in each for each in body["HostConfig"]["Tmpfs"].values())


@pytest.mark.parametrize(
    ("options", "mapped"),
    [
        ([], False),
        (["name=seccomp,profile=builtin", "name=cgroupns"], False),
        (["name=userns"], True),
        (["name=seccomp,profile=builtin", "name=rootless"], True),
    ],
)
def test_daemon_that_maps_ids_itself_is_left_to_it(options: list[str], mapped: bool) -> None:
    assert ids.maps_ids(options) is mapped

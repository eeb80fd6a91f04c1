"""What gVisor is asked for, and how what it says is read: pure data, no runsc needed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from cellwall.jail.plan import plan, steps
from cellwall.model.errors import HostUnsupported
from cellwall.model.limits import Limits
from cellwall.runtimes.gvisor import binary as gvisor_binary
from cellwall.runtimes.gvisor import oci_bundle
from cellwall.runtimes.gvisor import root as gvisor_root
from cellwall.runtimes.gvisor import sandbox as gvisor_sandbox
from cellwall.runtimes.gvisor.binary import Binary
from cellwall.runtimes.gvisor.trace_listener import refusal

REFUSED = bytes.fromhex("08001700000000001202100b18382091808009")
FORKED = bytes.fromhex("08001700000000001202080218382091808009")
OTHER_CALL = bytes.fromhex(
    "08000600000000001202102620b3032880abd0a4effb1f305838f0ddb6b1e1fd1f400848c08d80afe1fd1f"
)
ROOT = gvisor_root.Root(
    "/state/roots/x",
    (("/state/roots/x/opt", "/opt"), ("/usr", "/usr"), ("/templates/t", "/opt/env")),
    ("/opt", "/usr", "/home"),
    (("/bin", "usr/bin"),),
)
PLACE = "/state/place"


def test_refusal_is_the_errno_of_the_call() -> None:
    """As both versions of Debian's send it: EAGAIN, success, and ENOSYS of a clone3."""
    assert [refusal(m) for m in (REFUSED, FORKED, OTHER_CALL)] == [11, 0, 38]


@pytest.mark.parametrize("cut", range(len(REFUSED)))
def test_cut_message_is_no_refusal_and_no_error(cut: int) -> None:
    assert refusal(REFUSED[:cut]) in {0, 11}


@pytest.mark.parametrize(
    "message",
    [b"", b"\xff" * 4096, b"\x08" + b"\x00" * 7 + b"\x12\xff\xff\xff\xff\x7f", os.urandom(4096)],
    ids=["empty", "ones", "long-length", "random"],
)
def test_garbage_is_read_without_harm(message: bytes) -> None:
    assert isinstance(refusal(message), int)


def test_configuration_denies_by_default() -> None:
    made = oci_bundle.configuration(ROOT, Limits(), ("/bin/true",), PLACE)
    process = made["process"]
    assert process["user"] == {"uid": 1000, "gid": 1000}
    assert process["noNewPrivileges"] is True
    assert not any(process["capabilities"].values())
    binds = {m["destination"]: m for m in made["mounts"] if m["type"] == "bind"}
    writable = {made["root"]["path"], binds.pop("/dev/shm")["source"]}
    assert all(path.startswith(f"{PLACE}/area/") for path in writable)
    assert binds.keys() == {path for _, path in ROOT.mounts}
    assert all({"ro", "nosuid", "nodev"} <= set(mount["options"]) for mount in binds.values())
    assert [m["destination"] for m in made["mounts"] if m["type"] == "tmpfs"] == ["/dev"]


def test_all_that_can_be_written_is_one_area_of_the_limits_size() -> None:
    area = oci_bundle.area(ROOT, Limits(disk_mb=7, inodes=900))
    assert {"size=7m", f"nr_inodes={900 + oci_bundle.OWN_INODES}"} <= set(
        area["options"].split(",")
    )
    assert len(ROOT.directories) + len(ROOT.links) < oci_bundle.OWN_INODES / 2


def test_rlimits_are_the_limits() -> None:
    limits = Limits(processes=7, file_mb=3, open_files=99)
    made = oci_bundle.configuration(ROOT, limits, ("/bin/true",), PLACE)
    found = {r["type"]: (r["soft"], r["hard"]) for r in made["process"]["rlimits"]}
    assert found["RLIMIT_NPROC"] == (8, 8)
    assert found["RLIMIT_FSIZE"] == (3 << 20, 3 << 20)
    assert found["RLIMIT_NOFILE"] == (99, 99)


def test_the_hosts_limits_leave_gvisor_room_and_no_more() -> None:
    held = gvisor_sandbox.held(Limits(memory_mb=100, processes=10))
    assert held.memory_mb == 100 + gvisor_sandbox.OWN_MEMORY_MB
    assert 10 < held.processes < 1000


def test_flags_a_version_does_not_know_are_left_out() -> None:
    known = frozenset({"root", "platform", "network", "ignore-cgroups"})
    flags = oci_bundle.flags(known, "ptrace", "/place")
    assert flags == [
        "--root=/place/state",
        "--platform=ptrace",
        "--network=none",
        "--ignore-cgroups=true",
    ]
    assert "--directfs=false" in oci_bundle.flags(known | {"directfs"}, "ptrace", "/place")


@pytest.mark.parametrize(
    ("version", "count"), [("0.0~20221219.0", 1), ("0.0~20240729.0", 0), ("release-main", 0)]
)
def test_an_old_version_is_a_caution(version: str, count: int) -> None:
    assert len(gvisor_binary.cautions(Binary("runsc", "", version, frozenset()))) == count


def test_root_is_made_once_and_holds_no_private_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etc = tmp_path / "etc"
    etc.mkdir()
    (etc / "public").write_text("seen")
    (etc / "private").write_text("secret")
    (etc / "private").chmod(0o600)
    (etc / "link").symlink_to("public")
    planned = (
        steps.Directory("/tmp"),
        steps.Symlink("/bin", "usr/bin"),
        steps.File("/etc/hostname", "cellwall\n"),
        steps.Copy(str(etc), "/etc/some"),
        steps.Bind("/usr", "/usr"),
        steps.Device("null", 1, 3),
        steps.Mount("proc", "/proc", 0),
        steps.Symlink("/dev/fd", "/proc/self/fd"),
    )
    monkeypatch.setattr(plan, "root_plan", lambda *_: planned)
    facts, template = object(), object()
    make = gvisor_root.make_root
    root = make(tmp_path / "roots", facts, template)  # type: ignore[arg-type]
    made = Path(root.path)
    assert root.mounts == ((str(made / "etc"), "/etc"), ("/usr", "/usr"))
    assert root.links == (("/bin", "usr/bin"), ("/var/tmp", "../tmp"))
    assert set(root.directories) == {"/etc", "/opt", "/tmp", "/usr", "/var"}
    assert (made / "etc/some/public").read_text() == "seen"
    assert os.readlink(made / "etc/some/link") == "public"
    assert not (made / "etc/some/private").exists()
    assert os.readlink(made / "bin") == "usr/bin"
    assert sorted(p.name for p in made.iterdir()) == ["bin", "etc", "tmp", "usr", "var"]
    assert make(tmp_path / "roots", facts, template) == root  # type: ignore[arg-type]
    (etc / "public").write_text("changed")
    assert make(tmp_path / "roots", facts, template).path != root.path  # type: ignore[arg-type]
    assert len(list((tmp_path / "roots").iterdir())) == 2


def test_platform_that_did_not_work_is_asked_again_after_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that worked is not; a file that cannot be read is none."""
    binary = Binary("/usr/bin/runsc", "d" * 64, "1", frozenset())
    monkeypatch.setenv("CELLWALL_RUNSC_PLATFORM", "ptrace")
    answers, asked, now = ["it hung", "", "never heard"], list[str](), [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])

    async def attempt(_binary: Binary, platform: str) -> str:
        asked.append(platform)
        return answers[len(asked) - 1]

    def choose() -> str:
        return asyncio.run(gvisor_binary.Platforms(tmp_path).choose(binary, attempt))

    (tmp_path / "platforms.json").write_text('{"not": "ours"}')
    for later in (0, 3599):
        now[0] = 1000.0 + later
        with pytest.raises(HostUnsupported, match="it hung"):
            choose()
    assert len(asked) == 1
    now[0] = 4601.0
    assert choose() == "ptrace"
    now[0] = 1e9
    assert choose() == "ptrace"
    assert len(asked) == 2

"""Hosts that forbid what a jail is made of: a refusal with step, object and remedy, no remains.

Each host is simulated for real, in a user namespace of its own, by an ordinary user: the kernel
gives the same answers there as on such a host. Control: the same child without the obstacle.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from kit.unprivileged import Finished, OrdinaryUser

pytestmark = [pytest.mark.rootless, pytest.mark.attack]

_HOST = """
import os, sys
from pathlib import Path
from cellwall.linux.syscalls import mounts, process

case, program = sys.argv[1], sys.argv[2:]
uid, gid = os.geteuid(), os.getegid()
process.unshare(process.CLONE_NEWUSER | process.CLONE_NEWNS)
inside = (0, 0) if case == "root-of-a-namespace" else (uid, gid)
Path("/proc/self/setgroups").write_text("deny")
Path("/proc/self/uid_map").write_text(f"{inside[0]} {uid} 1")
Path("/proc/self/gid_map").write_text(f"{inside[1]} {gid} 1")
if case == "no-user-namespaces":
    Path("/proc/sys/user/max_user_namespaces").write_text("0")
if case == "one-user-namespace":
    Path("/proc/sys/user/max_user_namespaces").write_text("1")
if case == "masked-proc":
    mounts.mount("tmpfs", "/proc/fs", "tmpfs", 0, None)
if case == "no-seccomp":
    mounts.mount("tmpfs", "/proc/sys/kernel", "tmpfs", 0, None)
os.execv(sys.executable, [sys.executable, *program])
"""
_RUN = """
import json
import cellwall
try:
    done = cellwall.run("print(45)")
    said = {"stdout": done.stdout, "verdict": done.verdict.value}
except cellwall.HostUnsupported as error:
    said = {"error": str(error), "remedy": error.remedy, "feature": error.feature}
print(json.dumps(said))
"""
_DOCTOR = "import sys\nfrom cellwall.apps.cli.main import main\nsys.argv[1:] = {}\nmain()\n"


class Hosts:
    """Programs of one ordinary user on simulated hosts."""

    def __init__(self, user: OrdinaryUser) -> None:
        """Put the programs where the user can read them."""
        self.user = user
        (user.home / "run.py").write_text(_RUN, encoding="utf-8")
        doctor = _DOCTOR.format("['doctor', '--json']")
        (user.home / "doctor.py").write_text(doctor, encoding="utf-8")

    def start(self, case: str, program: str) -> Finished:
        """Run one of the programs on a host of that kind."""
        return self.user.run(_HOST, case, str(self.user.home / program))


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """One user; the template is built once."""
    with OrdinaryUser() as user:
        yield Hosts(user)


@pytest.mark.parametrize("case", ["control", "root-of-a-namespace"])
def test_rootless_host_in_a_user_namespace_runs(hosts: Hosts, case: str) -> None:
    done = hosts.start(case, "run.py")
    assert json.loads(done.stdout or "{}") == {"stdout": "45\n", "verdict": "ok"}, done.stderr
    assert not hosts.user.leftovers()


@pytest.mark.parametrize(
    ("case", "step", "remedy"),
    [
        ("no-user-namespaces", "user namespaces: ", "user.max_user_namespaces"),
        ("one-user-namespace", "user namespaces: ", "user.max_user_namespaces"),
        ("masked-proc", "private /proc: ", "systempaths=unconfined"),
        ("no-seccomp", "seccomp: ", "CONFIG_SECCOMP_FILTER"),
    ],
)
def test_rootless_host_without_a_feature_is_refused_by_name(
    hosts: Hosts, case: str, step: str, remedy: str
) -> None:
    done = hosts.start(case, "run.py")
    said = json.loads(done.stdout or "{}")
    assert step in said["error"], done.stderr
    assert remedy in said["error"]
    assert said["remedy"] == "run `cellwall doctor`"
    assert not hosts.user.leftovers()


@pytest.mark.parametrize(
    ("case", "feature", "code"),
    [
        ("control", "", 0),
        ("no-user-namespaces", "user namespaces", 1),
        ("one-user-namespace", "user namespaces", 1),
        ("masked-proc", "private /proc", 1),
        ("no-seccomp", "seccomp", 1),
    ],
)
def test_rootless_host_without_a_feature_fails_the_doctor(
    hosts: Hosts, case: str, feature: str, code: int
) -> None:
    done = hosts.start(case, "doctor.py")
    findings = json.loads(done.stdout or "{}").get("jail", [])
    failed = {f["feature"]: f["remedy"] for f in findings if f["grade"] == "FAIL"}
    assert done.code == code, done.stderr
    assert findings
    assert (feature in failed) == (code == 1)
    assert all(failed.values())

"""Stepping out of one's own cgroup: only where it was given to us, and for real where there is v2.

Made-up trees stand for hosts with controllers on v2; a real v2 tree, which hybrid hosts have too,
shows that the kernel takes the move and that an ordinary user may make it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cellwall.linux.cgroups.delegation import NAME, step_aside
from cellwall.linux.cgroups.hierarchies import View
from cellwall.linux.syscalls import mounts
from conftest import require_capability
from kit.unprivileged import SOURCES, OrdinaryUser

_MOVE = """
import json, os, sys
from dataclasses import replace
from pathlib import Path
from cellwall.linux.cgroups import delegation
from cellwall.linux.cgroups.hierarchies import View

class Told(type(Path())):  # a hybrid host's v2 tree has no controllers: the one thing made up
    def read_text(self, encoding=None, errors=None):
        return "pids" if self.name == "cgroup.controllers" else super().read_text(encoding, errors)

view = View.of_this_process()
own = Path(sys.argv[1])
delegation.v2_place = lambda view: Told(own)
delegation.step_aside(view)
print(open("/proc/self/cgroup").read())
"""


def tree(root: Path, *, members: str, controllers: str = "memory pids cpu") -> View:
    """Make a host whose v2 tree is at `root`, with us in /unit."""
    own = root / "unit"
    own.mkdir()
    for name, text in (
        ("cgroup.procs", members),
        ("cgroup.subtree_control", ""),
        ("cgroup.controllers", controllers),
        ("cgroup.type", "domain"),
    ):
        (own / name).write_text(text)
    (own / NAME).mkdir()
    (own / NAME / "cgroup.procs").write_text("")
    line = f"30 1 0:1 / {root} rw - cgroup2 cgroup2 rw"
    return View(line, "0::/unit\n", lambda _: mounts.CGROUP2_SUPER_MAGIC)


def test_a_group_that_is_ours_alone_is_left_empty(tmp_path: Path) -> None:
    view = tree(tmp_path, members=f"{os.getpid()}\n")
    assert step_aside(view) == tmp_path / "unit" / NAME
    assert (tmp_path / "unit" / NAME / "cgroup.procs").read_text() == str(os.getpid())


@pytest.mark.parametrize("case", ["others", "no controllers", "not writable", "the real root"])
def test_any_other_group_is_left_alone(case: str, tmp_path: Path) -> None:
    members = f"1\n{os.getpid()}\n" if case == "others" else f"{os.getpid()}\n"
    view = tree(tmp_path, members=members, controllers="" if case == "no controllers" else "pids")
    if case == "not writable":
        view = View(view.mountinfo, view.own, view.magic, lambda _: False)
    if case == "the real root":
        (tmp_path / "unit" / "cgroup.type").unlink()
    assert step_aside(view) is None
    assert (tmp_path / "unit" / NAME / "cgroup.procs").read_text() == ""


def test_without_a_v2_tree_nothing_happens() -> None:
    assert step_aside(View("30 1 0:1 / /sys rw - sysfs sysfs rw", "1:cpu:/\n")) is None


@pytest.mark.root
def test_the_kernel_takes_the_move_from_an_ordinary_user() -> None:
    points = [Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")]
    top = next((p for p in points if (p / "cgroup.controllers").exists()), None)
    require_capability("cgroup v2", top is not None, "a v2 tree, alone or beside v1")
    assert top is not None
    own = top / f"cellwall-test-{os.getpid()}"
    own.mkdir()
    try:
        with OrdinaryUser() as user:
            for path in (own, own / "cgroup.procs", own / "cgroup.subtree_control"):
                os.chown(path, user.uid, user.gid)
            enter = f'echo $$ > {own}/cgroup.procs; exec "$@"'
            drop = ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups"]
            done = subprocess.run(
                ["sh", "-c", enter, "sh", *drop, sys.executable, "-c", _MOVE, str(own)],
                env={**os.environ, "PYTHONPATH": SOURCES},
                capture_output=True,
                text=True,
                check=False,
            )
        assert f"/{own.name}/{NAME}" in done.stdout, done.stderr
    finally:
        for path in (own / NAME, own):
            if path.exists():
                path.rmdir()

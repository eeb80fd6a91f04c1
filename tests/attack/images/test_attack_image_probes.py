"""Groups E, F and H, and what exhausts a machine, on the root of an image: jail and containers.

The probes, controls and words are those of sandboxes on templates; what differs for root inside has
a line that says why. gVisor on an image has the kernel that it has on a template
(`test_attack_gvisor`), and is in `test_attack_image_walls`.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from attack.corpus import test_attack_calls
from cellwall import Verdict
from kit import controls
from kit.images.host_tree import APP, ImageArena, arena_behind

pytestmark = [pytest.mark.attack, pytest.mark.root]
WALLS = [(wall, uid) for wall in ("jail", "docker") for uid in (0, APP)]
PROBES = ("probe_calls", "probe_views")


@pytest.fixture(scope="module")
def tree(image_tree: Path) -> Path:
    return image_tree


@pytest.fixture(scope="module", params=WALLS, ids=[f"{w}-{u}" for w, u in WALLS])
def place(request: pytest.FixtureRequest, tree: Path) -> Iterator[ImageArena]:
    wall, uid = request.param
    arena = arena_behind(request, wall, tree, uid)
    yield arena
    arena.close()


@pytest.fixture(scope="module")
def all_tried(place: ImageArena) -> Mapping[str, controls.Both]:
    me = str(os.getpid())
    with (
        tempfile.TemporaryDirectory(prefix="bait-") as work,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        Path(work).chmod(0o777)
        common = {
            "host_pid": me,
            "hostname": os.uname().nodename,
            "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "port": f"0100007F:{server.getsockname()[1]:04X}",
        }
        inside = {"work": "/tmp", "pid": "1", **common}
        outside = {"work": work, "pid": me, **common}
        setting = {"inside": inside, "outside": outside}
        return {name: controls.both(place, name, setting) for name in PROBES}


def _cases(test: object) -> list[Any]:
    (mark,) = getattr(test, "pytestmark")  # noqa: B009 - pytest's, which functions do not declare
    return list(mark.args[1])


@pytest.mark.parametrize(("case", "words"), _cases(test_attack_calls.test_call_is_denied))
def test_call_is_denied(all_tried: Mapping[str, controls.Both], case: str, words: str) -> None:
    all_tried["probe_calls"].denied(case, words, poisoned=True, optional=True)


@pytest.mark.parametrize("case", ["H01", "H02", "H10"])
def test_view_is_denied(
    place: ImageArena, all_tried: Mapping[str, controls.Both], case: str
) -> None:
    tried = all_tried["probe_views"]
    opened = {what for (name, what), t in tried.inside.items() if name == case and t.reached}
    if opened and place.choice["runtime"] == "docker" and case == "H02":
        # In containers pid 1 was executed by root inside, which may open these; what they say, and
        # what the descriptors are, is refused (ptrace(2), access mode checking).
        assert opened <= {"stack", "syscall", "io", "fd"}
        for what in (*opened - {"fd"}, "fd/0"):
            said = place.do(place.on_image(f"open('/proc/1/{what}').read()"))
            assert "PermissionError" in said.stderr, what
        inside = {name: each for name, each in tried.inside.items() if name[1] not in opened}
        tried = controls.Both(inside, tried.outside, tried.said_inside)
    tried.denied(case, "ENOENT EACCES EPERM MASKED")


@pytest.mark.parametrize(
    ("case", "least"), [("H03", 5), ("H04", 5), ("H05", 1), ("H06", 1), ("H07", 5), ("H11", 3)]
)
def test_what_this_kernel_has_is_hidden(
    place: ImageArena, all_tried: Mapping[str, controls.Both], case: str, least: int
) -> None:
    tried = all_tried["probe_views"]
    inside = [t for (name, _), t in tried.inside.items() if name == case]
    hidden = {"ENOENT", "EACCES", "EPERM", "MASKED", "EROFS", "ENOTDIR"}
    reached = [t.what for t in inside if t.word not in hidden]
    if place.choice["runtime"] == "docker" and case in {"H04", "H05"}:
        # The container engine's masks are /dev/null, which can be opened, and is that.
        above = "/proc/sys/" if case == "H04" else "/proc/"
        look = f"import os; print({{os.stat({above!r} + p).st_rdev for p in {reached}}})"
        said = place.do(place.on_image(look))
        assert said.stdout.strip() == str({os.makedev(1, 3)}), said
        reached = []
    assert reached == []
    outside = [t for (name, _), t in tried.outside.items() if name == case and t.reached]
    assert len(outside) >= least


FORKS = """
import os, time
made = 0
try:
    while made < 500:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError as error:
    print("REFUSED", error.errno, made, flush=True)
"""
MEMORY = """
import mmap
held = []
for _ in range(64):
    piece = mmap.mmap(-1, 16 << 20)
    piece.write(b"x" * (16 << 20))
    held.append(piece)
print("HELD")
"""
LIFT = """
import os, resource
for number in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
    before = resource.getrlimit(number)
    try:
        resource.setrlimit(number, (before[1] + 1, before[1] + 1))
    except (OSError, ValueError):
        pass
    print("refused" if resource.getrlimit(number) == before else "REACHED")
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory",
             "/proc/self/oom_score_adj", "/sys/fs/cgroup/memory.max"):
    try:
        with open(path, "w") as file:
            is_mask = os.fstat(file.fileno()).st_rdev == os.makedev(1, 3)
            file.write("-1000" if "oom" in path else "1")
        print("refused" if is_mask else "REACHED")
    except OSError:
        print("refused")
"""


def test_fork_bomb_ends_at_the_limit(place: ImageArena) -> None:
    """B01: root inside has no more processes than its sandbox."""
    with place.leaving_nothing():
        said = place.do(place.on_image(FORKS, {"processes": 20}))
        number, made = (int(word) for word in said.stdout.split()[1:])
        assert number == 11
        assert made <= 20


def test_memory_ends_at_the_limit(place: ImageArena) -> None:
    """B02, with the verdict of the kernel's evidence."""
    with place.leaving_nothing():
        said = place.do(place.on_image(MEMORY, {"memory_mb": 96}))
        assert "HELD" not in said.stdout
        assert getattr(said.outcome, "verdict", None) is Verdict.MEMORY, said


def test_memory_within_the_limit_is_held(place: ImageArena) -> None:
    """The control of the test above."""
    said = place.do(place.on_image(MEMORY.replace("range(64)", "range(2)"), {"memory_mb": 128}))
    assert said.stdout == "HELD\n", said


def test_root_lifts_no_limit(place: ImageArena) -> None:
    said = place.do(place.on_image(LIFT))
    assert said.stdout.split() == ["refused"] * 7, said

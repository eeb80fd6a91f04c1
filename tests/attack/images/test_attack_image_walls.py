"""Root inside an image behind the other walls: gVisor and containers, as root and as a user inside.

The probes and controls are those of the jail's module, whose words hold except where a line says
what this wall shows instead.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attack.images import test_attack_image_root
from attack.walls import test_attack_gvisor
from cellwall.jail.inspect.posture import read_text
from cellwall.jail.plan import image_plan
from cellwall.linux.uid_ranges import COUNT, IMAGE_BASE
from cellwall.model.errors import CellwallError
from cellwall.runtimes.docker import image_containers
from cellwall.runtimes.roots import ImageRoot
from kit import controls
from kit.docker_daemon import Daemon
from kit.images.host_tree import APP, ImageArena, arena_behind

pytestmark = [pytest.mark.attack, pytest.mark.root]
SAME = {"setuid to a neighbour"}
"""What a user may do: the probe's neighbour has the number of the image's user."""
WALLS = [(wall, uid) for wall in ("gvisor", "docker") for uid in (0, APP)]


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
def contained(request: pytest.FixtureRequest, tree: Path) -> Iterator[ImageArena]:
    arena = arena_behind(request, "docker", tree, 0)
    yield arena
    arena.close()


@pytest.fixture(scope="module")
def tried(place: ImageArena) -> Iterator[controls.Both]:
    with tempfile.TemporaryDirectory(prefix="bait-") as work:
        Path(work).chmod(0o777)
        inside = {"work": "/tmp", "pid": "1"}
        outside = {"work": work, "pid": str(os.getpid())}
        yield controls.both(place, "probe_privilege", {"inside": inside, "outside": outside})


def _cases() -> list[Any]:
    (mark,) = test_attack_image_root.test_privilege_is_denied.pytestmark  # type: ignore[attr-defined]
    return list(mark.args[1])


@pytest.mark.parametrize(("case", "words", "poisoned"), _cases())
def test_privilege_is_denied_in_containers(
    place: ImageArena, tried: controls.Both, case: str, words: str, poisoned: bool
) -> None:
    if place.choice["runtime"] == "docker":
        tried.denied(case, words, poisoned=poisoned)


def test_root_inside_leaves_a_chroot_for_its_own_root(place: ImageArena) -> None:
    """The control is in the jail's module."""
    with tempfile.NamedTemporaryFile(prefix="bait-") as bait:
        found = test_attack_image_root.leave_a_chroot(place, bait.name)
    was = "REFUSED\n" if place.root.uid else "SMALLER ['below']\nSAME True\nBAIT False\n"
    assert found == was


def test_what_is_reached_in_gvisor_is_the_insides_own(
    place: ImageArena, tried: controls.Both
) -> None:
    """Its kernel is the sandbox's, so it is what is reached of it that counts."""
    if place.choice["runtime"] != "gvisor":
        return
    is_root = place.root.uid == 0
    mine = {"setuid", "setgid", "setgroups", "setuid to a neighbour"} if is_root else SAME
    reached = {key for key, each in tried.inside.items() if each.reached}
    assert {what for case, what in reached if case == "D08"} <= mine
    others = {case for case, _ in reached} - {"D08"}
    assert others <= test_attack_gvisor.ITS_OWN.keys()
    denied = tried.inside.keys() - reached
    assert sum(tried.outside[key].reached for key in denied if key in tried.outside) > 20


def test_changes_stay_in_their_sandbox(place: ImageArena, tree: Path) -> None:
    """A05: what a user changes is its own sandbox's; the host's tree and a neighbour show none."""
    before = test_attack_image_root.digest(tree)

    async def attack() -> None:
        async with (
            place.sandbox(image=place.root) as one,
            place.sandbox(image=place.root) as other,
        ):
            await one.files.write("/tmp/change.py", test_attack_image_root.CHANGE)
            said = await one.commands.run(["python3", "/tmp/change.py"])
            is_root = place.root.uid == 0
            assert ("CHANGED [] True" in said.stdout) == is_root, said
            assert is_root or "PermissionError" in said.stderr
            passwd = await other.commands.run(["cat", "/etc/passwd"])
            assert passwd.stdout
            assert "evil" not in passwd.stdout

    place.do(attack())
    assert test_attack_image_root.digest(tree) == before


def test_disk_and_inodes_are_hard(place: ImageArena) -> None:
    """C01, C02: also where every user may write."""
    place.do(test_attack_image_root.disk_and_inodes_are_hard(place, "/tmp"))


def test_process_that_left_root_does_not_come_back(place: ImageArena) -> None:
    """D08: a set-uid file gives nothing, and a process that became a user stays that."""
    if place.root.uid != 0:
        return
    said = place.do(place.on_image(test_attack_image_root.POWER))
    assert said.stdout.split() == ["b'1001\\n'", "b'1001\\n'", str(errno.EPERM)]


def test_container_has_ids_and_capabilities_of_its_own_namespace(contained: ImageArena) -> None:
    """D12, E04: read on the host; a neighbour has a range of its own."""
    held = f"{image_plan.ROOT_CAPABILITIES:016x}"

    async def attack() -> None:
        starts = set()
        async with (
            contained.sandbox(image=contained.root) as one,
            contained.sandbox(image=contained.root) as other,
        ):
            for sandbox in (one, other):
                pid = sandbox.live.runtime_sandbox._resources.pid  # type: ignore[attr-defined]
                status = read_text(f"/proc/{pid}/status")
                first, start, count = read_text(f"/proc/{pid}/uid_map").split()
                assert (first, count) == ("0", str(COUNT))
                assert int(start) % COUNT == 0
                assert int(start) < IMAGE_BASE
                assert f"\nUid:\t{start}\t{start}\t{start}\t{start}\n" in status
                for name in ("CapPrm", "CapEff", "CapBnd"):
                    assert f"\n{name}:\t{held}\n" in status
                assert "\nNoNewPrivs:\t1\nSeccomp:\t2\n" in status
                starts.add(start)
        assert len(starts) == 2

    contained.do(attack())


@pytest.mark.parametrize("left_out", ["capabilities", "user"])
def test_container_that_kept_more_is_no_sandbox(
    contained: ImageArena,
    docker_daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
    left_out: str,
) -> None:
    """The control of the posture: a first process that gives up less than it should."""

    def lock(root: ImageRoot) -> dict[str, int]:
        if left_out == "user":
            return {"uid": root.uid + 1, "gid": root.gid, "capabilities": 0}
        return {"uid": root.uid, "gid": root.gid, "capabilities": held | 1 << 21}  # SYS_ADMIN

    held = image_plan.ROOT_CAPABILITIES
    monkeypatch.setattr(image_containers, "lock", lock)

    async def attack() -> None:
        with pytest.raises(CellwallError, match=r"CapEff|Uid"):
            async with contained.sandbox(image=contained.root):
                pass

    contained.do(attack())
    assert docker_daemon.containers() == []

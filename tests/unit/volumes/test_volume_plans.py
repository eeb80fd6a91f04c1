"""How a sandbox's plan and posture have volumes: pure rules, without a kernel."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace

import pytest

from cellwall.jail.inspect import posture
from cellwall.jail.plan import image_plan, plan, steps
from cellwall.linux.uid_ranges import IMAGE_BASE
from cellwall.model.errors import HostUnsupported, UsageError
from cellwall.runtimes.base import SandboxSpec
from cellwall.runtimes.docker import inside
from cellwall.runtimes.docker import posture as docker_posture
from cellwall.runtimes.gvisor import oci_bundle
from cellwall.runtimes.roots import VolumeRoot
from cellwall.runtimes.volumes import containers, keeper_process

FACTS = plan.HostFacts((), ("usr",), (), (), (), (), ("processor: 0\n",), "6.1", "#1", 40, 4)
SHAPE = plan.Shape(
    cpus=1, memory_mb=512, disk_mb=256, inodes=1000, processes=100, file_mb=64, open_files=256,
    volumes=(("/data", False), ("/home/user/a/b", True)),
)  # fmt: skip
IMAGE = SHAPE._replace(image=(0, 0))
USUAL = [
    ("/", frozenset({"rw", "nosuid", "nodev"})),
    ("/dev/shm", frozenset({"rw", "nosuid", "nodev"})),
    ("/dev/pts", frozenset({"rw", "nosuid"})),
    ("/data", frozenset({"rw", "nosuid", "nodev"})),
    ("/read", frozenset({"ro", "nosuid", "nodev"})),
]
VOLUMES = {"/data": False, "/read": True}


def _attached(planned: steps.SandboxPlan) -> dict[int, str]:
    return {each.fd: each.path for each in planned.steps if isinstance(each, steps.Attach)}


def test_volumes_come_behind_the_channel_and_an_image() -> None:
    root = plan.ROOT
    template = _attached(plan.sandbox_plan(FACTS, SHAPE))
    assert template == {4: f"{root}/data", 5: f"{root}/home/user/a/b"}
    image = _attached(image_plan.sandbox_plan(FACTS, IMAGE))
    assert image == {4: "/tmp/image", 5: "/data", 6: "/home/user/a/b"}


def test_their_descriptors_are_closed_before_the_next_is_opened() -> None:
    """A step that opens a file is prepared for the lowest number, which must be free."""
    decided = plan.sandbox_plan(FACTS, SHAPE).steps
    last = max(n for n, each in enumerate(decided) if isinstance(each, steps.Attach))
    first = min(
        n for n, each in enumerate(decided) if isinstance(each, (steps.File, steps.Setting))
    )
    assert last < first
    with_image = image_plan.sandbox_plan(FACTS, IMAGE).steps
    attached = [n for n, each in enumerate(with_image) if isinstance(each, steps.Attach)]
    files = [
        n for n, each in enumerate(with_image) if isinstance(each, (steps.File, steps.Setting))
    ]
    assert attached[0] < min(files)  # the lowest number is the image's


def test_paths_of_an_image_are_followed_in_its_own_root_alone() -> None:
    decided = image_plan.sandbox_plan(FACTS, IMAGE).steps
    pivot = next(n for n, each in enumerate(decided) if isinstance(each, steps.Pivot))
    at = [n for n, each in enumerate(decided) if getattr(each, "path", "") in {"/data", "/home"}]
    assert at
    assert min(at) > pivot


def test_mount_points_in_the_home_are_the_users() -> None:
    decided = plan.sandbox_plan(FACTS, SHAPE._replace(has_root=True)).steps
    owners = {each.path: each.owner for each in decided if isinstance(each, steps.Directory)}
    assert owners[f"{plan.ROOT}/home/user/a"] == owners[f"{plan.ROOT}/home/user/a/b"] == 1000
    assert owners[f"{plan.ROOT}/data"] == -1


def test_shapes_with_volumes_survive_the_way_to_the_worker() -> None:
    assert plan.Shape.from_json(json.loads(json.dumps(SHAPE._asdict()))) == SHAPE


def test_volumes_as_planned_are_no_difference() -> None:
    posture.compare_mounts(1, USUAL, VOLUMES)


@pytest.mark.parametrize(
    "found",
    [
        pytest.param([*USUAL[:4], ("/read", frozenset({"rw", "nosuid", "nodev"}))], id="writable"),
        pytest.param(USUAL[:4], id="absent"),
        pytest.param([*USUAL[:4], ("/read", frozenset({"ro", "nodev"}))], id="set-uid"),
        pytest.param([*USUAL[:4], ("/read", frozenset({"ro", "nosuid"}))], id="devices"),
        pytest.param([*USUAL, ("/more", frozenset({"rw", "nosuid", "nodev"}))], id="one-more"),
    ],
)
def test_each_weak_volume_is_found(found: list[tuple[str, frozenset[str]]]) -> None:
    with pytest.raises(posture.PostureMismatch):
        posture.compare_mounts(1, found, VOLUMES)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENXIO, errno.EBUSY, errno.ENOSPC])
def test_a_missing_loop_device_has_a_remedy(number: int) -> None:
    error = keeper_process._explained(number, "open /dev/loop-control", "mount")
    assert isinstance(error, HostUnsupported)
    assert error.remedy is not None
    assert "loop device" in error.remedy


def test_no_mount_point_of_gvisor_lies_behind_a_link() -> None:
    """Root of the host makes them: a link would lead it to a directory of the host."""
    area = {"directories": ["/home", "/var"], "home": "/home/user", "links": [["/link", "/etc"]]}
    good = VolumeRoot("data", "/home/user/a/b", read_only=False, folder="/v")
    assert oci_bundle.mount_points([good], area) == ["/home/user/a", "/home/user/a/b"]
    for path in ("/link", "/link/x"):
        with pytest.raises(UsageError, match="link"):
            oci_bundle.mount_points([replace(good, path=path)], area)


def test_gvisor_binds_are_without_set_uid_and_devices() -> None:
    volumes = [VolumeRoot("a", "/a", read_only=True, folder="/v")]
    (bind,) = oci_bundle.volume_binds(volumes, "/place")
    assert bind["options"] == ["ro", "nosuid", "nodev"]
    assert oci_bundle.VOLUME_IDS == ((IMAGE_BASE, 0, 65_536),)


# -- containers ------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["nosuid", "nodev", "ro"])
def test_each_weak_volume_of_a_container_is_found(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    options = {"ro", "nosuid", "nodev"}
    monkeypatch.setattr(posture, "compare_points", lambda _pid, _wanted: None)
    monkeypatch.setattr(posture, "read_mounts", lambda _pid: [("/read", frozenset(options))])
    docker_posture.verify_volumes(1, {"/read": True})
    options.discard(missing)
    with pytest.raises(posture.PostureMismatch):
        docker_posture.verify_volumes(1, {"/read": True})


def test_a_process_of_the_host_gets_no_volume() -> None:
    """A daemon elsewhere says a number that is another process's here."""
    with pytest.raises(posture.PostureMismatch, match="mount namespace"):
        docker_posture.verify_place(os.getpid(), "0123456789ab")


def test_paths_behind_links_of_a_containers_image_are_where_they_lead() -> None:
    for path, place in {
        "/data": "/home/top/data",
        "/data/x": "/home/top/data/x",
        "/tmp/x": "/home/tmp/x",
        "/var/tmp/x": "/home/tmp/x",
        "/home/user/data": "/home/user/data",
        "/var/lib/data": "/var/lib/data",
        "/database": "/database",
    }.items():
        assert inside.place_of(path) == place


@pytest.mark.parametrize(("maps_ids", "has_own_kernel"), [(True, False), (False, True)])
def test_daemons_that_cannot_have_volumes_are_refused(
    monkeypatch: pytest.MonkeyPatch, maps_ids: bool, has_own_kernel: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    spec = SandboxSpec.__new__(SandboxSpec)
    with pytest.raises(HostUnsupported) as refused:
        containers.check(spec, "docker", maps_ids=maps_ids, has_own_kernel=has_own_kernel)
    assert refused.value.remedy


def test_a_containers_user_and_group_are_shown_apart() -> None:
    shown = containers.on_template(7, 8)
    assert shown.users == ((IMAGE_BASE + 1000, 7, 1),)
    assert shown.groups == ((IMAGE_BASE + 1000, 8, 1),)

"""What callers may say of volumes: names, sizes, shapes and paths, without a kernel."""

from __future__ import annotations

import pytest

from cellwall.jail.volumes import keeper
from cellwall.linux.uid_ranges import IMAGE_BASE
from cellwall.model.errors import UsageError
from cellwall.model.volume import VolumeMount, check_name, check_size, mounts_of
from cellwall.runtimes.volumes import ext4

DATA = VolumeMount("data", "/data")
READ = VolumeMount("data", "/data", read_only=True)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (None, ()),
        ({}, ()),
        ({"data": "/data"}, (DATA,)),
        ({"data": "/data:ro"}, (READ,)),
        (["data:/data"], (DATA,)),
        (["data:/data:rw"], (DATA,)),
        (("data:/data:ro",), (READ,)),
        ([READ], (READ,)),
    ],
)
def test_every_shape_means_the_same_mounts(given: object, meant: tuple[VolumeMount, ...]) -> None:
    assert mounts_of(given) == meant


@pytest.mark.parametrize(
    "given",
    [
        "data:/data",
        7,
        ["data"],
        ["data:/data:wo"],
        ["data:/data:ro:ro"],
        [7],
        {"data": 7},
        ["Data:/data"],
        ["../x:/data"],
        [":/data"],
        ["data:data"],
        ["data:/"],
        ["data:/data/../etc"],
        ["data:/data/"],
        ["data:/da ta"],
        ["data:/" + "/".join("abcdefghi")],
        ["data:/a", "data:/b"],
        ["data:/a", "more:/a"],
        ["data:/a", "more:/a/b"],
        ["a:/a", "b:/b", "c:/c", "d:/d", "e:/e"],
    ],
)
def test_other_shapes_are_refused_with_a_remedy(given: object) -> None:
    with pytest.raises(UsageError) as caught:
        mounts_of(given)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "path",
    [
        *("/usr", "/usr/local", "/proc", "/proc/self", "/etc", "/etc/x", "/dev", "/dev/shm"),
        *("/sys", "/bin", "/lib64", "/sbin/x", "/run", "/opt", "/opt/cellwall", "/opt/cellwall/x"),
        *("/opt/env", "/opt/var", "/home", "/home/user", "/tmp", "/root", "/var", "/var/tmp"),
    ],
)
def test_a_path_of_the_system_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="own system"):
        VolumeMount("data", path)


@pytest.mark.parametrize(
    "path", ["/data", "/home/user/data", "/opt/data", "/tmp/x", "/mnt/a/b", "/var/lib/postgresql"]
)
def test_a_path_beside_the_system_is_taken(path: str) -> None:
    assert VolumeMount("data", path).path == path


@pytest.mark.parametrize("name", ["a", "0", "data-1.x_y", "a" * 63])
def test_names_of_files_are_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", ".a", "a/b", "A", "a" * 64, "a\n", None, "ä"])
def test_what_could_lead_elsewhere_is_no_name(name: object) -> None:
    with pytest.raises(UsageError):
        check_name(name)


@pytest.mark.parametrize(
    "sizes", [(0, None), (-1, None), (1.5, None), (True, None), (1, 1), (1, "x")]
)
def test_sizes_that_cannot_be_are_refused(sizes: tuple[object, object]) -> None:
    with pytest.raises(UsageError):
        check_size(*sizes)


def test_there_is_an_inode_for_each_16_kib() -> None:
    assert check_size(1, None) == (1, 1024)
    assert check_size(1024, None) == (1024, 65_536)


def test_both_halves_mean_the_same_ids_and_directory() -> None:
    assert ext4.FILES_BASE == IMAGE_BASE
    assert ext4.DATA == keeper.DATA

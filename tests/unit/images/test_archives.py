"""Documents of images: what is read of them, and what hostile ones come to."""

from __future__ import annotations

import gzip
import json
import os
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from cellwall.images.archive import read_archive
from cellwall.images.image import Image, ImageInvalid, machine_architecture, read_config
from cellwall.model.errors import CellwallError, UsageError
from kit.images import archives
from kit.images.archives import config_of, described, digest, docker_archive, member, oci_archive

LAYERS = [archives.layer([member("a", b"one")]), archives.layer([member("b", b"two")])]


def content(image: Image, number: int) -> bytes:
    found = image.layers[number]
    data = found.path.read_bytes()[found.offset : found.offset + found.size]
    return gzip.decompress(data) if found.compression == "gzip" else data


@pytest.mark.parametrize("write", [docker_archive, oci_archive])
def test_both_kinds_of_archives(tmp_path: Path, write: Any) -> None:
    config = config_of(
        LAYERS, Env=["A=1", "B=x=y"], WorkingDir="/app", User="app:staff", Cmd=["sh"]
    )
    image = read_archive(write(tmp_path / "image.tar", LAYERS, config))
    assert image.config.digest == digest(config)
    assert dict(image.config.environment) == {"A": "1", "B": "x=y"}
    assert (image.config.working_dir, image.config.user) == ("/app", "app:staff")
    assert image.config.command == ("sh",)
    assert [content(image, number) for number in (0, 1)] == LAYERS
    assert [each.diff_id for each in image.layers] == [digest(each) for each in LAYERS]


def test_layout_in_a_directory(tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    (layout / "blobs/sha256").mkdir(parents=True)
    with tarfile.open(oci_archive(tmp_path / "image.tar", LAYERS)) as tar:
        for each in tar:
            found = tar.extractfile(each)
            assert found is not None
            (layout / each.name).write_bytes(found.read())
    assert len(read_archive(layout).layers) == 2


def test_layout_does_not_lead_out_of_its_directory(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(config_of(LAYERS))
    layout = tmp_path / "layout"
    layout.mkdir()
    (layout / "link").symlink_to("../secret")
    for name in ("../secret", str(tmp_path / "secret"), "link"):
        listed = [{"Config": name, "Layers": []}]
        (layout / "manifest.json").write_text(json.dumps(listed), encoding="ascii")
        with pytest.raises(ImageInvalid, match="has no file"):
            read_archive(layout)


def test_layer_that_is_a_link_in_the_archive(tmp_path: Path) -> None:
    """Docker has written layers that images shared like this."""
    listed = [{"Config": "c.json", "Layers": ["one/layer.tar", "two/layer.tar"]}]
    same = [LAYERS[0], LAYERS[0]]
    path = tmp_path / "image.tar"
    path.write_bytes(
        archives.layer(
            [
                member("c.json", config_of(same)),
                member("manifest.json", json.dumps(listed).encode()),
                member("one/layer.tar", LAYERS[0]),
                archives.link("two/layer.tar", "../one/layer.tar"),
            ]
        )
    )
    assert content(read_archive(path), 1) == LAYERS[0]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"architecture": "other"}, "is for linux/other"),
        ({"os": "windows"}, "is for windows"),
        ({"rootfs": None}, "no proper 'rootfs'"),
        ({"rootfs": {"diff_ids": []}}, "0 layers"),
        ({"rootfs": {"diff_ids": ["sha256:x"]}}, "no digest"),
        ({"rootfs": {"diff_ids": ["sha256:" + "a" * 64] * 513}}, "513 layers"),
        ({"config": []}, "no proper|is no object|Env"),
        ({"config": {"Env": ["novalue"]}}, "no NAME=VALUE"),
        ({"config": {"Env": "A=1"}}, "is no list"),
        ({"config": {"Env": ["A=" + "x" * 40_000]}}, "no text of at most"),
        ({"config": {"WorkingDir": "relative"}}, "no absolute path"),
        ({"config": {"WorkingDir": "/a/../../b"}}, "no absolute path"),
        ({"config": {"Cmd": [1]}}, "no text"),
        ({"config": {"User": "a\0b"}}, "no text"),
    ],
)
def test_hostile_configurations(change: dict[str, Any], match: str) -> None:
    whole = {**json.loads(config_of(LAYERS)), **change}
    if change == {"config": []}:
        assert read_config(json.dumps(whole).encode()).working_dir == "/"
        return
    with pytest.raises(ImageInvalid, match=match):
        read_config(json.dumps(whole).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"[" * 100_000, b"{}" + b" " * (5 << 20)])
def test_what_is_no_document(data: bytes) -> None:
    with pytest.raises(ImageInvalid):
        read_config(data)


def _layout(tmp_path: Path, files: dict[str, bytes]) -> Path:
    return archives.write(tmp_path / "hostile.tar", {"oci-layout": b"{}", **files})


def test_document_with_another_digest(tmp_path: Path) -> None:
    manifest = json.dumps({"config": described(b"{}"), "layers": []}).encode()
    index = {"manifests": [{**described(manifest), "digest": "sha256:" + "b" * 64}]}
    files = {
        "index.json": json.dumps(index).encode(),
        f"blobs/sha256/{'b' * 64}": manifest,
    }
    with pytest.raises(ImageInvalid, match="another digest"):
        read_archive(_layout(tmp_path, files))


def test_index_that_names_itself(tmp_path: Path) -> None:
    """A digest of itself cannot be, but a chain of indexes can be long."""
    blobs, below = {}, json.dumps({"manifests": []}).encode()
    for _ in range(10):
        blobs[f"blobs/sha256/{digest(below)[7:]}"] = below
        below = json.dumps({"manifests": [described(below)]}).encode()
    with pytest.raises(ImageInvalid, match="too deep"):
        read_archive(_layout(tmp_path, {"index.json": below, **blobs}))


def test_index_for_other_machines(tmp_path: Path) -> None:
    other = {"os": "linux", "architecture": "other"}
    index = {"manifests": [{**described(b"{}"), "platform": other}]}
    with pytest.raises(
        ImageInvalid, match=f"0 of its 1 images are for linux/{machine_architecture()}"
    ):
        read_archive(_layout(tmp_path, {"index.json": json.dumps(index).encode()}))


@pytest.mark.parametrize(
    "content",
    [b"no tar at all", b"", gzip.compress(LAYERS[0])],
    ids=["text", "empty", "compressed"],
)
def test_what_is_no_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "image.tar"
    path.write_bytes(content)
    with pytest.raises(ImageInvalid):
        read_archive(path)


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_header_that_promises_gigabytes_is_not_read(tmp_path: Path, kind: bytes) -> None:
    """A sparse file costs its writer nothing; the peak of memory is the witness."""
    path = tmp_path / "image.tar"
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, 1 << 30
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT))
    os.truncate(path, 512 + (1 << 30) + 1024)
    tracemalloc.start()
    try:
        with pytest.raises(ImageInvalid):
            read_archive(path)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_pipe_is_no_archive(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="neither a file nor a directory"):
        read_archive(tmp_path / "pipe")


def test_missing_archive_and_two_images_in_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_archive(tmp_path / "none.tar")
    both = [{"Config": "c", "Layers": []}, {"Config": "d", "Layers": []}]
    path = archives.write(tmp_path / "two.tar", {"manifest.json": json.dumps(both).encode()})
    with pytest.raises(ImageInvalid, match="has 2 images"):
        read_archive(path)


def test_names_that_lead_out_of_an_archive(tmp_path: Path) -> None:
    """A name is looked up among the members, and opens no path of this machine."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"{}")
    listed = [{"Config": str(secret), "Layers": ["../../etc/passwd"]}]
    path = archives.write(tmp_path / "out.tar", {"manifest.json": json.dumps(listed).encode()})
    with pytest.raises(CellwallError, match="has no file"):
        read_archive(path)

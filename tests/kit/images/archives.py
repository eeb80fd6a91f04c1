"""Archives of images, made member by member: benign ones, and such as no tool would write."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import stat
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cellwall.images.image import machine_architecture
from cellwall.runtimes.docker import base_files

_LINKS = ("bin", "lib", "lib64", "sbin")
_PYTHON_TOOLS = ("/usr/bin/python3", "/bin/sh", "/bin/bash", "/bin/su", "/usr/bin/id")
_ACCOUNTS = ("/etc/passwd", "/etc/group", "/etc/pam.d/")
PAM = b"".join(
    b"%s required pam_%s.so\n" % each
    for each in ((b"auth", b"rootok"), (b"account", b"permit"), (b"session", b"permit"))
)
_PASSWD = b"root:x:0:0:root:/root:/bin/sh\napp:x:1001:1001::/:/bin/sh\n"
PROGRAMS = ("/bin/sh", "/bin/cat", "/bin/ls", "/bin/chown", "/bin/stat", "/usr/bin/id")


def member(name: str, content: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A member of a layer; `fields` are those of `tarfile.TarInfo`."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(content), 0o644, 1_700_000_000
    for key, value in fields.items():
        setattr(info, key, value)
    if info.type == tarfile.DIRTYPE and "mode" not in fields:
        info.mode = 0o755
    return info, content


def directory(name: str, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.DIRTYPE, **fields)


def link(name: str, target: str, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.SYMTYPE, linkname=target, **fields)


def hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.LNKTYPE, linkname=target)


def layer(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """The uncompressed tar of a layer."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def config_of(layers: Sequence[bytes], **own: Any) -> bytes:
    """An image's configuration; `own` becomes its `config`."""
    return json.dumps(
        {
            "architecture": machine_architecture(),
            "os": "linux",
            "config": own,
            "rootfs": {"type": "layers", "diff_ids": [digest(each) for each in layers]},
        }
    ).encode()


def docker_archive(path: Path, layers: Sequence[bytes], config: bytes | None = None) -> Path:
    """What `docker save` wrote before it wrote OCI layouts, too."""
    config = config_of(layers) if config is None else config
    names = [f"layer{number}/layer.tar" for number in range(len(layers))]
    listed = [{"Config": "config.json", "RepoTags": ["t:1"], "Layers": names}]
    files = {"config.json": config, "manifest.json": json.dumps(listed).encode()}
    return write(path, {**files, **dict(zip(names, layers, strict=True))})


def oci_archive(path: Path, layers: Sequence[bytes], config: bytes | None = None) -> Path:
    """An OCI image layout with compressed layers."""
    config = config_of(layers) if config is None else config
    blobs = [gzip.compress(each, 1) for each in layers]
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "config": described(config),
            "layers": [described(each) for each in blobs],
        }
    ).encode()
    index = json.dumps({"schemaVersion": 2, "manifests": [described(manifest)]}).encode()
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": index}
    for each in (config, manifest, *blobs):
        files[f"blobs/sha256/{digest(each)[7:]}"] = each
    return write(path, files)


def described(data: bytes) -> dict[str, Any]:
    return {"digest": digest(data), "size": len(data)}


def write(path: Path, files: Mapping[str, bytes]) -> Path:
    path.write_bytes(layer(member(name, content) for name, content in files.items()))
    return path


def small_root() -> list[tuple[tarfile.TarInfo, bytes]]:
    """Members of a root with a shell and a few programs of this machine, with their libraries."""
    paths = set[str]()
    for program in PROGRAMS:
        said = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
        paths |= {program, *re.findall(r"(/\S+) \(0x", said)}
    made = [directory("etc"), directory("home/app", uid=1001, gid=1001)]
    passwd = b"root:x:0:0:root:/root:/bin/sh\napp:x:1001:1001::/home/app:/bin/sh\n"
    made += [member("etc/passwd", passwd), member("etc/group", b"root:x:0:\nstaff:x:50:\n")]
    for path in sorted(paths):
        mode = stat.S_IMODE(os.stat(path).st_mode)
        made.append(member(path[1:], Path(path).read_bytes(), mode=mode))
    return made


def python_root() -> list[tuple[tarfile.TarInfo, bytes]]:
    """Members of a root with this machine's Python and a shell."""
    packages = base_files.select("/usr/bin/python3", _PYTHON_TOOLS)
    made = [directory("etc"), directory("root", mode=0o700)]
    made.append(member("etc/passwd", _PASSWD))
    made.append(member("etc/group", b"root:x:0:\napp:x:1001:\n"))
    made.append(member("etc/pam.d/su", PAM))  # root becomes every user, as in images
    made += [link(name, os.readlink(f"/{name}")) for name in _LINKS if os.path.islink(f"/{name}")]
    for path in base_files.files_of(packages):
        name = os.path.realpath(os.path.dirname(path))[1:] + "/" + os.path.basename(path)
        if os.path.islink(path):
            made.append(link(name, os.readlink(path)))
        elif os.path.isfile(path) and not path.startswith(_ACCOUNTS):
            mode = stat.S_IMODE(os.stat(path).st_mode)
            made.append(member(name, Path(path).read_bytes(), mode=mode))
    return made

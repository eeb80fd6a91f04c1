"""A server whose tenants build templates through the door for E2B's clients, with a base image."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.images import registry
from kit.images.archives import directory, layer, link, member
from kit.images.registry import ImageRegistry
from kit.server.e2b_doors import E2BServer, e2b_server
from kit.servers import MANAGER

PROGRAMS = (
    *("bash", "sh", "tar", "gzip", "grep", "cat", "chmod", "chown", "cp", "date", "echo", "false"),
    *("id", "ln", "ls", "mkdir", "mv", "pwd", "readlink", "rm", "seq", "sleep", "stat", "true"),
    *("whoami", "head"),
)
"""Programs of this machine that the image has: few files, because each step is an image."""
IMAGE = "team/base:1"


def root() -> list[tuple[tarfile.TarInfo, bytes]]:
    """Members of a root with the programs, their libraries, and root's account."""
    paths = set[str]()
    for name in PROGRAMS:
        program = shutil.which(name)
        assert program is not None, name
        said = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
        paths |= {program, *re.findall(r"(/\S+) \(0x", said)}
    made = [directory("etc"), directory("home"), directory("tmp", mode=0o1777)]
    made += [member("etc/passwd", b"root:x:0:0:root:/root:/bin/bash\n")]
    made += [member("etc/group", b"root:x:0:\n"), directory("root", mode=0o700)]
    made += [link(name, f"usr/{name}") for name in ("bin", "lib", "lib64")]
    made += [directory("usr"), directory("srv")]
    for path in sorted(paths):
        name = path if path.startswith("/usr/") else f"/usr{path}"
        data = Path(path).read_bytes()
        made.append(member(name[1:], data, mode=stat.S_IMODE(os.stat(path).st_mode)))
    return made


@dataclass
class Workshop:
    """The server, and the name of an image from which its tenants may build."""

    e2b: E2BServer
    stocked: ImageRegistry

    @property
    def image(self) -> str:
        return self.stocked.name(IMAGE)

    def sdk(self, key: str = MANAGER) -> dict[str, Any]:
        return self.e2b.sdk(key)


@contextlib.contextmanager
def workshop(
    options: str = "", more: str = "", *, builds: int = 2, also: Sequence[str] = (), **server: Any
) -> Iterator[Workshop]:
    """Run the server; `options` are further lines of the door's section.

    `builds`: how many the manager may have at once; `also`: names that stand for the image, too.
    """
    with registry.running() as stocked:
        stocked.add(IMAGE, [layer(root())], Env=["PATH=/usr/local/bin:/usr/bin:/bin", "OF_IMAGE=1"])
        names = ", ".join(f"'{each}' = '{stocked.name(IMAGE)}'" for each in also)
        base = f"base_image = '{stocked.name(IMAGE)}'\nimages = {{ {names} }}\n"
        tiers = f"[tiers.small]\nbuilds = {builds}\n[tenants]\nmanager = 'small'\n"
        url = f"http://{stocked.host}"
        registries = f"[[engine.image_registries]]\nregistry = '{stocked.host}'\nurl = '{url}'\n"
        given = {"images": [f"{stocked.host}/team/*"], "templates_mb": 4000, **server}
        with e2b_server(registries + tiers + more, base + options, **given) as e2b:
            yield Workshop(e2b, stocked)


def archive(files: dict[str, bytes], *, mode: str = "w:gz") -> bytes:
    """Return what a client uploads: a tar of files by their names."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as tar:  # type: ignore[call-overload]  # any mode
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return made.getvalue()


def folder_with(folder: Path, files: dict[str, str]) -> Path:
    """Write files into a folder, and return it."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder

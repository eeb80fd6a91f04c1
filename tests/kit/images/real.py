"""Real images, made on this machine without a registry: distributions, tool chains, a task.

    PYTHONPATH=tests python -m kit.images.real FOLDER NAME… [--mirror URL] [--include PACKAGES]

`debian12` and `debian13` come from a Debian mirror and `ubuntu` from an Ubuntu mirror by
mmdebstrap; the mirror is the caller's. The others are made of this machine's installed packages.
Each is an archive as `docker save` writes one.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cellwall.runtimes.docker import base_files
from kit.images.archives import config_of, directory, docker_archive, layer, link, member

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TASK_TOOLS = ("/usr/bin/git", "/bin/bash", "/bin/sh", "/usr/bin/env")
SUITES = {"debian12": "bookworm", "debian13": "trixie", "ubuntu": "noble"}
_ROOT = "root:x:0:0:root:/root:/bin/sh\n"
_FOLDERS = ("etc", "home", "srv", "usr/local/bin", "var/lib", "var/log", "run")
_LINKS = ("bin", "lib", "lib64", "sbin")
Members = list[tuple[tarfile.TarInfo, bytes]]


# -- distributions, from a mirror ------------------------------------------------------------------


def debootstrapped(path: Path, name: str, mirror: str, include: str = "") -> Path:
    """Make the image of a distribution; its sources.list names the mirror."""
    with tempfile.TemporaryDirectory(prefix="cellwall-real-", dir=path.parent) as folder:
        root = Path(folder, "root.tar")
        words = ["mmdebstrap", "--variant=minbase", SUITES[name], str(root)]
        words += [f"--include={include}"] if include else []
        if name == "ubuntu":  # as Ubuntu's own images have one, with the number 1000
            words.append('--customize-hook=chroot "$1" useradd -m -s /bin/bash -u 1000 ubuntu')
        options = "[trusted=yes] " if name == "ubuntu" else ""  # Debian has no key of Ubuntu's
        parts = "main universe" if name == "ubuntu" else "main"
        line = f"deb {options}{mirror} {SUITES[name]} {parts}"
        subprocess.run([*words, line], check=True, capture_output=True, timeout=900)
        layers = [root.read_bytes()]
    return docker_archive(path, layers, config_of(layers, Env=[PATH], Cmd=["/bin/bash"]))


# -- roots of this machine's packages --------------------------------------------------------------


def packaged(
    programs: Iterable[str], names: Iterable[str] = (), *, compiles: bool = False
) -> Members:
    """Return the members of a root with the packages that own `programs`, and `names`."""
    packages = base_files.select("/usr/bin/python3", programs, names)
    return [*_skeleton(), *_copied(base_files.files_of(packages, compiles=compiles))]


def _skeleton(passwd: str = _ROOT, group: str = "root:x:0:\n") -> Members:
    made = [directory(name) for name in _FOLDERS]
    made += [directory("root", mode=0o700), directory("tmp", mode=0o1777)]
    made += [member("etc/passwd", passwd.encode()), member("etc/group", group.encode())]
    return made + [
        link(name, os.readlink(f"/{name}")) for name in _LINKS if os.path.islink(f"/{name}")
    ]


def _copied(paths: Iterable[str], rename: Callable[[str], str] = lambda path: path) -> Members:
    return [made for path in paths if (made := _copy(path, rename(path))) is not None]


def _copy(path: str, target: str) -> tuple[tarfile.TarInfo, bytes] | None:
    name = os.path.realpath(os.path.dirname(target))[1:] + "/" + os.path.basename(target)
    if os.path.islink(path):
        return link(name, os.readlink(path))
    if not os.path.isfile(path) or not path.startswith("/usr/"):
        return None
    mode = stat.S_IMODE(os.stat(path).st_mode)
    return member(name, Path(path).read_bytes(), mode=mode)


def busybox(path: Path) -> Path:
    """A root like Alpine's: one static program, `ash`, no Python and no C library."""
    program = shutil.which("busybox") or ""
    applets = subprocess.run([program, "--list-full"], check=True, capture_output=True, text=True)
    passwd = (
        _ROOT.replace("/bin/sh", "/bin/ash") + "guest:x:405:100:guest:/dev/null:/sbin/nologin\n"
    )
    made = [member("etc/passwd", passwd.encode()), member("etc/group", b"root:x:0:root\n")]
    made += [member("etc/alpine-release", b"3.22.0\n"), directory("root", mode=0o700)]
    made += [member("etc/os-release", b'ID=alpine\nNAME="Alpine Linux"\n')]
    made += [directory("tmp", mode=0o1777)]
    made += [member("bin/busybox", Path(program).read_bytes(), mode=0o755)]
    for applet in applets.stdout.split():
        if applet != "bin/busybox":
            made.append(link(applet, "/bin/busybox"))
    root = layer(made)
    own = {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "Cmd": ["/bin/ash"]}
    return docker_archive(path, [root], config_of([root], **own))


def node(path: Path) -> Path:
    """A Node tool chain as Debian packages it."""
    root = layer(packaged(("/bin/sh", "/bin/bash", "/usr/bin/node")))
    own = {"Env": [PATH, "NODE_ENV=production"], "WorkingDir": "/srv", "Cmd": ["node"]}
    return docker_archive(path, [root], config_of([root], **own))


def go(path: Path) -> Path:
    """A Go tool chain as Debian packages it."""
    root = layer(packaged(("/bin/sh", "/bin/bash"), ("golang-go",), compiles=True))
    own = {"Env": [PATH, "CGO_ENABLED=0", "GOFLAGS=-mod=mod"], "WorkingDir": "/srv", "Cmd": ["go"]}
    return docker_archive(path, [root], config_of([root], **own))


def python_slim(path: Path) -> Path:
    """A Python like python:3-slim: a small Debian, and an interpreter of its own in /usr/local."""
    layers = [layer(packaged(("/bin/sh", "/bin/bash"))), layer(_local_python())]
    own = {"Env": [PATH, "LANG=C.UTF-8"], "Cmd": ["python3"]}
    return docker_archive(path, layers, config_of(layers, **own))


def _local_python() -> Members:
    version = "python{}.{}".format(*_host_version())
    library = f"/usr/lib/{version}"
    made = [
        member(f"usr/local/bin/{version}", Path(f"/usr/bin/{version}").read_bytes(), mode=0o755)
    ]
    made += [link("usr/local/bin/python3", version), link("usr/local/bin/python", version)]
    made += [directory(f"usr/local/lib/{version}/site-packages")]
    for folder, names, files in os.walk(library):
        names[:] = [name for name in names if name not in ("test", "__pycache__")]
        paths = (f"{folder}/{name}" for name in files)
        made += _copied(paths, lambda path: path.replace("/usr/lib/", "/usr/local/lib/", 1))
    return made


def _host_version() -> tuple[str, str]:
    program = "import sys; print(*sys.version_info[:2])"
    said = subprocess.run(
        ["/usr/bin/python3", "-Sc", program], check=True, capture_output=True, text=True
    )
    major, minor = said.stdout.split()
    return major, minor


# -- a task like those of SWE-bench ----------------------------------------------------------------

BROKEN = "def mean(values):\n    return sum(values) / (len(values) + 1)\n"
MENDED = BROKEN.replace(" / (len(values) + 1)", " / len(values)")
TESTS = (
    "from figures import mean\n\n\ndef test_mean():\n    assert mean([2, 4]) == 3\n\n\n"
    "def test_mean_of_one():\n    assert mean([42]) == 42\n"
)
_SUITE = ("pytest", "iniconfig", "packaging", "pluggy", "pygments")


def swe(path: Path) -> Path:
    """A repository at /testbed with a failing test, fix.patch, and pytest in /opt/venv."""
    programs = packaged((*TASK_TOOLS, "/usr/bin/python3"))
    layers = [layer(programs + _bytecode(programs)), layer(pytest_environment())]
    layers.append(layer(_repository()))
    environment = ["VIRTUAL_ENV=/opt/venv", PATH.replace("PATH=", "PATH=/opt/venv/bin:")]
    own = {"Env": environment, "WorkingDir": "/testbed", "Cmd": ["/bin/bash"]}
    return docker_archive(path, layers, config_of(layers, **own))


def pytest_environment() -> Members:
    """Return a virtual environment of the image's Python, with pytest of this environment."""
    version = "python{}.{}".format(*_host_version())
    site = f"opt/venv/lib/{version}/site-packages"
    made = [
        member("opt/venv/pyvenv.cfg", b"home = /usr/bin\ninclude-system-site-packages = false\n")
    ]
    made += [
        link("opt/venv/bin/python3", "/usr/bin/python3"),
        link("opt/venv/bin/python", "python3"),
    ]
    script = b"#!/opt/venv/bin/python3\nimport sys, pytest\nsys.exit(pytest.main())\n"
    made += [member("opt/venv/bin/pytest", script, mode=0o755)]
    for name in _SUITE:
        for each in importlib.metadata.files(name) or ():
            if ".." not in each.parts and each.suffix != ".pyc":
                made.append(member(f"{site}/{each}", Path(str(each.locate())).read_bytes()))
    return made + _bytecode(made)


def _bytecode(sources: Members) -> Members:
    """Return what installing leaves beside the sources of Python's packages."""
    with tempfile.TemporaryDirectory() as folder:
        for info, content in sources:
            if info.name.endswith(".py"):
                path = Path(folder, info.name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        mode = ("--invalidation-mode", "checked-hash")  # members have other times than these files
        words = ["/usr/bin/python3", "-m", "compileall", "-q", *mode, "-s", folder, "-p", "/"]
        subprocess.run([*words, folder], check=True, capture_output=True)
        found = sorted(Path(folder).rglob("*.pyc"))
        return [member(str(each.relative_to(folder)), each.read_bytes()) for each in found]


def _repository() -> Members:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("figures.py", BROKEN), ("test_figures.py", TESTS)):
            Path(folder, name).write_text(text, encoding="ascii")
        _git(folder, "init", "-q")
        _git(folder, "add", ".")
        _git(folder, "commit", "-qm", "A mean")
        Path(folder, "figures.py").write_text(MENDED, encoding="ascii")
        patch = _git(folder, "diff")
        _git(folder, "checkout", "-q", "figures.py")
        Path(folder, "fix.patch").write_text(patch, encoding="ascii")
        return list(_tree(folder, "testbed"))


def _git(folder: str, *words: str) -> str:
    own = ("-c", "user.name=a", "-c", "user.email=a@b.test", "-c", "safe.directory=*")
    done = subprocess.run(
        ["git", "-C", folder, *own, *words], check=True, capture_output=True, text=True
    )
    return done.stdout


def _tree(folder: str, name: str) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        tar.add(folder, name)
    made.seek(0)
    with tarfile.open(fileobj=made) as tar:
        for info in tar:
            file = tar.extractfile(info) if info.isfile() else None
            info.uid = info.gid = 0
            yield info, file.read() if file is not None else b""


HERE: dict[str, Callable[[Path], Path]] = {
    **{"busybox": busybox, "node": node, "go": go, "python-slim": python_slim, "swe": swe}
}
"""Those that need no mirror."""
NEEDS = {"busybox": ("busybox",), "node": ("node",), "go": ("go",), "swe": ("git",)}
"""Commands of this machine that go into them."""


def main() -> int:
    """Make the images that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+", choices=[*HERE, *SUITES])
    parser.add_argument("--mirror", help="of the distribution, for the images of one")
    parser.add_argument("--include", default="", help="packages of the distribution, with commas")
    given = parser.parse_args()
    for name in given.names:
        path = given.folder / f"{name}.tar"
        if name in HERE:
            HERE[name](path)
        elif given.mirror is None:
            parser.error(f"{name} needs --mirror")
        else:
            debootstrapped(path, name, given.mirror, given.include)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())

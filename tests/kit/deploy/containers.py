"""A container engine of the tests' own, and an image built from deploy/Dockerfile.

Not a fixture for anything else: the daemon has its socket, data and base image in one folder, no
bridge and no firewall rules, so it touches no other daemon and no network. The base image is a
fresh Debian from the distribution's mirror with this machine's package settings laid in it. The
invariant: what a test grants a container is read from deploy/compose*.yaml, never written twice.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from kit.places import ROOT

DEPLOY = ROOT / "deploy"
BASE = "cellwall-test-base"
IMAGE = "cellwall-test"
VOLUME = "cellwall-test-state"
_HOST_FILES = (
    "/etc/resolv.conf",
    "/etc/pip.conf",
    "/etc/apt/sources.list.d",
    "/etc/apt/apt.conf.d",
)
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_BUILD_S = 170
Done = subprocess.CompletedProcess[str]


def missing() -> str:
    """Return why no container engine can be started here, or nothing."""
    if os.geteuid() != 0:
        return "run as uid 0"
    for command, package in (("dockerd", "docker.io"), ("debootstrap", "debootstrap")):
        if shutil.which(command) is None:
            return f"apt-get install {package}"
    return ""


def services(*files: str) -> dict[str, Any]:
    """Return the one service of compose.yaml, with the other files laid over it."""
    merged: dict[str, Any] = {}
    for name in ("compose.yaml", *files):
        text = (DEPLOY / name).read_text(encoding="utf-8")
        for key, value in yaml.safe_load(text)["services"]["cellwall"].items():
            both = isinstance(value, list) and key in merged
            merged[key] = merged[key] + value if both else value
    return merged


def grants(service: dict[str, Any], without: str = "") -> list[str]:
    """Return a service's rights and bounds as flags of `docker run`, but for the option `without`.

    Ports and environment are left out: these containers share the host's network.
    """
    flags = ["--read-only"] if service["read_only"] else []
    flags += ["--init"] if service["init"] else []
    flags += ["--user", service["user"], "--memory", service["mem_limit"]]
    flags += ["--memory-swap", service["memswap_limit"], "--pids-limit", str(service["pids_limit"])]
    for name, limit in service["ulimits"].items():
        flags += ["--ulimit", f"{name}={limit['soft']}:{limit['hard']}"]
    for option, key in (("--cap-drop", "cap_drop"), ("--tmpfs", "tmpfs")):
        flags += [word for value in service[key] for word in (option, value)]
    for value in service["security_opt"]:
        if not (without and value.startswith(without)):
            flags += ["--security-opt", value.replace("=./", f"={DEPLOY}/")]
    for value in service["volumes"]:
        flags += ["--volume", value.replace("state:", f"{VOLUME}:")]
    if "cgroup_parent" in service:
        flags += ["--cgroup-parent", service["cgroup_parent"]]
    return flags


class Docker:
    """One daemon; `call` is its command line."""

    def __init__(self, folder: Path) -> None:
        """Start it and wait until it answers."""
        self._folder = folder
        self._socket = f"unix://{folder}/socket"
        self._log = (folder / "log").open("wb")
        self._daemon = subprocess.Popen(
            [
                *("dockerd", "--host", self._socket, "--pidfile", f"{folder}/pid"),
                *("--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"),
                *("--bridge=none", "--iptables=false", "--ip6tables=false"),
            ],
            stdout=self._log,
            stderr=self._log,
        )
        deadline = time.monotonic() + 30
        while self.call("version", check=False).returncode != 0:
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise AssertionError(f"dockerd: {(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)

    def call(self, *words: str, check: bool = True, stdin: str | None = None) -> Done:
        """Run `docker WORDS`; raise with what it said if it fails and `check` is set."""
        done = subprocess.run(
            ["docker", *words],
            env={**os.environ, "DOCKER_HOST": self._socket, "DOCKER_BUILDKIT": "0"},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_BUILD_S,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"docker {words[0]}: {done.stdout[-1500:]} {done.stderr[-1500:]}")
        return done

    def cellwall(self, flags: list[str], *words: str, stdin: str | None = None) -> Done:
        """Run `cellwall WORDS` in a container that may do what `flags` say."""
        interactive = [] if stdin is None else ["--interactive"]
        start = ["run", "--rm", "--network=host", *interactive, *flags, IMAGE]
        return self.call(*start, *words, check=False, stdin=stdin)

    def build(self) -> None:
        """Build the base image and, on it, the image of deploy/Dockerfile."""
        tree = self._folder / "base"
        with (self._folder / "debootstrap.log").open("wb") as log:
            argv = ["debootstrap", "--variant=minbase", "bookworm", str(tree)]
            subprocess.run(argv, stdout=log, stderr=log, check=True, timeout=_BUILD_S)
        _lay_host_settings(tree)
        with subprocess.Popen(["tar", "-C", tree, "-c", "."], stdout=subprocess.PIPE) as tar:
            subprocess.run(
                ["docker", "import", "-", BASE],
                env={**os.environ, "DOCKER_HOST": self._socket},
                stdin=tar.stdout,
                stdout=self._log,
                check=True,
            )
        shutil.rmtree(tree)
        dockerfile = ("--file", str(DEPLOY / "Dockerfile"), "--tag", IMAGE)
        base = ("--build-arg", f"BASE={BASE}")
        self.call("build", "--network=host", *base, *dockerfile, str(ROOT))

    def close(self) -> None:
        """Remove the containers and stop the daemon."""
        if self._daemon.poll() is None:
            left = self.call("ps", "--all", "--quiet", check=False).stdout.split()
            if left:
                self.call("rm", "--force", *left, check=False)
            self._daemon.terminate()
            self._daemon.wait(30)
        for mount in self._folder.glob("exec/netns/*"):  # it holds on to the namespace of the host
            subprocess.run(["umount", mount], check=False)
        self._log.close()


def _lay_host_settings(tree: Path) -> None:
    """Give the base this machine's mirrors and certificates: a clean one knows only the usual."""
    (tree / "etc/apt/sources.list").unlink(missing_ok=True)
    for name in _HOST_FILES:
        source, target = Path(name), tree / name.lstrip("/")
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.is_file():
            shutil.copyfile(source, target)
    # Beside the distribution's own bundle, which installing ca-certificates writes anew.
    shutil.copyfile(_CERTIFICATES, tree / "etc/test-certificates.crt")
    pip = tree / "etc/pip.conf"
    text = pip.read_text(encoding="utf-8") if pip.exists() else "[global]\n"
    lines = [line for line in text.splitlines() if not line.startswith(("cert", "find-links"))]
    lines = [line for line in lines if "file:" not in line]
    place = lines.index("[global]") + 1 if "[global]" in lines else 0
    lines[place:place] = ([] if place else ["[global]"]) + ["cert = /etc/test-certificates.crt"]
    pip.write_text("\n".join(lines) + "\n", encoding="utf-8")


@contextlib.contextmanager
def docker() -> Iterator[Docker]:
    """Run a daemon with the image built, for the length of a block."""
    folder = Path(tempfile.mkdtemp(prefix="cellwall-docker-"))
    try:
        made = Docker(folder)
        try:
            made.build()
            yield made
        finally:
            made.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)

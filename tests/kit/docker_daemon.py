"""A container engine of the tests' own: its socket, data and processes in one folder.

No bridge and no firewall rules, so it touches no other daemon and no network. gVisor is registered
with it where it is installed, without network, as it needs below an engine of this age.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_READY_S = 30
_DYING_S = 2
"""How long containerd may take to follow; after that it lives on."""
BROKEN = "broken"
FOLDERS = "cellwall-dockerd-"
"""How the names of their folders begin."""


def missing() -> str:
    """Return why no container engine can be started here, or nothing."""
    if os.geteuid() != 0:
        return "run as uid 0"
    return "" if shutil.which("dockerd") else "apt-get install docker.io"


class Daemon:
    """One dockerd that can be stopped, killed and started again."""

    def __init__(self, folder: Path) -> None:
        """Start it and wait until it answers."""
        self._folder = folder
        self.address = f"unix://{folder}/socket"
        # One that makes nothing: the start of a made container fails.
        runtimes: dict[str, Any] = {BROKEN: {"path": shutil.which("false")}}
        if shutil.which("runsc"):
            # ptrace: the one platform that every version of the package has.
            arguments = ["--platform=ptrace", "--network=none"]
            runtimes["runsc"] = {"path": shutil.which("runsc"), "runtimeArgs": arguments}
        (folder / "daemon.json").write_text(json.dumps({"runtimes": runtimes}))
        self.start()

    def start(self) -> None:
        """Start it; it must not run."""
        folder = self._folder
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("dockerd", "--host", self.address, "--pidfile", f"{folder}/pid"),
                    *("--config-file", f"{folder}/daemon.json"),
                    *("--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"),
                    *("--bridge=none", "--iptables=false", "--ip6tables=false"),
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _READY_S
        while self.call("version", check=False).returncode != 0:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"dockerd: {(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def call(
        self, *words: str, check: bool = True, stdin: bytes | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `docker WORDS`."""
        done = subprocess.run(
            ["docker", *words],
            env={**os.environ, "DOCKER_HOST": self.address},
            input=None if stdin is None else stdin.decode(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"docker {words[0]}: {done.stderr[-1500:]}")
        return done

    def containers(self) -> list[str]:
        """Every container there is, by id."""
        return self.call("ps", "--all", "--quiet", "--no-trunc").stdout.split()

    def kill(self) -> None:
        """As a crash: what runs containers lives on, containerd may go with it."""
        supervised = self._folder / "exec/containerd/containerd.pid"
        containerd = Path("/proc") / supervised.read_text().strip() / "stat"
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)
        # The next one waits in vain for a containerd that is dead and that nobody has reaped.
        deadline = time.monotonic() + _DYING_S
        while time.monotonic() < deadline:
            try:
                state = containerd.read_text().rpartition(")")[2].split()[0]
            except OSError:
                return
            if state == "Z":
                supervised.unlink(missing_ok=True)
                return
            time.sleep(0.02)

    def close(self) -> None:
        """Remove the containers and stop it."""
        if self._process.poll() is not None:
            self.start()  # what a killed one left running is its successor's to end
        if left := self.containers():
            self.call("rm", "--force", *left, check=False)
        self._process.terminate()
        # One that took over a killed one's containerd would wait for it, and it is no child.
        supervised = self._folder / "exec/containerd/containerd.pid"
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(supervised.read_text()), signal.SIGTERM)
        self._process.wait(30)


@contextlib.contextmanager
def running() -> Iterator[Daemon]:
    """Run a daemon for the length of a block, as the one that DOCKER_HOST names."""
    folder = Path(tempfile.mkdtemp(prefix=FOLDERS))
    before = os.environ.get("DOCKER_HOST")
    try:
        daemon = Daemon(folder)
        os.environ["DOCKER_HOST"] = daemon.address
        try:
            yield daemon
        finally:
            daemon.close()
            # A killed one leaves its data mounted on itself.
            subprocess.run(["umount", "-q", f"{folder}/data"], check=False, capture_output=True)
    finally:
        os.environ.pop("DOCKER_HOST", None)
        if before is not None:
            os.environ["DOCKER_HOST"] = before
        shutil.rmtree(folder, ignore_errors=True)

"""A systemd of its own beside this machine's, in namespaces (`beside.sh`), for units of ours.

Not a container engine and no test. It sees our root below a layer of its own, and cgroup v2 alone,
without controllers where the host's are in v1.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from conftest import require_capability
from kit.figures import children
from kit.waiting import wait_until

NEEDED = 254
"""First version that knows DelegateSubgroup."""
NEWER = "CELLWALL_TEST_SYSTEMD"
"""Variable that names a folder with the packages of a newer systemd, where the host's is older:
`systemd`, `systemd-sysv`, `libsystemd0`, `libsystemd-shared`, `libudev1` by `apt-get download`.
"""
_SHELL = Path(__file__).with_name("beside.sh")
_TARGET = "[Unit]\nRequires=sysinit.target\nAfter=sysinit.target\nAllowIsolate=yes\n"
_MASKED = (
    "systemd-sysctl.service",  # what follows would change our kernel, or waits for devices
    "systemd-udevd.service",
    "systemd-udev-trigger.service",
    "systemd-modules-load.service",
    "systemd-binfmt.service",
    "systemd-networkd.service",
    "systemd-resolved.service",
    "systemd-timesyncd.service",
    "systemd-random-seed.service",
    "systemd-remount-fs.service",
    "proc-sys-fs-binfmt_misc.automount",
    "dev-hugepages.mount",
    "dev-mqueue.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "sys-kernel-config.mount",
    "sys-fs-fuse-connections.mount",
)


class Beside:
    """One running systemd."""

    def __init__(self, folder: Path, pid: int) -> None:
        """`pid` is that of its pid 1, here."""
        self.folder = folder
        self.pid = pid

    def run(self, *words: str, given: str = "") -> str:
        """Run a command in it; return what it printed."""
        enter = ["nsenter", f"--target={self.pid}", "-m", "-p", "-u", "-i", "-C"]
        enter += [f"--root=/proc/{self.pid}/root", "--wd=/", "--", *words]
        done = subprocess.run(
            enter, input=given, capture_output=True, text=True, check=False, timeout=90
        )
        assert done.returncode == 0, f"{words}: {done.stdout} {done.stderr}"
        return done.stdout

    def write(self, path: str, text: str) -> None:
        """Write a file in it."""
        self.run("install", "-D", "-m", "0644", "/dev/stdin", path, given=text)


def _version(argv: Sequence[str]) -> int:
    try:
        text = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return 0
    found = re.match(r"systemd (\d+)", text)
    return int(found.group(1)) if found else 0


def _laid_over(upper: Path) -> None:
    """Prepare what lies over our root."""
    upper.mkdir()
    newer = os.environ.get(NEWER)
    for package in sorted(Path(newer).glob("*.deb")) if newer else ():
        subprocess.run(["dpkg", "-x", package, upper], check=True)
    for name in ("bin", "lib", "sbin"):  # links into /usr on our root
        if (upper / name).is_dir():
            shutil.copytree(upper / name, upper / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(upper / name)
    units = upper / "etc/systemd/system"
    units.mkdir(parents=True, exist_ok=True)
    (units / "beside.target").write_text(_TARGET)
    for name in _MASKED:
        (units / name).symlink_to("/dev/null")
    (upper / "etc/fstab").write_text("")
    (upper / "etc/machine-id").write_text("1" * 32 + "\n")


def _cgroup() -> Path:
    """Make a cgroup v2 for it."""
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    points = re.findall(r" (/\S+) \S+ (?:\S+ )*- cgroup2 ", text)
    require_capability("cgroup2", bool(points), "mount -t cgroup2 cgroup2 DIRECTORY")
    made = Path(points[0]) / f"cellwall-beside-{os.getpid()}"
    made.mkdir()
    return made


@contextlib.contextmanager
def beside(*shown: Path) -> Iterator[Beside]:
    """Boot a systemd that sees these directories; end it, and all that it runs."""
    is_new = bool(os.environ.get(NEWER)) or _version(["systemctl", "--version"]) >= NEEDED
    require_capability(f"systemd {NEEDED}", is_new, f"set {NEWER} to a folder of packages")
    require_capability("root", os.geteuid() == 0, "run as root")
    with contextlib.ExitStack() as held:
        folder = Path(tempfile.mkdtemp(prefix="beside-", dir="/var/tmp"))
        held.callback(shutil.rmtree, folder, ignore_errors=True)
        _laid_over(folder / "upper")
        group = _cgroup()
        held.callback(wait_until, lambda: _removed(group), "its processes are gone")
        process = _booted(folder, group, shown)
        held.callback(process.wait)
        held.callback(process.send_signal, signal.SIGKILL)  # and its pid 1, by --kill-child
        wait_until(lambda: process.poll() is not None or children(process.pid), "it is born")
        made = Beside(folder, children(process.pid)[0])
        wait_until(lambda: _is_up(made), "systemd is up")
        yield made


def _booted(folder: Path, group: Path, shown: Sequence[Path]) -> subprocess.Popen[bytes]:
    enter = f"echo $$ >{group}/cgroup.procs; exec unshare -m -p -u -i -C --fork --kill-child "
    words = [str(_SHELL), str(folder), *map(str, shown)]
    return subprocess.Popen(["sh", "-c", enter + '"$@"', "sh", *words], start_new_session=True)


def _is_up(made: Beside) -> bool:
    try:
        return made.run("systemctl", "is-system-running").strip() == "running"
    except AssertionError:
        return False


def _removed(group: Path) -> bool:
    for folder, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    return not group.exists()

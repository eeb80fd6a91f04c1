"""The Debian after this machine's, for what needs a newer Python: its root, without a container.

Made once below `.tools` by debootstrap, from the mirror that apt of this machine uses (or
`CELLWALL_TEST_MIRROR`); a minute, and 400 MB. A program runs in it as root in a mount namespace of
its own, which a `chroot` would not do: there the kernel makes no user namespaces. It has this
clone, /tmp and the kernel's file systems at the paths they have here, and the machine's network.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from cellwall.engine.templates.package_index import uv_variables
from conftest import require_capability
from kit.agents.other_environment import fingerprint
from kit.places import ROOT

SUITE = "trixie"
_PLACE = ROOT / ".tools" / SUITE
_PACKAGES = ("python3", "python3-venv", "git", "ca-certificates", "iproute2")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
_ENTER = """
set -e
root=$1 clone=$2 authorities=$3; shift 3
mount --bind "$root" "$root"
for each in /proc /sys /dev /tmp; do mount --rbind "$each" "$root$each"; done
mkdir -p "$root$clone" "$root/before"
mount --bind "$clone" "$root$clone"
touch "$root/etc/resolv.conf" "$root/etc/hosts"
for each in /etc/resolv.conf /etc/hosts; do mount --bind "$each" "$root$each"; done
mount --bind "$authorities" "$root/etc/ssl/certs/ca-certificates.crt"
cd "$root"
pivot_root . before
umount -l /before
cd "$clone"
exec "$@"
"""


def inside(
    *argv: str | Path, env: Mapping[str, str] | None = None, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a program there; of this process's environment it has what uv and pip go by."""
    known = {**os.environ, **uv_variables(os.environ)}
    enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER, "enter"]
    words = [*enter, _PLACE / "root", ROOT, known.get("SSL_CERT_FILE", _AUTHORITIES), *argv]
    whole = {name: value for name, value in known.items() if name.startswith("UV_")}
    whole |= {"UV_FIND_LINKS": "", "SSL_CERT_FILE": _AUTHORITIES, "LANG": "C.UTF-8"}
    whole |= {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **(env or {})}
    return subprocess.run(
        words, env=whole, capture_output=True, text=True, check=False, timeout=timeout
    )


def programs_of(group: str, *extras: str) -> Path:
    """Return the folder of programs, inside, of an environment with that dependency group.

    It has cellwall, with the extras, of this clone. Skips where it cannot be made.
    """
    require_capability("root", os.geteuid() == 0, "mount namespaces with a root of their own")
    found = shutil.which("debootstrap")
    require_capability("debootstrap", found is not None, "apt-get install debootstrap")
    _PLACE.mkdir(parents=True, exist_ok=True)
    with (_PLACE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed = "" if (_PLACE / "made").is_file() else _make_root()
        failed = failed or _make_environment(group, extras)
    require_capability(f"{SUITE} with packages of {group}", not failed, failed)
    return Path("/opt", group, "bin")


def _make_root() -> str:
    """Make the root; return what was said if that failed."""
    shutil.rmtree(_PLACE / "root", ignore_errors=True)
    words = ["debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}"]
    words += [f"--keyring={_KEYRING}", SUITE, str(_PLACE / "root"), _mirror()]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        return f"debootstrap: {done.stdout[-300:]}{done.stderr[-300:]}"
    (_PLACE / "made").touch()
    return ""


def _mirror() -> str:
    """Return the mirror of Debian's that apt of this machine asks."""
    if given := os.environ.get("CELLWALL_TEST_MIRROR"):
        return given
    words = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    said = subprocess.run(
        [*words, "Label: Debian"], capture_output=True, text=True, check=False
    ).stdout.split()
    require_capability("a mirror of Debian", bool(said), "apt-get update, or CELLWALL_TEST_MIRROR")
    return said[0]


def _make_environment(group: str, extras: tuple[str, ...]) -> str:
    stamp = _PLACE / f"{group}-of"
    wanted = fingerprint(group, extras)
    if stamp.is_file() and stamp.read_text() == wanted:
        return ""
    uv, python = ROOT / ".tools" / "uv", f"/opt/{group}/bin/python"
    what = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    steps: list[list[str | Path]] = [
        [uv, "venv", "--quiet", "--clear", "--no-project", f"/opt/{group}"],
        [uv, "pip", "install", "--quiet", "--python", python, "--editable", what],
    ]
    steps[-1] += ["--group", f"{ROOT / 'pyproject.toml'}:{group}"]
    for words in steps:
        done = inside(*words, timeout=400)
        if done.returncode:
            return f"{words[1]}: {done.stderr[-500:]}"
    stamp.write_text(wanted)
    return ""

"""The host's `runsc`: its path, its version and flags, and the platform on which it works here.

It does not start sandboxes: the caller passes `try_platform`. Results are kept below the state
directory under the digest of the binary and the kernel's version, because a test takes a second or,
where a platform hangs, its whole time limit. A failure is tested again after an hour: the host may
only have been too busy.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from cellwall.model.errors import HostUnsupported
from cellwall.runtimes.base import Finding
from cellwall.runtimes.gvisor.oci_bundle import REQUIRED_FLAGS

INSTALL = "run: apt-get install runsc (Debian), or name the binary with CELLWALL_RUNSC"
PLATFORMS = ("systrap", "ptrace")
"""Platforms tried, fastest first. kvm is tried only on request: on nested virtualisation it
hangs."""
_KNOWN_PLATFORMS = (*PLATFORMS, "kvm")
_ASK_S = 20.0
_FAILURE_KEPT_S = 3600.0
_DATE = re.compile(r"20\d{6}")
_FLAG = re.compile(r"^\s+-([a-zA-Z0-9-]+)", re.MULTILINE)

TryPlatform = Callable[["Binary", str], Awaitable[str]]
"""Function that returns the reason why a platform does not work here; empty when it works."""


@dataclass(frozen=True, slots=True)
class Binary:
    """One `runsc` on disk."""

    path: str
    digest: str
    version: str
    flags: frozenset[str]


def find() -> str:
    """Return the path of `runsc`; raise HostUnsupported, with the remedy, if there is none."""
    named = os.environ.get("CELLWALL_RUNSC")
    found = shutil.which(named or "runsc", path="/usr/local/bin:/usr/bin:/usr/local/sbin:/usr/sbin")
    if found is None:
        what = f"CELLWALL_RUNSC={named!r} is no program" if named else "no runsc is installed"
        raise HostUnsupported("runsc", f"gVisor: {what}", remedy=INSTALL)
    return found


def inspect(path: str) -> Binary:
    """Run `runsc` for its version and flags. Blocks for a tenth of a second; HostUnsupported."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    version = _ask(path, "--version").partition("\n")[0].removeprefix("runsc version ").strip()
    known = flags_of(path)
    missing = sorted(REQUIRED_FLAGS - known)
    if missing:
        raise HostUnsupported(
            "runsc", f"gVisor: {path} {version} has no --{missing[0]}", remedy=INSTALL
        )
    return Binary(path, digest, version, known)


def flags_of(path: str, command: str = "") -> frozenset[str]:
    """Return the flags that `runsc` has for all commands, or has for one. HostUnsupported."""
    words = ("help", command) if command else ("flags",)
    return frozenset(_FLAG.findall(_ask(path, *words)))


def _ask(path: str, *words: str) -> str:
    try:
        done = subprocess.run(
            [path, *words], check=True, capture_output=True, text=True, timeout=_ASK_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise HostUnsupported(
            "runsc", f"gVisor: {path} {' '.join(words)}: {error}", remedy=INSTALL
        ) from error
    return done.stdout + done.stderr


def leaves_running(binary: Binary) -> bool:
    """Report whether its version should write a sandbox down without ending it.

    Those up to 2022 have the flag, but reach a deadline of their own, with the sandbox dead.
    """
    date = _DATE.search(binary.version)
    return date is None or date[0] >= "2023"


def cautions(binary: Binary) -> list[Finding]:
    """Return known defects of the version, as seen with Debian 12's."""
    date = _DATE.search(binary.version)
    if date is None or date[0] >= "2023":
        return []
    return [
        Finding(
            "runsc version",
            "CAUTION",
            f"{binary.version}: `ls` of coreutils 9 fails in it, terminals lose their last output",
            "install a newer one, as Debian 13 has",
        )
    ]


def wanted_platforms() -> tuple[str, ...]:
    """Return the platforms to try: the operator's setting, or the usual ones."""
    named = os.environ.get("CELLWALL_RUNSC_PLATFORM")
    if named is None:
        return PLATFORMS
    if named not in _KNOWN_PLATFORMS:
        raise HostUnsupported(
            "platform",
            f"gVisor: CELLWALL_RUNSC_PLATFORM={named!r} is not a platform",
            remedy=f"platforms: {', '.join(_KNOWN_PLATFORMS)}",
        )
    return (named,)


class Platforms:
    """Working platforms by binary and kernel; remembered across processes."""

    def __init__(self, folder: Path) -> None:
        """`folder` is made when the first result is stored."""
        self._file = folder / "platforms.json"

    async def choose(self, binary: Binary, try_platform: TryPlatform) -> str:
        """Return the first platform that works; HostUnsupported with every reason if none does."""
        reasons = []
        for name in wanted_platforms():
            reason = await self.why_not(binary, name, try_platform)
            if not reason:
                return name
            reasons.append(f"{name}: {reason}")
        raise HostUnsupported(
            "platform",
            f"gVisor: {binary.path} {binary.version} runs nothing here: {'; '.join(reasons)}",
            remedy="install a newer runsc, as Debian 13 has, or set CELLWALL_RUNSC_PLATFORM",
        )

    async def why_not(self, binary: Binary, name: str, try_platform: TryPlatform) -> str:
        """Return why what is tried under a name does not work here; empty when it works."""
        key = f"{binary.digest} {os.uname().release} {name}"
        known = self._read()
        reason, at = known.get(key, ("", 0.0))
        # A time in the future is from a clock that was set back: worth as little as an old one.
        is_fresh = 0 <= time.time() - at < _FAILURE_KEPT_S
        if key not in known or (reason and not is_fresh):
            reason = await try_platform(binary, name)
            self._write({**self._read(), key: (reason, time.time())})
        return reason

    def _read(self) -> dict[str, tuple[str, float]]:
        """Return why each platform does not work, empty if it does, and the time of the test."""
        try:
            known = json.loads(self._file.read_text(encoding="utf-8"))
            return {str(key): (str(reason), float(at)) for key, (reason, at) in known.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _write(self, known: dict[str, tuple[str, float]]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=self._file.parent, prefix=".platforms-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(known, file, indent=1)
        os.replace(temporary, self._file)

"""Package registries: which ones the broker asks, and where it keeps what it fetched.

What the operator lists in the settings is asked, or else what pip, uv and npm of this machine ask:
no registry is written down here. Found in the engine's process, since the proxy has no
environment; the values may carry passwords and never go to a command line.
"""

from __future__ import annotations

import asyncio
import configparser
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cellwall.engine.templates.build import find_uv
from cellwall.engine.templates.package_index import uv_variables
from cellwall.model.errors import HostUnsupported

if TYPE_CHECKING:
    from cellwall.engine.policy.settings import EngineSettings

_COMMAND_S = 20.0
_UVS_OWN = re.compile(r"--default-index.*?\(by default: <(https?://[^>\s]+)>\)", re.DOTALL)
"""What `uv pip install --help` says of the index it asks where none is configured."""


@dataclass(frozen=True, slots=True)
class Found:
    """Registries, and by whose certificates they are verified."""

    upstreams: list[Mapping[str, Any]] = field(repr=False)
    """JSON objects as `Upstream.of` takes them."""
    certificates: str | None
    """Path of a PEM file; None: this machine's authorities."""


class Handed(NamedTuple):
    """What a proxy is handed (`PackageSource`)."""

    upstreams: list[Mapping[str, Any]]
    open_files: Callable[[int], list[int]]
    """Opens the files for a user id."""


class Registries:
    """The registries of one engine, and what a proxy is handed to ask them."""

    def __init__(self, settings: EngineSettings, state_dir: Path) -> None:
        """Look for nothing yet."""
        self._settings = settings
        self._state_dir = state_dir
        self._found: Found | None = None
        self._finding = asyncio.Lock()
        """Held while installers of this machine are asked, which is done once."""

    async def handed(self) -> Handed:
        """Return what a proxy is handed."""
        async with self._finding:
            if self._found is None:
                self._found = await find(self._settings)
        found = self._found
        return Handed(found.upstreams, partial(open_files, self._state_dir, found.certificates))


async def find(settings: EngineSettings) -> Found:
    """Return the registries and the file of certificate authorities to trust."""
    environ = dict(os.environ)
    variables = uv_variables(environ)
    upstreams = list(settings.package_registries)
    if not upstreams:
        python, npm = await asyncio.gather(
            asyncio.to_thread(_python_index, environ, variables),
            asyncio.to_thread(_npm_registry, environ),
        )
        found = (("pypi", python), ("npm", npm))
        upstreams = [
            {"registry": registry, "url": url}
            for registry, url in found
            if url.startswith(("http://", "https://"))  # a folder is no registry
        ]
    trusted = environ.get("SSL_CERT_FILE") or variables.get("SSL_CERT_FILE")
    return Found(upstreams, trusted)


def _python_index(environ: Mapping[str, str], variables: Mapping[str, str]) -> str:
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if found := environ.get(name) or variables.get(name):
            return found
    matched = _UVS_OWN.search(_output(find_uv(), "pip", "install", "--help"))
    return matched[1] if matched else ""


def _npm_registry(environ: Mapping[str, str]) -> str:
    for name in ("npm_config_registry", "NPM_CONFIG_REGISTRY"):
        if found := environ.get(name):
            return found
    if found := _npmrc(Path(environ.get("HOME") or "/nonexistent") / ".npmrc"):
        return found
    npm = shutil.which("npm")
    return "" if npm is None else _output(npm, "config", "get", "registry").strip()


def _npmrc(path: Path) -> str:
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",))
    try:
        parser.read_string("[npm]\n" + path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, configparser.Error):
        return ""
    return parser["npm"].get("registry", "").strip()


def _output(*command: str) -> str:
    try:
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd="/",  # outside of any project of the caller's
            check=True,
            timeout=_COMMAND_S,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ran.stdout


def open_files(state_dir: Path, certificates: str | None, uid: int) -> list[int]:
    """Return descriptors of the folder of `open_folder` and of the certificates, if any are named.

    Not paths: what leads there may be closed to the proxy's user. Raises HostUnsupported.
    """
    fds = [open_folder(state_dir, uid)]
    if certificates is not None:
        try:
            fds.append(os.open(certificates, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            os.close(fds[0])
            raise HostUnsupported(
                "package registries",
                f"packages: the certificates in {certificates} cannot be read: {error.strerror}",
                remedy="correct SSL_CERT_FILE, or `cert` of pip's settings",
                errno=error.errno,
            ) from None
    return fds


def open_folder(state_dir: Path, uid: int) -> int:
    """Return a descriptor of the folder for what a proxy of this user fetches. `HostUnsupported`.

    Each user id has its own, since only its owner may write there; a proxy has the same id as the
    one before it where nothing else took that meanwhile.
    """
    parent = state_dir / "packages"
    try:
        parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        path = parent / str(uid)
        if not path.exists():
            path.mkdir(mode=0o700)
            os.chown(path, uid, uid if os.geteuid() == 0 else -1)
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _no_folder(parent, error.strerror or str(error)) from None
    found = os.fstat(fd)
    if found.st_uid != uid or stat.S_IMODE(found.st_mode) & 0o077:
        os.close(fd)
        raise _no_folder(path, f"it is not user {uid}'s alone")
    return fd


def _no_folder(path: Path, why: str) -> HostUnsupported:
    return HostUnsupported(
        "package cache",
        f"packages: the folder {path} cannot be used: {why}",
        remedy="remove it; it is made again",
    )

"""Template build: fill one directory with an environment by uv, and make it read-only.

Called by `store` only, which decides where templates lie and which process builds. The invariant:
nothing of a template is executed or imported on the host, including its link to an interpreter: the
files beside that link decide what it loads. uv unpacks wheels for the base interpreter into a
prefix; there is no source build, no import, no console script, and bytecode comes from a parser
(`bytecode`). What a package does on import, it does inside a sandbox.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from cellwall.engine.templates import bytecode, environment_tree, fonts, user_installs
from cellwall.engine.templates.base_interpreter import BaseInterpreter
from cellwall.engine.templates.package_index import uv_variables
from cellwall.model.errors import HostUnsupported
from cellwall.model.template import Template

Progress = Callable[[str], None]

_KEPT_VARIABLES = ("HOME", "PATH", "LANG", "TMPDIR", "NETRC", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
_KEPT_PREFIXES = ("UV_", "SSL_CERT_", "HTTP", "http", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_p")


def find_uv() -> str:
    """Return the path of uv: that of the wheel cellwall depends on, else the one on PATH."""
    try:
        from uv import find_uv_bin

        return os.fspath(find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise HostUnsupported(
            "uv", "build a template: uv is not installed", remedy="run: pip install uv"
        )
    return found


def fill(root: Path, template: Template, base: BaseInterpreter, progress: Progress) -> list[str]:
    """Install `template` into `root`; return the resolved packages as `name==version`."""
    builder = _Uv(find_uv(), template.name, root, progress)
    # A relocatable environment: it is renamed once built and mounted elsewhere in the jail.
    builder.run("venv", "--quiet", "--relocatable", "--no-project", "--python", base.executable)
    if not template.packages:
        return []
    ours = environment_tree.own(root)
    builder.run(*_install_arguments(root, template, base), "--", *template.packages)
    (root / "constraints.txt").unlink(missing_ok=True)
    environment_tree.require_own(root, ours, template.name)
    environment_tree.make_relocatable(root, base)
    installed = environment_tree.packages_folder(root, base)
    pins = environment_tree.pins(installed)
    user_installs.add(root, installed)
    fonts.install(root, template, installed)
    started = time.monotonic()
    count = bytecode.compile_tree(installed, base)
    progress(f"compiled {count} modules in {time.monotonic() - started:.1f} s")
    return pins


def seal(root: Path) -> int:
    """Make the tree readable and read-only for every user; return the sum of its file sizes.

    Sandboxes read it under a foreign uid, so the modes must not depend on this process's umask.
    """
    size_bytes = 0
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            if not os.path.islink(path):
                os.chmod(path, 0o555 if status.st_mode & 0o100 else 0o444)
                size_bytes += status.st_size
        os.chmod(directory, 0o555)  # noqa: S103 - meant for every uid
    return size_bytes


def _install_arguments(root: Path, template: Template, base: BaseInterpreter) -> list[str]:
    # SECURITY: never `--python <root>/bin/python`, which uv would start, to ask it or to compile.
    arguments = ["pip", "install", "--python", base.executable, "--prefix", str(root)]
    # SECURITY: a source distribution runs its own build script here, outside every wall.
    arguments += ["--only-binary", ":all:", "--no-compile-bytecode", "--no-progress"]
    # Copies, because a hard link would share its inode with uv's cache, where others may write.
    arguments += ["--link-mode", "copy"]
    if template.constraints:
        constraints = root / "constraints.txt"
        constraints.write_text("\n".join(template.constraints) + "\n", encoding="utf-8")
        arguments += ["--constraints", str(constraints)]
    return arguments


def _environment(environ: Mapping[str, str], spare_cache: Path) -> dict[str, str]:
    """Build uv's environment from nothing: no VIRTUAL_ENV or PYTHONPATH may affect it."""
    kept = {
        name: value
        for name, value in environ.items()
        if name in _KEPT_VARIABLES or name.startswith(_KEPT_PREFIXES)
    }
    # like the argument, it would have uv compile with an interpreter
    kept.pop("UV_COMPILE_BYTECODE", None)
    kept |= uv_variables(environ)
    kept |= {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_MODIFY_PATH": "1"}
    if "UV_CACHE_DIR" not in kept and not _can_cache(environ):
        kept["UV_CACHE_DIR"] = str(spare_cache)
    return kept


def _can_cache(environ: Mapping[str, str]) -> bool:
    """Report whether uv can use its usual cache; a service's home is often read-only or absent."""
    home = environ.get("HOME")
    place = Path(environ.get("XDG_CACHE_HOME") or Path(home or "/nonexistent") / ".cache")
    while not place.exists() and place != place.parent:
        place = place.parent
    return os.access(place, os.W_OK | os.X_OK)


class _Uv:
    """uv with its environment, its target directory and a callback for its output."""

    def __init__(self, executable: str, name: str, root: Path, progress: Progress) -> None:
        self._executable = executable
        self._name = name
        self._root = root
        self._progress = progress
        self._environment = _environment(os.environ, root.parent.parent / "cache/uv")

    def run(self, *arguments: str) -> None:
        """Run one uv command to its end and report its output lines."""
        command = [self._executable, *arguments]
        if arguments[0] == "venv":
            command.append(str(self._root))
        lines: deque[str] = deque(maxlen=10_000)
        with subprocess.Popen(
            command,
            cwd=self._root.parent,  # outside of any project of the caller's
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        ) as process:
            for line in process.stdout or ():
                lines.append(line.rstrip())
                self._progress(line.rstrip())
        if process.returncode != 0:
            raise self._failure(" ".join(arguments[:2]), process.returncode, lines)

    def _failure(self, step: str, code: int, lines: deque[str]) -> HostUnsupported:
        last = "; ".join([line.strip() for line in lines if line.strip()][-6:])
        return HostUnsupported(
            "template build",
            f"build template {self._name}: uv {step} ended with status {code}: {last}",
            remedy="check the package names and pins, and that the package index is reachable",
        )

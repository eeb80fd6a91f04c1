"""Base interpreter: the host's Python that a template is based on, and the mounts it needs.

It does not describe the template's environment. Called by `store` before every look-up, so the
usual case must not start a process: `/usr/bin/python3` is mostly the interpreter that runs this
code.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from cellwall.model.errors import HostUnsupported
from cellwall.model.template import Template

_SYSTEM_PYTHON = "/usr/bin/python3"

_QUESTION = """
import json, sys
print(json.dumps([sys.version_info[:3], sys.implementation.cache_tag, sys.base_prefix]))
"""


@dataclass(frozen=True, slots=True)
class BaseInterpreter:
    """One Python installation of the host."""

    executable: str
    """Real path, without symbolic links."""
    version: tuple[int, ...]
    cache_tag: str
    """Tag that bytecode and extension modules are bound to, such as `cpython-311`."""
    mounts: tuple[str, ...]
    """Directory trees outside `/usr` that it needs: its own prefix, or none."""

    def identity(self) -> dict[str, object]:
        """Return the properties that a built template is bound to.

        The patch level is not one of them: a security update of the distribution keeps the binary
        interface, and must not invalidate every template.
        """
        return {
            "executable": self.executable,
            "cache_tag": self.cache_tag,
            "minor": list(self.version[:2]),
            "machine": os.uname().machine,
        }


def base_interpreter(template: Template) -> BaseInterpreter:
    """Return the first interpreter of this host that satisfies the template."""
    tried = []
    for executable in _candidates():
        found = _describe(executable)
        if found is not None and template.accepts_python(found.version):
            return found
        tried.append(f"{executable} ({'.'.join(map(str, found.version)) if found else 'broken'})")
    raise HostUnsupported(
        "python",
        f"template {template.name}: no interpreter {template.python} among {', '.join(tried)}",
        remedy=f"install Python {template.python} from the distribution",
    )


def _candidates() -> Iterator[str]:
    """Yield the candidates, the distribution's first: these need only /usr, as in every jail."""
    seen = set()
    for path in _paths():
        real = os.path.realpath(path)
        if os.access(path, os.X_OK) and real not in seen:
            seen.add(real)
            yield real


def _paths() -> Iterator[str]:
    """Yield where candidates may be; mostly the first one will do, and no folder is listed."""
    yield _SYSTEM_PYTHON
    listed: list[str] = []
    with suppress(OSError):
        listed = os.listdir("/usr/bin")
    numbered = [name for name in listed if name.startswith("python3.") and name[8:].isdigit()]
    for name in sorted(numbered, key=lambda each: -int(each[8:])):
        yield f"/usr/bin/{name}"
    yield getattr(sys, "_base_executable", None) or sys.executable


@lru_cache(maxsize=32)
def _describe(executable: str) -> BaseInterpreter | None:
    own = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    if executable == own:
        tag = sys.implementation.cache_tag or ""
        return _interpreter(executable, sys.version_info[:3], tag, sys.base_prefix)
    import subprocess  # mostly it is this one

    try:
        answer = subprocess.run(
            [executable, "-I", "-S", "-c", _QUESTION],
            capture_output=True,
            check=True,
            timeout=20,
            env={},
        )
        version, cache_tag, prefix = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return _interpreter(executable, version, cache_tag, prefix)


def _interpreter(
    executable: str, version: tuple[int, ...], cache_tag: str, prefix: str
) -> BaseInterpreter:
    trees = {os.path.realpath(prefix), prefix}
    mounts = tuple(sorted(t for t in trees if t != "/usr" and not t.startswith("/usr/")))
    return BaseInterpreter(executable, tuple(version), cache_tag, mounts)

"""Install packages into a sandbox for its caller: uv, inside, with the package broker on.

A command like any other, under the sandbox's own limits. Where the sandbox's policy has no
packages, the broker is on for the time of this alone: that a caller installs something does not
allow its programs to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cellwall.engine.parts.network import PACKAGES_ENV
from cellwall.engine.parts.roots import check_packages_root
from cellwall.model.errors import SandboxBroken, UsageError
from cellwall.model.execution import Installation
from cellwall.model.outcome import Verdict

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.parts.network import Outside
    from cellwall.model.execution import CommandResult
    from cellwall.surface.shared.tasks import Tasks

INSTALL_S = 120.0
"""Wall time of an installation whose caller names none."""
_COMMAND = ("/bin/sh", "-c", 'exec "$VIRTUAL_ENV/bin/uv" pip install -- "$@"', "install")
_ENV = {
    **PACKAGES_ENV,
    "UV_NO_PROGRESS": "1",
    "UV_NO_CONFIG": "1",
    "UV_PYTHON_DOWNLOADS": "never",
    "NO_COLOR": "1",
}
_NO_SUCH_COMMAND = {126, 127}
_ADDED = re.compile(r"^ \+ (\S+==\S+)$", re.MULTILINE)
_CAUSE = re.compile(r"^\s*(?:error|cause|hint):\s*|^Using .*\n", re.MULTILINE)
"""What stands before uv's sentences, and its line about the interpreter."""
_MOST_SAID = 2000


def checked(packages: Iterable[object]) -> tuple[str, ...]:
    """Return plain requirements, such as `pandas>=2`; `UsageError` for anything else."""
    # Imported here: most programs install nothing.
    from cellwall.egress.packages.requirements import check_requirements

    found = check_requirements(packages)
    if not found:
        raise UsageError("packages: the list is empty", remedy='name one: ["requests"]')
    return found


async def install(
    live: ClaimedSandbox,
    outside: Outside,
    requirements: tuple[str, ...],
    tasks: Tasks,
    *,
    tenant: str,
    timeout_s: float | None = None,
) -> Installation:
    """Install `requirements`, which are checked. Raises `UsageError` with the installer's reason.

    Also HostUnsupported, if the sandbox's runtime cannot have a way out.
    """
    from cellwall.engine.parts.commands import Commands  # most programs install nothing

    check_packages_root(live.spec)
    async with outside.installing(live, tenant):
        result = await Commands(live, tasks).run(
            [*_COMMAND, *requirements], cwd="/", env=_ENV, timeout=timeout_s or INSTALL_S
        )
    if result.ok:
        return Installation(tuple(_ADDED.findall(result.stderr)))
    raise _failure(live, requirements, result)


def _failure(
    live: ClaimedSandbox, requirements: tuple[str, ...], result: CommandResult
) -> Exception:
    shown = ", ".join(requirements)
    step = f"install {shown if len(shown) < 200 else shown[:200] + '…'}"
    verdict = result.outcome.verdict
    if verdict is Verdict.SANDBOX_ERROR:
        return SandboxBroken(f"{step}: the sandbox ended", remedy="make another one")
    if result.exit_code in _NO_SUCH_COMMAND:
        name = live.spec.template.template.name
        return UsageError(
            f"{step}: the template {name!r} has no uv", remedy="add uv and pip to its packages"
        )
    said = " ".join(_CAUSE.sub("", result.stderr).split())[-_MOST_SAID:]
    if verdict is not Verdict.NONZERO_EXIT:
        return UsageError(
            f"{step}: it ended with verdict {verdict.value}: {said}",
            remedy="raise that limit of the sandbox, or give a longer timeout",
        )
    return UsageError(f"{step}: {said}", remedy="check names and versions, and what is allowed")

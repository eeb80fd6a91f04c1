"""The environment variables of a sandbox's inside, the same for every runtime that has a root.

Not what a caller adds (`SandboxSpec.env`). Made from nothing: no variable of the host's arrives.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cellwall.jail.plan import plan

if TYPE_CHECKING:
    from cellwall.model.template import BuiltTemplate

INTERPRETER = f"{plan.TEMPLATE_ROOT}/bin/python"


_NOWHERE = "https://no-network-in-this-sandbox.put-packages-into-a-template.invalid/"
"""The sentence stands where both pip and npm say what they could not reach."""

_WITHOUT_NETWORK = {
    "PIP_INDEX_URL": _NOWHERE,
    "PIP_RETRIES": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    # Else the system's pip advises to break it, which here can neither be done nor do harm.
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "npm_config_registry": _NOWHERE,
    "npm_config_fetch_retries": "0",
    "npm_config_audit": "false",
    "npm_config_update_notifier": "false",
}
"""Package managers fail at once, not after a minute of retries, for each runtime without network.

A template's own variables win, and so do a caller's: there may be an index inside.
"""


def inside_environment(template: BuiltTemplate, cpus: float) -> dict[str, str]:
    """Return the whole environment of a sandbox of `template` with that share of CPUs."""
    count = str(max(1, math.ceil(cpus)))
    environment = {
        "PATH": f"{plan.TEMPLATE_ROOT}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": plan.HOME,
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "VIRTUAL_ENV": plan.TEMPLATE_ROOT,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR"):
        environment[f"{name}_NUM_THREADS"] = count
    return {**environment, **_WITHOUT_NETWORK, **template.template.env}

"""The environment variables of a sandbox's inside, the same for every runtime that has a root.

Not what a caller adds (`SandboxSpec.env`). Made from nothing: no variable of the host's arrives.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cellwall.jail import plan

if TYPE_CHECKING:
    from cellwall.model.template import BuiltTemplate

INTERPRETER = f"{plan.TEMPLATE_ROOT}/bin/python"


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
    return {**environment, **template.template.env}

"""Environment: the variables inside a sandbox, the same for every runtime with a root of its own.

A caller's additions (`SandboxSpec.env`) are not part of it. It is made from nothing: no variable of
the host is passed on.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cellwall.jail.plan import plan

if TYPE_CHECKING:
    from cellwall.model.template import BuiltTemplate
    from cellwall.runtimes.roots import ImageRoot

IMAGE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs of an image are looked for if it does not say."""
INTERPRETER = f"{plan.TEMPLATE_ROOT}/bin/python"
OWN_PYTHON = (
    f"{plan.OWN_PYTHON}/loader",
    "--argv0",
    f"{plan.OWN_PYTHON}/bin/python3",
    "--library-path",
    f"{plan.OWN_PYTHON}/lib",
    f"{plan.OWN_PYTHON}/bin/python",
)
"""Program and first arguments that start the interpreter for images without one; those of the
interpreter follow. See `own_interpreter`."""


_NOWHERE = "https://packages-are-off-in-this-sandbox.ask-its-owner-to-install-them.invalid/"
"""Address with a sentence that pip, uv and npm print when they cannot reach it."""

_WITHOUT_NETWORK = {
    "PIP_INDEX_URL": _NOWHERE,
    "PIP_RETRIES": "0",
    "UV_DEFAULT_INDEX": _NOWHERE,
    "UV_HTTP_RETRIES": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    # Otherwise the system's pip suggests this option, which has no effect and no risk here.
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "npm_config_registry": _NOWHERE,
    "npm_config_fetch_retries": "0",
    "npm_config_audit": "false",
    "npm_config_update_notifier": "false",
}
"""Variables with which package managers fail at once, not after a minute of retries.

A sandbox with a way out has others in their place. A template's and a caller's own variables take
precedence: there may be an index inside.
"""


def inside_environment(template: BuiltTemplate, cpus: float) -> dict[str, str]:
    """Return the whole environment of a sandbox of `template` with that share of CPUs."""
    environment = {
        # What pip and uv install for the sandbox's user comes first, as its modules do.
        "PATH": f"{plan.HOME}/.local/bin:{plan.TEMPLATE_ROOT}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": plan.HOME,
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "VIRTUAL_ENV": plan.TEMPLATE_ROOT,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment.update(_threads(cpus))
    if template.template.fonts:
        environment["FONTCONFIG_FILE"] = f"{plan.TEMPLATE_ROOT}/etc/fonts.conf"
    return {**environment, **_WITHOUT_NETWORK, **template.template.env}


def image_environment(image: ImageRoot, cpus: float) -> dict[str, str]:
    """Return the whole environment of a sandbox whose root is an image.

    The image's own variables take precedence over all but the user's.
    """
    environment = {"PATH": IMAGE_PATH, "LANG": "C.UTF-8", "TERM": "dumb", **_threads(cpus)}
    user = {"HOME": image.home, "USER": image.user, "LOGNAME": image.user}
    return {**environment, **_WITHOUT_NETWORK, **image.environment, **user}


def _threads(cpus: float) -> dict[str, str]:
    """Return how many threads libraries of numbers start, by the names of their variables."""
    count = str(max(1, math.ceil(cpus)))
    return {f"{name}_NUM_THREADS": count for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}

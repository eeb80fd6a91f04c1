"""Rows of runtime `docker`, in units of the plain tool beside them: `docker run --rm`.

Called by `runner`. Invariant: the plain tool gets the daemon, the image and the network that ours
has, and alternates with ours sample by sample.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, cast

from cellwall.apps.timings import TimingError
from cellwall.jail.plan import plan
from cellwall_bench import bare
from cellwall_bench.latency import against

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellwall.engine.engine import Engine
    from cellwall.runtimes.docker.runtime import DockerRuntime
    from cellwall_bench.figures import Figure

CHOICE: dict[str, Any] = {"runtime": "docker", "isolation": "namespace", "template": "python"}


async def fresh(engine: Engine, key: str, samples: int) -> Figure:
    """Measure a program in a fresh container against an interpreter under `docker run --rm`."""
    plain = await _plain(engine)
    return await against(engine, key, CHOICE, samples, plain, "docker run --rm")


async def _plain(engine: Engine) -> Callable[[], float]:
    """Return what runs `docker run` once and gives the seconds to its first output."""
    program = shutil.which("docker")
    if program is None:
        raise TimingError("no `docker` to compare with; run: apt-get install docker.io")
    runtime = cast("DockerRuntime", await engine.runtime("namespace", "docker"))
    image = await runtime.images.ensure(await engine.template("python"))
    words = [program, f"--host={runtime.daemon.address}", "run", "--rm", "--network=none"]
    words += [f"--entrypoint={plan.TEMPLATE_ROOT}/bin/python", image, "-c", "print(1)"]
    return lambda: bare.once(words)

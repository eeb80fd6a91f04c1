"""Rows of runtime `gvisor`, in units of the plain tool beside them: `runsc run`.

Called by `runner`. Invariant: the plain tool gets the binary, the platform, the root and the flags
that ours has, and alternates with ours sample by sample.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cellwall.jail.inspect import host_facts
from cellwall.jail.plan import plan
from cellwall.model.limits import Limits
from cellwall.runtimes.gvisor import oci_bundle
from cellwall.runtimes.gvisor import root as gvisor_root
from cellwall_bench import bare
from cellwall_bench.latency import against

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellwall.engine.engine import Engine
    from cellwall.runtimes.gvisor.runtime import GvisorRuntime
    from cellwall_bench.figures import Figure

CHOICE: dict[str, Any] = {"runtime": "gvisor", "isolation": "kernel", "template": "python"}


async def fresh(engine: Engine, key: str, samples: int) -> Figure:
    """Measure a program in a fresh sandbox against an empty interpreter under `runsc run`."""
    with tempfile.TemporaryDirectory(prefix="cellwall-bench-") as folder:
        plain = await _plain(engine, Path(folder))
        return await against(engine, key, CHOICE, samples, plain, "runsc run")


async def _plain(engine: Engine, folder: Path) -> Callable[[], float]:
    """Return what runs `runsc run` once and gives the seconds to its first output."""
    runtime = cast("GvisorRuntime", await engine.runtime("kernel", "gvisor"))
    chosen = await runtime.choose()
    template = plan.Root("/usr", (), bare.FLOOR[0])
    root = gvisor_root.make_root(folder / "roots", host_facts.collect(), template)
    made = oci_bundle.configuration(root, Limits(), bare.FLOOR, str(folder))
    # The root as it lies on the disk: a work area is what our keeper adds.
    made["root"] = {"path": root.path, "readonly": True}
    made["mounts"] = [m for m in made["mounts"] if not m["source"].startswith(str(folder / "area"))]
    (folder / "config.json").write_text(json.dumps(made), encoding="utf-8")
    flags = oci_bundle.flags(chosen.binary.flags, chosen.platform, str(folder))
    words = [chosen.binary.path, *flags, "run", f"--bundle={folder}"]
    numbers = itertools.count()
    return lambda: bare.once([*words, f"plain{next(numbers)}"])

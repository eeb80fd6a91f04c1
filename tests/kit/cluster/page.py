"""The commands of docs/cluster.md, run as a reader would: in their order, in one shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from kit.servers import state_of

PAGE = Path(__file__).parents[3] / "docs" / "cluster.md"
NODES_LISTEN = "for n in 1 2; do until grep -q listening node-$n.out; do sleep 0.1; done; done"


def said_by(
    blocks: Iterable[tuple[str, str]], waits: Mapping[str, str], folder: Path, **environ: str
) -> dict[str, str]:
    """Run named blocks of commands in a folder; return what each printed.

    `waits`: commands after a block, for what a reader waits for at the screen.
    """
    for name in ("node-1", "node-2"):
        (folder / name).mkdir()
        templates = state_of(folder) / "templates"
        (folder / name / "templates").symlink_to(templates.resolve())
    steps = ["set -e", "trap 'kill $(jobs -p); wait' EXIT"]
    for name, text in blocks:
        steps += [f"echo '== {name}'", text, waits.get(name, "")]
    own = {key: text for key, text in os.environ.items() if not key.startswith("CELLWALL_")}
    own["PATH"] = f"{Path(sys.executable).parent}:{own['PATH']}"
    done = subprocess.run(
        ["timeout", "180", "bash", "-c", "\n".join(steps)],
        check=False,
        cwd=folder,
        env=own | environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return dict(re.findall(r"== (\w+)\n(.*?)(?===|\Z)", done.stdout, re.DOTALL))

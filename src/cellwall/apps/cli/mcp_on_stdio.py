"""What `cellwall mcp` does: sandboxes as tools of a desktop client, on stdin and stdout.

Not the protocol (`apps.mcp`). Called by `main` for usual words, else by `mcp`, which declares the
options and is the authority on them: a test compares both readings. Invariants: stdout carries the
protocol alone, so nothing here prints; and nothing is imported before the engine starts that the
engine can start without.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cellwall.apps.cli.console.own_streams import check_usable
from cellwall.model.errors import HostUnsupported
from cellwall.model.execution import DEFAULT_BUDGET_CHARS

if TYPE_CHECKING:
    from collections.abc import Sequence

_INTEGER = re.compile(r"[0-9]{1,9}")


def budget_in(words: Sequence[str]) -> int | None:
    """Return the budget that usual words of the command give; None: these words are not usual."""
    if not words:
        return DEFAULT_BUDGET_CHARS
    if len(words) == 2 and words[0] == "--budget" and _INTEGER.fullmatch(words[1]):
        return int(words[1])
    return None


def serve(
    budget: int,
    network: object = None,
    image: str | None = None,
    user: str | None = None,
    volumes: Sequence[str] | None = None,
) -> None:
    """Serve one client with answers of at most `budget` characters of text, until it goes.

    `network` is the network policy of its sandboxes; `image` their root, and `user` their user
    there; `volumes` what they see of this machine's volumes.
    """
    if find_spec("mcp") is None:
        raise HostUnsupported(
            "mcp", "mcp: the SDK is not installed", remedy="run: pip install 'cellwall[mcp]'"
        )
    from cellwall.model.for_model import check_budget

    check_budget(budget)
    check_usable(0)
    check_usable(1)
    from cellwall.apps.engines import make_engine
    from cellwall.apps.mcp.transport.stdio import run

    run(lambda: make_engine(pool=1, answers_first=True), budget, network, image, user, volumes)

"""What `cellwall mcp` does: sandboxes as tools of a desktop client, on stdin and stdout.

Not the protocol (`apps.mcp`). Called by `main` for usual words, else by `mcp`, which declares the
options and is the authority on them: a test compares both readings. Invariants: stdout carries the
protocol alone, so nothing here prints; and nothing is imported before the engine starts that the
engine can start without.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cellwall.apps.cli.console.own_streams import check_usable
from cellwall.apps.mcp.operators_choice import NOTHING_CHOSEN, OperatorsChoice
from cellwall.model.errors import CellwallError, HostUnsupported
from cellwall.model.execution import DEFAULT_BUDGET_CHARS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cellwall.engine.engine import Engine
    from cellwall.runtimes.base import AheadOfEngine

_INTEGER = re.compile(r"[0-9]{1,9}")


def budget_in(words: Sequence[str]) -> int | None:
    """Return the budget that usual words of the command give; None: these words are not usual."""
    if not words:
        return DEFAULT_BUDGET_CHARS
    if len(words) == 2 and words[0] == "--budget" and _INTEGER.fullmatch(words[1]):
        return int(words[1])
    return None


def serve(budget: int, chosen: OperatorsChoice = NOTHING_CHOSEN) -> None:
    """Serve one client with answers of at most `budget` characters of text, until it goes.

    `chosen` holds for each of its sandboxes.
    """
    if find_spec("mcp") is None:
        raise HostUnsupported(
            "mcp", "mcp: the SDK is not installed", remedy="run: pip install 'cellwall[mcp]'"
        )
    from cellwall.model.for_model import check_budget

    check_budget(budget)
    check_usable(0)
    check_usable(1)
    with _begun(chosen.image, chosen.volumes) as begun:  # before the engine is imported
        from cellwall.apps.engines import make_engine
        from cellwall.apps.mcp.transport.stdio import run

        def engine() -> Engine:
            return make_engine(pool=1, answers_first=True, head_start=begun)

        run(engine, budget, chosen)


@contextmanager
def _begun(image: str | None, volumes: Sequence[str] | None) -> Iterator[AheadOfEngine | None]:
    """Start the processes that the first sandbox comes from, of the template of usual calls."""
    from cellwall.apps.mcp.tools.preferred import preferred
    from cellwall.engine import head_start
    from cellwall.engine.templates.place import state_dir

    with head_start.begun({"image": image, "volumes": volumes}) as begun:
        if begun is not None:
            from cellwall.engine.templates.store import TemplateStore

            templates = TemplateStore(state_dir())
            try:
                template = preferred(lambda name: templates.find(name) is not None)
            except CellwallError:  # the first call meets it, too, and says so to its client
                begun.close()
            else:
                head_start.go_on(begun, {"template": template})
        yield begun

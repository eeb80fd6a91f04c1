"""Keep output that an answer for a model leaves out, in a file inside the sandbox.

For live sandboxes, of the library and of the SDK alike. The file is written through the guest,
under the sandbox's own confinement. Where it cannot be written (a full disk, a sandbox that has
ended), the answer only says how much was left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.model.errors import CellwallError
from cellwall.model.execution import DEFAULT_BUDGET_CHARS
from cellwall.model.for_model import command_left_out, left_out
from cellwall.model.ids import new_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.model.execution import CommandResult, Execution
    from cellwall.surface.sync.protocols import AnySandbox

DIRECTORY = "/home/user/.cellwall/output"
_KEPT = ("stdout", "stderr", "shown")


async def for_model(
    sandbox: AnySandbox,
    result: Execution | CommandResult,
    budget_chars: int = DEFAULT_BUDGET_CHARS,
) -> str:
    """Return `result.for_model(budget_chars)`, and keep in a file inside what that leaves out.

    `sandbox` is the sandbox in which `result` ran. The note on a cut names the file.
    """
    return result.for_model(budget_chars, await keep(sandbox, result, budget_chars))


async def keep(
    sandbox: AnySandbox, result: Execution | CommandResult, budget_chars: int
) -> dict[str, str]:
    """Write what `result.for_model(budget_chars)` leaves out into files; return their paths."""
    from cellwall.model.execution import Execution

    if isinstance(result, Execution):
        name, whole = result.id, left_out(result, budget_chars)
    else:
        name, whole = new_id(), command_left_out(result, budget_chars)
    return await _keep(sandbox, name, {part: whole[part] for part in _KEPT if part in whole})


async def _keep(sandbox: AnySandbox, name: str, whole: Mapping[str, str]) -> dict[str, str]:
    kept_in: dict[str, str] = {}
    for part, text in whole.items():
        if sandbox.status == "stopped":
            break
        path = f"{DIRECTORY}/{name}.{part}.txt"
        try:
            await sandbox.files.write(path, text.encode(errors="replace"))
        except CellwallError:
            continue  # the answer then only says how much is missing
        kept_in[part] = path
    return kept_in

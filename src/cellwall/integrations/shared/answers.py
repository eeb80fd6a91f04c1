"""Answers: the reply to a model's call; text, images, and whether it is an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellwall.model.for_model import error_for_model

if TYPE_CHECKING:
    from cellwall import CellwallError, Execution
    from cellwall.surface.sync.sandbox import SyncSandbox

_NEW = (
    "[note: the sandbox of the earlier calls has ended; this ran in a new one, "
    "without the variables and files from before]"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one call, before its conversion to a framework's form."""

    text: str
    images: tuple[str, ...] = ()
    """Base64 PNGs."""
    is_error: bool = False
    execution: Execution | None = None
    """The execution; None where nothing was run."""

    @classmethod
    def of(
        cls, execution: Execution, sandbox: SyncSandbox, budget_chars: int, is_new: bool
    ) -> Answer:
        """Return the text on `execution` in about `budget_chars` characters.

        `is_new` tells whether its sandbox has replaced one that died.
        """
        text = sandbox.for_model(execution, budget_chars)
        text = f"{_NEW}\n{text}" if is_new else text
        return cls(text, execution.images, not execution.ok, execution)

    @classmethod
    def refusal(cls, error: CellwallError) -> Answer:
        """Return the reply on a call that was not carried out."""
        return cls(error_for_model(error), is_error=True)

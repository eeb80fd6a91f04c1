"""One execution as its caller sees it: events while it runs, an `Execution` at the end.

Built by the engine; the same shapes come back from the library, the command line and, over the
wire, the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cellwall.model.limits import Limits
from cellwall.model.outcome import Outcome, Verdict

DEFAULT_BUDGET_CHARS = 20_000
"""What `for_model` may say: about 5,000 tokens, a small part of a conversation."""

EventKind = Literal[
    "stdout", "stderr", "display", "result", "error", "value", "tool_call", "gap", "end"
]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `seq` counts from 1 within its execution.

    `text` for stdout and stderr, `data` (a MIME bundle, text by type) for display and result,
    `error` for error, `value` for value (the function result), `outcome` for end. `tool_call` tells
    of a call to a tool of the caller's that is over: `data` has `call` (a number), `tool`,
    `decision`, `error`, `arguments_bytes`, `arguments_sha256`, `result_bytes`, `duration_ms`. A
    `gap` comes only over a connection that was lost for long: events up to this `seq` are no
    longer kept, and `value` says which (`after`, `next`, `lost`).
    """

    seq: int
    kind: EventKind
    text: str | None = None
    data: Mapping[str, Any] | None = None
    error: ExecutionError | None = None
    value: Any = None
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class ExecutionError:
    """An uncaught exception of the program, as its language reports it."""

    name: str
    value: str
    traceback: str
    line: int | None = None
    """Line of the program's own file, from 1, where its language tells it."""

    @property
    def size_chars(self) -> int:
        """Length of all its words."""
        return len(self.name) + len(self.value) + len(self.traceback)


@dataclass(frozen=True, slots=True)
class Compilation:
    """What the compiler did before the program ran; a stage with its own limits and outcome."""

    version: str
    """The compiler's own word, its first line."""
    is_cached: bool
    """Whether an earlier compile of the same source was taken; there is no outcome then."""
    stdout: str
    stderr: str
    outcome: Outcome | None
    limits: Limits


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended."""

    stdout: str
    stderr: str
    outcome: Outcome

    @property
    def exit_code(self) -> int | None:
        """The exit status, or None when a signal or a limit ended it."""
        return self.outcome.exit_code

    @property
    def status(self) -> int:
        """Its end as one number, as shells have it; see `Outcome.status`."""
        return self.outcome.status

    @property
    def ok(self) -> bool:
        """Report whether the verdict is `ok`."""
        return self.outcome.verdict is Verdict.OK

    def for_model(
        self,
        budget_chars: int = DEFAULT_BUDGET_CHARS,
        kept_in: Mapping[str, str] | None = None,
    ) -> str:
        """Say it to a language model, see `Execution.for_model`."""
        from cellwall.model.for_model import command_for_model

        return command_for_model(self, None, budget_chars, kept_in)


@dataclass(frozen=True, slots=True)
class Execution:
    """What one piece of code did."""

    id: str
    language: str
    stdout: str
    stderr: str
    outcome: Outcome
    limits: Limits
    """The limits that applied."""
    result: Any = None
    """JSON value of the variable `result` or of `main(**arguments)`."""
    results: tuple[Mapping[str, Any], ...] = ()
    """MIME bundles in order: displayed objects, figures, the last expression."""
    error: ExecutionError | None = None
    template: str = ""
    sandbox_id: str = ""
    started_at: float = 0.0
    """Seconds since the epoch, for people; durations use the monotonic clock."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files that were asked for with `collect` and `artifacts`."""
    compilation: Compilation | None = None
    """The compile stage, of languages that have one."""
    trust: str | None = None
    """The word of trust its sandbox was asked for with, if one was given."""

    @property
    def ok(self) -> bool:
        """Report whether the verdict is `ok`."""
        return self.outcome.verdict is Verdict.OK

    @property
    def verdict(self) -> Verdict:
        """The outcome's verdict."""
        return self.outcome.verdict

    @property
    def exit_code(self) -> int | None:
        """The outcome's exit code."""
        return self.outcome.exit_code

    @property
    def status(self) -> int:
        """Its end as one number, as shells have it; see `Outcome.status`."""
        return self.outcome.status

    @property
    def kept_bytes(self) -> int:
        """Size of everything that came back, roughly: what keeping it costs."""
        shown = sum(len(str(value)) for bundle in self.results for value in bundle.values())
        return len(self.stdout) + len(self.stderr) + shown + sum(map(len, self.files.values()))

    @property
    def text(self) -> str | None:
        """The plain text of the last result, as a notebook shows it."""
        for bundle in reversed(self.results):
            if "text/plain" in bundle:
                return str(bundle["text/plain"])
        return None

    @property
    def images(self) -> tuple[str, ...]:
        """Base64 PNGs among the results, in order."""
        return tuple(str(b["image/png"]) for b in self.results if "image/png" in b)

    def for_model(
        self,
        budget_chars: int = DEFAULT_BUDGET_CHARS,
        kept_in: Mapping[str, str] | None = None,
    ) -> str:
        """Say it to a language model in at most `budget_chars` characters.

        What was printed and shown, images described, tables as Markdown; then, unless it ended
        well, what happened, which limit it met and what to try next. What does not fit is cut from
        the middle, with a note of how much; `kept_in` names the files inside that hold the whole
        of `stdout`, `stderr` or `shown`. `UsageError` for a budget below 2,000.
        """
        from cellwall.model.for_model import execution_for_model

        return execution_for_model(self, budget_chars, kept_in)

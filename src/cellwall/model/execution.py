"""Execution: one execution as its caller sees it, with its events and its result.

Built by the engine; the library, the command line and, over the wire, the server return the same
shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cellwall.model.limits import Limits
from cellwall.model.outcome import Outcome, Verdict

DEFAULT_BUDGET_CHARS = 20_000
"""Maximum characters of a `for_model` text: about 5,000 tokens, a small part of a conversation."""

EventKind = Literal[
    "stdout", "stderr", "display", "result", "error", "value", "tool_call", "gap", "end"
]


@dataclass(frozen=True, slots=True)
class Event:
    """One event of an execution. `seq` counts from 1 within its execution.

    `text` is set for stdout and stderr, `data` (a MIME bundle, text by type) for display and
    result, `error` for error, `value` for value (the function result), `outcome` for end.
    `tool_call` reports a finished call to a tool of the caller: `data` has `call` (a number),
    `tool`, `decision`, `error`, `arguments_bytes`, `arguments_sha256`, `result_bytes`,
    `duration_ms`. A `gap` comes only after a connection was lost for long: events up to this `seq`
    are no longer kept, and `value` names them (`after`, `next`, `lost`). After a restart of the
    server `lost` is None, and `value` has `because`, and `unread_bytes` of the sandbox.
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
    """Line of the program's own file, from 1, if its language reports it."""

    @property
    def size_chars(self) -> int:
        """Total length of the texts."""
        return len(self.name) + len(self.value) + len(self.traceback)


@dataclass(frozen=True, slots=True)
class Compilation:
    """The compile before the program ran; a stage with its own limits and outcome."""

    version: str
    """First line of the compiler's version report."""
    is_cached: bool
    """Whether the product of an earlier compile was used; there is no outcome then."""
    stdout: str
    stderr: str
    outcome: Outcome | None
    limits: Limits


@dataclass(frozen=True, slots=True)
class Installation:
    """What an installation has added to a sandbox."""

    packages: tuple[str, ...]
    """Each as `name==version`, as the installer says; none if all was there."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of a command."""

    stdout: str
    stderr: str
    outcome: Outcome

    @property
    def exit_code(self) -> int | None:
        """Exit status, or None when a signal or a limit ended it."""
        return self.outcome.exit_code

    @property
    def status(self) -> int:
        """The end as one number, as shells report it; see `Outcome.status`."""
        return self.outcome.status

    @property
    def ok(self) -> bool:
        """Whether the verdict is `ok`."""
        return self.outcome.verdict is Verdict.OK

    def for_model(
        self,
        budget_chars: int = DEFAULT_BUDGET_CHARS,
        kept_in: Mapping[str, str] | None = None,
    ) -> str:
        """Describe the result to a language model, see `Execution.for_model`."""
        from cellwall.model.for_model import command_for_model

        return command_for_model(self, None, budget_chars, kept_in)


@dataclass(frozen=True, slots=True)
class Execution:
    """Result of one piece of code."""

    id: str
    language: str
    stdout: str
    stderr: str
    outcome: Outcome
    limits: Limits
    """Limits that applied."""
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
    """Files requested with `collect` and `artifacts`."""
    compilation: Compilation | None = None
    """Compile stage, of languages that have one."""
    trust: str | None = None
    """Trust word with which its sandbox was requested, if one was given."""

    @property
    def ok(self) -> bool:
        """Whether the verdict is `ok`."""
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
        """The end as one number, as shells report it; see `Outcome.status`."""
        return self.outcome.status

    @property
    def kept_bytes(self) -> int:
        """Approximate size in bytes of everything returned: the cost of keeping it."""
        shown = sum(len(str(value)) for bundle in self.results for value in bundle.values())
        return len(self.stdout) + len(self.stderr) + shown + sum(map(len, self.files.values()))

    @property
    def text(self) -> str | None:
        """Plain text of the last result, as a notebook shows it."""
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
        """Describe it to a language model in at most `budget_chars` characters.

        The text has the output and the displays, with images described and tables as Markdown;
        then, unless it ended well, what happened, which limit was reached and what to try next.
        Parts that do not fit are cut from the middle, with a note of how much; `kept_in` names the
        files inside that hold the whole of `stdout`, `stderr` or `shown`. `UsageError` for a budget
        below 2,000.
        """
        from cellwall.model.for_model import execution_for_model

        return execution_for_model(self, budget_chars, kept_in)

"""Code tool: a model's calls, run one after the other in one sandbox of their own.

The base of the tools for OpenAI, Anthropic, LangChain and LlamaIndex, and usable by itself with
anything else. A mistake of the model becomes text for the model; a failure of the machine or the
surrounding program is raised.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import cellwall
from cellwall.integrations.shared.answers import Answer
from cellwall.integrations.shared.calls import BadCall, Definition
from cellwall.integrations.shared.closing import Closing
from cellwall.integrations.shared.keeper import Files, Keeper
from cellwall.model.execution import DEFAULT_BUDGET_CHARS

if TYPE_CHECKING:
    from cellwall.model.snapshot import Threads
    from cellwall.surface.sync.sandbox import SyncSandbox

_NEXT = "call again: the next call gets a new sandbox, without the variables and files from before"


class CodeTool(Closing):
    """A tool that runs code: `with CodeTool("data", timeout=20) as tool: tool.call(arguments)`.

    The sandbox is created on the first call and lives until `close`. If it dies before that (a
    limit, its idle time), the next call gets a new one, and the model is told.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of the caller's
        self,
        template: str = "python",
        *,
        sandbox: SyncSandbox | None = None,
        client: Any = None,  # noqa: ANN401 - what `cellwall.connect` returned
        timeout: float | None = None,
        languages: Sequence[str] = ("python",),
        files: Files | None = None,
        name: str = "run_code",
        description: str | None = None,
        budget_chars: int = DEFAULT_BUDGET_CHARS,
        **options: Any,  # noqa: ANN401 - of `Sandbox`
    ) -> None:
        """Start nothing yet.

        With `client` the sandbox is a server's; with `sandbox` it is the caller's own, who also
        closes it. `timeout` is for each call, in seconds. Of `languages`, those that keep state do
        so as Python does; the others run as programs beside it. `files` are written into each new
        sandbox. `budget_chars` is the approximate length of an answer's text. `options` are those
        of `Sandbox`: `limits`, `isolation`, `volumes` …; or `snapshot`, of which each is made.
        """
        self.definition = Definition.of(name, languages, description)
        self.timeout = timeout
        self.budget_chars = budget_chars
        self._keeper = Keeper(sandbox, client=client, files=files, template=template, **options)

    @property
    def name(self) -> str:
        """Name of the tool for the model."""
        return self.definition.name

    @property
    def description(self) -> str:
        """Description of the tool for the model."""
        return self.definition.description

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON schema of its arguments."""
        return self.definition.parameters

    @property
    def sandbox(self) -> SyncSandbox:
        """The sandbox that the next call runs in, created if necessary; mainly for its files."""
        return self._keeper.take()[0]

    def call(self, arguments: object) -> Answer:
        """Run the call in `arguments` (an object, or its JSON text); return the answer."""
        try:
            wanted = self.definition.read(arguments)
            sandbox, is_new = self._keeper.take()
            execution = sandbox.run(wanted.code, wanted.language, timeout=self.timeout)
            answer = Answer.of(execution, sandbox, self.budget_chars, is_new)
            self._keeper.told(sandbox)
            return answer
        except cellwall.CellwallError as error:
            return self._refusal(error)

    async def acall(self, arguments: object) -> Answer:
        """Do what `call` does for a caller on an event loop; cancelling it ends the run."""
        try:
            wanted = self.definition.read(arguments)
            sandbox, is_new = await asyncio.to_thread(self._keeper.take)
            execution = await sandbox.arun(wanted.code, wanted.language, timeout=self.timeout)
            answer = await asyncio.to_thread(
                Answer.of, execution, sandbox, self.budget_chars, is_new
            )
            self._keeper.told(sandbox)
            return answer
        except cellwall.CellwallError as error:
            return self._refusal(error)

    def fork(
        self, count: int = 1, *, reseed: bool = True, threads: Threads = "refuse"
    ) -> list[Self]:
        """Return copies of the tool, each with a copy of its sandbox as it is now.

        For conversations that go on in several ways. Close each. Raises as `Sandbox.fork`, also if
        one of the copies failed, and then makes none.
        """
        made = []
        for keeper in self._keeper.fork(count, reseed=reseed, threads=threads):
            made.append(copy.copy(self))
            made[-1]._keeper = keeper
        return made

    def no_such_tool(self, name: object) -> Answer:
        """Return the answer to a call of a tool of another name."""
        return Answer.refusal(self.definition.no_such_tool(name))

    def _refusal(self, error: cellwall.CellwallError) -> Answer:
        """Return the model's answer for `error`, or raise an error that a model cannot correct."""
        if isinstance(error, cellwall.SandboxUnavailable) and self._keeper.is_own:
            return Answer.refusal(type(error)(error.message, remedy=_NEXT))
        if isinstance(error, BadCall | cellwall.Conflict):
            return Answer.refusal(error)
        raise error

    def close(self) -> None:
        """Destroy its sandbox, if it created it; idempotent."""
        self._keeper.close()

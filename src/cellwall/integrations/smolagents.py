"""An executor for smolagents' `CodeAgent`: its code runs in a sandbox, not in this process.

Needs `smolagents`; `pip install 'cellwall[smolagents]'`. The agent's tools run in this process, as
host tools (`cellwall.Tool`), with its network and keys. Tools whose arguments or results JSON
cannot carry travel into the sandbox as source, as with smolagents' own remote executors. Results
are read as JSON and text, never unpickled, and never made an object of a class that the sandbox
names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import cellwall
from cellwall.integrations.shared.closing import Closing
from cellwall.integrations.shared.extras import missing
from cellwall.integrations.shared.keeper import Files, Keeper
from cellwall.model.execution import DEFAULT_BUDGET_CHARS

try:
    from smolagents.local_python_executor import CodeOutput, PythonExecutor
    from smolagents.tools import Tool, get_tools_definition_code
except ModuleNotFoundError as error:
    raise missing("smolagents", error) from None

if TYPE_CHECKING:
    from cellwall.surface.sync.sandbox import SyncSandbox

_CARRIED = frozenset({"string", "boolean", "integer", "number", "array", "object", "any", "null"})
"""Types of smolagents that JSON has."""
_TOOL_S = 300.0
_ANSWER = "application/vnd.cellwall.final-answer+json"
_FINAL_ANSWER = f"""
class CellwallFinalAnswer(BaseException):
    'Ends the code that calls `final_answer`.'

    def __init__(self, text):
        super().__init__()
        self.text = text

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {{"{_ANSWER}": self.text}}

def final_answer(answer):
    import json
    try:
        text = json.dumps(answer, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps(str(answer))
    if len(text) > 900_000:
        raise ValueError(f"final_answer: {{len(text)}} characters of JSON, more than 900000")
    made = CellwallFinalAnswer(text)
    display(made)
    raise made
"""
"""Source of `final_answer`. It uses a display, which comes back whole up to a mebibyte; the text of
an exception is cut much earlier."""


class CodeFailed(RuntimeError):
    """The agent's code did not end well; the text is for its model."""


class CellwallExecutor(Closing, PythonExecutor):  # type: ignore[misc] # smolagents has no types
    """`CodeAgent(tools=[], model=model, executor=CellwallExecutor())`; `agent.cleanup()` closes it.

    One sandbox for as long as the agent lives; if it dies before that (a limit, its idle time), the
    agent is told, and the next code runs in a new one that has the agent's tools again.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of the caller's
        self,
        template: str = "python",
        *,
        sandbox: SyncSandbox | None = None,
        client: Any = None,  # noqa: ANN401 - what `cellwall.connect` returned
        timeout: float | None = None,
        files: Files | None = None,
        budget_chars: int = DEFAULT_BUDGET_CHARS,
        tools_inside: bool = False,
        **options: Any,  # noqa: ANN401 - of `Sandbox`
    ) -> None:
        """Start nothing yet; the arguments are those of `code_tool.CodeTool`.

        `tools_inside`: all tools of the agent travel into the sandbox and run there.
        """
        self._tools_inside = tools_inside
        self._offered: dict[str, Any] = {}
        self.timeout = timeout
        self.budget_chars = budget_chars
        self.execution: cellwall.Execution | None = None
        """Execution of the agent's last code; its `images` are the charts."""
        self._keeper = Keeper(sandbox, client=client, files=files, template=template, **options)
        self._setup = {"tools": _FINAL_ANSWER, "variables": ""}
        self._is_bare = False
        """Whether the interpreter in which the tools were set up has ended while its sandbox
        lives."""

    @property
    def sandbox(self) -> SyncSandbox:
        """The sandbox that the next code runs in, created if necessary; mainly for its files."""
        return self._keeper.take()[0]

    def send_tools(self, tools: Mapping[str, Tool]) -> None:
        """Make the agent's tools available inside. `UsageError` for managed agents."""
        wanted = {name: tool for name, tool in tools.items() if name != "final_answer"}
        for name, tool in wanted.items():
            if not isinstance(tool, Tool):
                raise cellwall.UsageError(
                    f"tool {name!r}: a managed agent cannot run in a sandbox",
                    remedy="give the agent tools only",
                )
        here = {
            name: _host_tool(tool)
            for name, tool in wanted.items()
            if not self._tools_inside and _is_carried(tool)
        }
        self._offered = {"tools": cellwall.ToolBox(here)} if here else {}
        source = f"from tools import {', '.join(here)}\n" if here else ""
        travelling = {name: tool for name, tool in wanted.items() if name not in here}
        if travelling:
            source += get_tools_definition_code(travelling)
        self._set_up("tools", source + _FINAL_ANSWER)

    def send_variables(self, variables: Mapping[str, Any]) -> None:
        """Set variables inside. `UsageError` for values that are not JSON."""
        try:
            text = json.dumps(dict(variables), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise cellwall.UsageError(
                f"variables: not JSON: {error}", remedy="write them to files of the sandbox"
            ) from None
        self._set_up("variables", f"import json as _json\nglobals().update(_json.loads({text!r}))")

    def _set_up(self, what: str, source: str) -> None:
        self._setup[what] = source
        sandbox, is_new = self._keeper.take()
        is_whole = is_new or self._is_bare
        self._prepare_all(sandbox, self._setup.values() if is_whole else [source])

    def _prepare_all(self, sandbox: SyncSandbox, parts: Iterable[str]) -> None:
        for part in parts:
            self._prepare(sandbox, part)
        self._keeper.told(sandbox)
        self._is_bare = False

    def _prepare(self, sandbox: SyncSandbox, source: str) -> None:
        if source:
            execution = sandbox.run(source, **self._offered)
            if not execution.ok:
                raise CodeFailed(f"setting up: {execution.for_model(self.budget_chars)}")

    def __call__(self, code_action: str) -> CodeOutput:
        """Run the agent's code. Raises `CodeFailed`, which the agent shows its model."""
        sandbox, is_new = self._keeper.take()
        if is_new or self._is_bare:
            self._prepare_all(sandbox, self._setup.values())
        self.execution = execution = sandbox.run(code_action, timeout=self.timeout, **self._offered)
        self._is_bare = (execution.exit_code, execution.outcome.signal) != (None, None)
        if execution.error is not None and execution.error.name == "CellwallFinalAnswer":
            return CodeOutput(_final_answer(execution), execution.stdout, True)
        logs = sandbox.for_model(execution, self.budget_chars)
        if not execution.ok:
            raise CodeFailed(logs)
        return CodeOutput(execution.text, logs, False)

    def close(self) -> None:
        """Destroy its sandbox, if it created it; idempotent."""
        self._keeper.close()

    def cleanup(self) -> None:
        """Close the executor; `CodeAgent.cleanup` calls this."""
        self.close()


def _is_carried(tool: Tool) -> bool:
    """Report whether the tool's arguments and result are JSON."""
    kinds = [tool.output_type, *(each["type"] for each in tool.inputs.values())]
    return all(_CARRIED.issuperset([kind] if isinstance(kind, str) else kind) for kind in kinds)


def _host_tool(tool: Tool) -> cellwall.Tool:
    properties, required = {}, []
    for name, described in tool.inputs.items():
        properties[name] = {"description": described.get("description", "")}
        given = described["type"]
        kinds = [given] if isinstance(given, str) else list(given)
        if described.get("nullable"):
            kinds.append("null")
        else:
            required.append(name)
        if "any" not in kinds:
            properties[name]["type"] = kinds[0] if len(kinds) == 1 else kinds
    schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return cellwall.Tool(tool, schema, timeout_s=_TOOL_S, description=tool.description)


def _final_answer(execution: cellwall.Execution) -> Any:  # noqa: ANN401 - any JSON
    for bundle in reversed(execution.results):
        if _ANSWER in bundle:
            try:
                return json.loads(str(bundle[_ANSWER]))
            except (ValueError, RecursionError):
                break
    raise CodeFailed("final_answer: what came out of the sandbox is not an answer; call it again")

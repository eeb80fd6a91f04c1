"""An interpreter for DSPy: `dspy.RLM(…, interpreter_factory=CellwallInterpreter)`.

Needs `dspy`; `pip install 'cellwall[dspy]'`. Also for ProgramOfThought, CodeAct and Flex, and for
all of them with `dspy.configure(interpreter_factory=…)`. What a module registers as a tool runs in
this process; the code runs in a sandbox. The invariant: a session whose sandbox has ended is never
continued in another one.
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cellwall
from cellwall.integrations.shared.closing import Closing
from cellwall.integrations.shared.extras import missing
from cellwall.integrations.shared.keeper import Files, Keeper

try:
    from dspy.primitives.code_interpreter import (
        CodeExecutionError,
        CodeInterpreterError,
        FinalOutput,
    )
except ModuleNotFoundError as error:
    raise missing("dspy", error) from None

if TYPE_CHECKING:
    from cellwall.surface.sync.sandbox import SyncSandbox

Tools = dict[str, Callable[..., Any]]
_SUBMIT = "_cellwall_submit"
_VARIABLES = "/tmp/.dspy-variables.json"  # noqa: S108 - inside the sandbox
_PRELUDE = f"""
class _CellwallSubmitted(BaseException):
    pass

def SUBMIT(*args, **kwargs):
    import tools
    tools.{_SUBMIT}(args=list(args), kwargs=kwargs)
    raise _CellwallSubmitted()
"""
_TOOLS = """
def _cellwall_tool(name):
    def call(*args, **kwargs):
        import tools
        return getattr(tools, name)(*args, **kwargs)
    call.__name__ = name
    return call

for _name in {names!r}:
    globals()[_name] = _cellwall_tool(_name)
del _name, _cellwall_tool
"""
_BIND = f"""
import json as _json, os as _os
with open({_VARIABLES!r}, encoding="utf-8") as _file:
    globals().update(_json.load(_file))
_os.unlink({_VARIABLES!r})
del _json, _os, _file
"""


class CellwallInterpreter(Closing):
    """One session in one sandbox; DSPy makes one for each call of a module."""

    execution_instructions = (
        "Code runs as Python in a persistent session of a sandbox without network. Variables, "
        "imports and functions persist. Host tools and SUBMIT are global functions."
    )

    def __init__(  # noqa: PLR0913 - each is a choice of the caller's
        self,
        tools: Tools | None = None,
        output_fields: list[dict[str, Any]] | None = None,
        *,
        template: str = "python",
        sandbox: SyncSandbox | None = None,
        client: Any = None,  # noqa: ANN401 - what `cellwall.connect` returned
        timeout: float | None = None,
        files: Files | None = None,
        **options: Any,  # noqa: ANN401 - of `Sandbox`
    ) -> None:
        """Start nothing yet.

        `output_fields` are those of `SUBMIT`, each with a `name`. `timeout`: seconds of each piece
        of code. The other arguments are those of `code_tool.CodeTool`; `limits` default to
        `Limits.agent()`.
        """
        self.tools: Tools = dict(tools or {})
        """Host functions by the names under which code calls them; DSPy adds its own."""
        self.output_fields = output_fields
        self.timeout = timeout
        self._keeper = Keeper.for_agent(
            sandbox, client=client, files=files, template=template, **options
        )
        self._sandbox: SyncSandbox | None = None
        self._submitted: list[dict[str, Any]] = []
        self._named: set[str] = set()
        self._has_ended = False

    def start(self) -> None:
        """Start the session, unless it has been. Raises CodeInterpreterError."""
        if self._has_ended:
            raise CodeInterpreterError("cellwall: this session was shut down; make a new one")
        if self._sandbox is not None:
            return
        try:
            sandbox = self._keeper.take()[0]
            done = sandbox.run(_PRELUDE)
        except cellwall.CellwallError as error:
            raise CodeInterpreterError(str(error)) from error
        if done.verdict is not cellwall.Verdict.OK:
            raise CodeInterpreterError(_said(done))
        self._sandbox = sandbox

    def execute(self, code: str, variables: dict[str, Any] | None = None) -> Any:  # noqa: ANN401 - theirs
        """Run code with `variables` bound; return its output, or what it gave to `SUBMIT`.

        Output is what was printed and then the last expression's value, as text; None if there was
        none. Raises SyntaxError, CodeExecutionError for a failure of the code, CodeInterpreterError
        if the session is lost.
        """
        self.start()
        if self._sandbox is None:
            raise CodeInterpreterError("cellwall: there is no session")
        self._submitted.clear()
        try:
            self._name_tools(self._sandbox)
            self._bind(self._sandbox, variables or {})
            tools = {**self.tools, _SUBMIT: self._submit}
            done = self._sandbox.run(code, tools=tools, timeout=self.timeout)
        except cellwall.CellwallError as error:
            self._lose(error)
            raise CodeInterpreterError(str(error)) from error
        return self._answer(done)

    def shutdown(self) -> None:
        """End the session, and its sandbox unless it is the caller's; idempotent."""
        self._has_ended = True
        self._keeper.close()

    def close(self) -> None:
        """Do what `shutdown` does."""
        self.shutdown()

    def _name_tools(self, sandbox: SyncSandbox) -> None:
        """Have global functions for tools; DSPy adds some after the start."""
        new = sorted(self.tools.keys() - self._named)
        if not new:
            return
        wrong = [name for name in new if not _is_name(name) or name == "SUBMIT"]
        if wrong:
            raise CodeInterpreterError(f"cellwall: no names for tools: {wrong!r}")
        done = sandbox.run(_TOOLS.format(names=new))
        if done.verdict is not cellwall.Verdict.OK:
            raise CodeInterpreterError(f"cellwall: name tools: {_said(done)}")
        self._named.update(new)

    def _bind(self, sandbox: SyncSandbox, variables: dict[str, Any]) -> None:
        if not variables:
            return
        reserved = {"SUBMIT", *self.tools}
        wrong = [name for name in variables if not _is_name(name) or name in reserved]
        if wrong:
            raise CodeInterpreterError(f"cellwall: no names for variables: {wrong!r}")
        try:
            text = json.dumps(variables, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise CodeInterpreterError(f"cellwall: variables are not JSON: {error}") from error
        sandbox.files.write(_VARIABLES, text)
        done = sandbox.run(_BIND)
        if done.verdict is not cellwall.Verdict.OK:
            raise CodeInterpreterError(f"cellwall: bind variables: {_said(done)}")

    def _submit(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Take what code gave to `SUBMIT`. Raises ToolError, which the code sees."""
        self._submitted.append(_fields(self.output_fields, args, kwargs))

    def _answer(self, done: cellwall.Execution) -> Any:  # noqa: ANN401 - theirs
        if self._submitted:
            return FinalOutput(self._submitted[-1])
        if done.error is not None and done.error.name == "SyntaxError":
            raise SyntaxError(done.error.value)
        if done.verdict is cellwall.Verdict.SANDBOX_ERROR:
            self._has_ended = True
            raise CodeInterpreterError(_said(done))
        if done.verdict is not cellwall.Verdict.OK:
            raise CodeExecutionError(_said(done))
        parts = [done.stdout.rstrip("\n"), done.text or ""]
        return "\n".join(part for part in parts if part) or None

    def _lose(self, error: cellwall.CellwallError) -> None:
        if isinstance(error, cellwall.SandboxUnavailable):
            self._has_ended = True


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)


def _fields(
    fields: list[dict[str, Any]] | None, args: list[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    if fields is None:
        if len(args) != 1 or kwargs:
            raise cellwall.ToolError("SUBMIT takes one value")
        return {"output": args[0]}
    names = [field["name"] for field in fields]
    if args and kwargs:
        raise cellwall.ToolError("SUBMIT takes values by position or by name, not both")
    values = dict(zip(names, args, strict=False)) if args else kwargs
    if values.keys() != set(names) or len(args) > len(names):
        raise cellwall.ToolError(f"SUBMIT takes {', '.join(names)}")
    return values


def _said(done: cellwall.Execution) -> str:
    if done.error is not None:
        return f"{done.error.name}: {done.error.value}"
    return "; ".join((done.verdict.value, *done.outcome.notes))

"""A code executor for Google's ADK: `LlmAgent(code_executor=CellwallCodeExecutor(), …)`.

Each session of an agent has a sandbox of its own whose variables and files stay, and each of a
model's code blocks is a cell in it. The invariant: sessions share nothing, and at most
`most_sessions` have a sandbox.
"""

from __future__ import annotations

import base64
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import cellwall
from cellwall.integrations.shared.closing import Closing
from cellwall.integrations.shared.extras import missing
from cellwall.integrations.shared.keeper import Keeper

try:
    from google.adk.code_executors.base_code_executor import BaseCodeExecutor
    from google.adk.code_executors.code_execution_utils import (
        CodeExecutionInput,
        CodeExecutionResult,
        File,
    )
    from pydantic import Field, PrivateAttr
except ModuleNotFoundError as error:
    raise missing("google-adk", error) from None

if TYPE_CHECKING:
    from google.adk.agents.invocation_context import InvocationContext

    from cellwall.surface.sync.sandbox import SyncSandbox

_ENDED = "The sandbox of the earlier code has ended: its variables and files are gone.\n"


class CellwallCodeExecutor(Closing, BaseCodeExecutor):
    """Sandboxes of an agent's sessions; `close` destroys them."""

    stateful: bool = True
    template: str = "python"
    client: Any = None
    """What `cellwall.connect` returned; None: sandboxes of this process."""
    limits: dict[str, int | float] = Field(default_factory=dict)
    """Differences from `Limits.agent()`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of `Sandbox`, such as `network`."""
    most_sessions: int = 16
    """Sessions with a sandbox; that of the one that was used least recently is destroyed."""
    timeout_seconds: int | None = 300

    _keepers: OrderedDict[str, Keeper] = PrivateAttr(default_factory=OrderedDict)
    _lock: threading.Lock = PrivateAttr(default_factory=threading.Lock)

    def execute_code(
        self,
        invocation_context: InvocationContext,
        code_execution_input: CodeExecutionInput,
    ) -> CodeExecutionResult:
        """Run a code block in the session's sandbox; return its output and its images."""
        asked = code_execution_input
        keeper = self._keeper_of(asked.execution_id or invocation_context.session.id)
        sandbox, is_new = keeper.take()
        if is_new:
            keeper.told(sandbox)
        for each in asked.input_files:
            sandbox.files.write(each.name, _content(each))
        done = sandbox.run(asked.code, timeout=self.timeout_seconds)
        result = _result(done)
        if is_new:
            result.stderr = _ENDED + result.stderr
        return result

    def sandbox_of(self, session_id: str) -> SyncSandbox:
        """Return the sandbox of a session, created if necessary."""
        return self._keeper_of(session_id).take()[0]

    def close(self) -> None:
        """Destroy every sandbox; idempotent."""
        with self._lock:
            keepers, self._keepers = list(self._keepers.values()), OrderedDict()
        for each in keepers:
            each.close()

    def _keeper_of(self, session_id: str) -> Keeper:
        oldest = None
        with self._lock:
            keeper = self._keepers.pop(session_id, None) or self._new()
            self._keepers[session_id] = keeper
            if len(self._keepers) > self.most_sessions:
                oldest = self._keepers.popitem(last=False)[1]
        if oldest is not None:
            oldest.close()
        return keeper

    def _new(self) -> Keeper:
        limits = cellwall.Limits.agent().with_changes(self.limits)
        return Keeper(client=self.client, template=self.template, limits=limits, **self.options)


def _content(file: File) -> bytes:
    """Return an input file's bytes; ADK gives those of a model's request in base64."""
    if isinstance(file.content, str):
        return file.content.encode()
    content = bytes(file.content)
    try:
        plain = base64.b64decode(content, validate=True)
    except ValueError:
        return content
    return plain if base64.b64encode(plain) == content else content


def _result(done: cellwall.Execution) -> CodeExecutionResult:
    text = done.text or ""
    stderr = done.stderr
    if not done.outcome.is_its_own:
        stderr += f"[{'; '.join((done.verdict.value, *done.outcome.notes))}]\n"
    images = [
        File(f"image-{number}.png", bundle["image/png"], "image/png")
        for number, bundle in enumerate(done.results, 1)
        if isinstance(bundle.get("image/png"), str)
    ]
    return CodeExecutionResult(
        stdout=done.stdout + (f"{text}\n" if text else ""),
        stderr=stderr,
        output_files=images,
        exit_code=done.outcome.exit_code,
    )

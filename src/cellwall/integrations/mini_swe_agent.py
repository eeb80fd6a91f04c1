"""An environment for mini-swe-agent: `DefaultAgent(model, CellwallEnvironment(template="data"))`.

Needs `mini-swe-agent`; `pip install 'cellwall[mini-swe-agent]'`. Each of the agent's commands is a
shell of its own, as it expects; files stay. The invariant: nothing of this process's environment
is told to the model or given to a command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cellwall
from cellwall.integrations.shared.closing import Closing
from cellwall.integrations.shared.extras import missing
from cellwall.integrations.shared.keeper import Keeper

try:
    from minisweagent.exceptions import Submitted
    from minisweagent.utils.serialize import recursive_merge
    from pydantic import BaseModel, Field
except ModuleNotFoundError as error:
    raise missing("mini-swe-agent", error) from None

if TYPE_CHECKING:
    from cellwall.surface.sync.sandbox import SyncSandbox

_DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""First line of the output with which an agent hands in its work."""
_TIMED_OUT = 124
"""What timeout(1) of coreutils says."""
_UNAME = "uname -s; uname -r; uname -v; uname -m"
_UNAME_NAMES = ("system", "release", "version", "machine")


class CellwallConfig(BaseModel):
    """What a configuration file may say below `environment`."""

    template: str = "python"
    image: str | None = None
    """Container image whose tree is the root, such as `python:3.12`."""
    user: str | None = None
    """User of the image."""
    cwd: str = ""
    """Folder in which commands begin; by default the sandbox's home."""
    env: dict[str, str] = Field(default_factory=dict)
    timeout: int = 30
    """Seconds of one command."""
    network: list[str] | None = None
    """Names that may be connected to; by default none."""
    limits: dict[str, int | float] = Field(default_factory=dict)
    """Differences from `Limits.agent()`."""


class CellwallEnvironment(Closing):
    """One sandbox of one run, created by its first command."""

    def __init__(
        self,
        *,
        sandbox: SyncSandbox | None = None,
        client: Any = None,  # noqa: ANN401 - what `cellwall.connect` returned
        config_class: type = CellwallConfig,
        **options: Any,  # noqa: ANN401 - of the configuration
    ) -> None:
        """Start nothing yet; `options` are the fields of `CellwallConfig`."""
        self.config = config_class(**options)
        config: CellwallConfig = self.config
        root: dict[str, Any] = {"template": config.template}
        if config.image is not None:
            root = {"image": config.image, "user": config.user}
        limits = cellwall.Limits.agent().with_changes(config.limits)
        self._keeper = Keeper(sandbox, client=client, network=config.network, limits=limits, **root)
        self._names: dict[str, str] | None = None

    def execute(
        self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None
    ) -> dict[str, Any]:
        """Run a command; return its output and status. Raises Submitted when the task is done."""
        output = self._execute(action.get("command", ""), cwd, timeout)
        first, _, rest = output["output"].lstrip().partition("\n")
        if first.strip() == _DONE and output["returncode"] == 0:
            extra = {"exit_status": "Submitted", "submission": rest}
            raise Submitted({"role": "exit", "content": rest, "extra": extra})
        return output

    def _execute(self, command: str, cwd: str, timeout: int | None) -> dict[str, Any]:
        sandbox, is_new = self._keeper.take()
        if is_new:
            self._keeper.told(sandbox)
            return _failed("the sandbox of the earlier commands has ended, and its files are gone")
        try:
            done = sandbox.commands.run(
                command,
                cwd=cwd or self.config.cwd or None,
                env=self.config.env,
                timeout=timeout or self.config.timeout,
                merge_stderr=True,
            )
        except cellwall.CellwallError as error:
            return _failed(str(error), type(error).__name__)
        return _output(done)

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401 - theirs
        """Return the configuration and what uname(1) says inside; nothing of this process."""
        if self._names is None:
            lines = self._keeper.take()[0].commands.run(_UNAME).stdout.splitlines()
            self._names = dict(zip(_UNAME_NAMES, lines, strict=False))
        merged: dict[str, Any] = recursive_merge(self.config.model_dump(), self._names, kwargs)
        return merged

    def serialize(self) -> dict[str, Any]:
        """Return what a trajectory says of the environment."""
        kind = f"{type(self).__module__}.{type(self).__name__}"
        config = {"environment": self.config.model_dump(mode="json"), "environment_type": kind}
        return {"info": {"config": config}}

    def close(self) -> None:
        """Destroy its sandbox, if it created it; idempotent."""
        self._keeper.close()


def _output(done: cellwall.CommandResult) -> dict[str, Any]:
    is_late = done.outcome.verdict is cellwall.Verdict.WALL_TIME
    why = "" if done.outcome.is_its_own else "; ".join(done.outcome.notes)
    status = _TIMED_OUT if is_late else done.status
    return {"output": done.stdout, "returncode": status, "exception_info": why}


def _failed(why: str, kind: str = "SandboxUnavailable") -> dict[str, Any]:
    extra = {"exception_type": kind, "exception": why}
    return {"output": "", "returncode": -1, "exception_info": why, "extra": extra}

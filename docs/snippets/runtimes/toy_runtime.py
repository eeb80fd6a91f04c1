"""A runtime of one's own: plain processes at the lowest priority, by way of nice(1)."""

import shutil
from pathlib import Path

from cellwall.model.errors import HostUnsupported
from cellwall.model.outcome import Isolation, IsolationLevel
from cellwall.runtimes.base import Finding, RuntimeSandbox, SandboxSpec
from cellwall.runtimes.process.runtime import ProcessRuntime


class ToySandbox:
    """What the runtime below started, under its own name."""

    def __init__(self, inner: RuntimeSandbox) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    @property
    def isolation(self) -> Isolation:
        """Never more than what really holds: nothing is confined here."""
        hardness = self._inner.isolation.hardness
        return Isolation("toy", IsolationLevel.PROCESS, "", hardness)


class ToyRuntime(ProcessRuntime):
    """Only what is different: how a sandbox's first process is started, and what that needs."""

    name = "toy"
    level = IsolationLevel.PROCESS

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir)
        self._nice = shutil.which("nice")

    async def probe(self) -> list[Finding]:
        found = await super().probe()
        if self._nice is None:
            found.append(Finding("nice", "FAIL", "not installed", "apt-get install coreutils"))
        return found

    def _command(self, spec: SandboxSpec) -> list[str]:
        if self._nice is None:
            raise HostUnsupported("nice", "toy: no nice(1)", remedy="apt-get install coreutils")
        return [self._nice, "-n", "19", *super()._command(spec)]

    async def start(self, spec: SandboxSpec) -> RuntimeSandbox:
        return ToySandbox(await super().start(spec))

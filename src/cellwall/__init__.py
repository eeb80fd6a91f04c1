"""cellwall: run code that nobody has reviewed.

The library's front page: `run`, `arun`, `Sandbox`, `AsyncSandbox`, `connect`, `aconnect` and the
types they speak. Not
the place where anything happens. Names are imported on first use: `import cellwall` itself must
stay free, because command lines and forks pay for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellwall.client import aconnect, connect
    from cellwall.embedded import Sandbox, arun, run
    from cellwall.embedded.images import Images
    from cellwall.embedded.snapshots import Snapshots
    from cellwall.embedded.volumes import Volumes
    from cellwall.engine.engine import Engine
    from cellwall.engine.parts.commands import Command
    from cellwall.engine.parts.ports import Connection
    from cellwall.engine.parts.terminals import Terminal
    from cellwall.engine.policy.settings import EngineSettings
    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.images.steps import ImageSteps
    from cellwall.model.errors import (
        AccessDenied,
        CapacityError,
        CellwallError,
        Conflict,
        FileError,
        HostUnsupported,
        Interrupted,
        NodeLost,
        NodeUnreachable,
        NotFound,
        PortError,
        QuotaExceeded,
        SandboxBroken,
        SandboxUnavailable,
        ServerUnreachable,
        UsageError,
    )
    from cellwall.model.execution import CommandResult, Event, Execution, ExecutionError
    from cellwall.model.files import Change, FileEntry
    from cellwall.model.limits import Limits
    from cellwall.model.outcome import Isolation, IsolationLevel, Outcome, Verdict
    from cellwall.model.secret import Secret
    from cellwall.model.snapshot import Fork, Snapshot
    from cellwall.model.volume import Volume, VolumeMount
    from cellwall.surface.tools.tools import Tool, ToolBox, ToolCall, ToolError

__version__ = "0.1.0"

_HOMES = {
    "cellwall.client": ("aconnect", "connect"),
    "cellwall.embedded": ("Sandbox", "arun", "run"),
    "cellwall.embedded.images": ("Images",),
    "cellwall.embedded.snapshots": ("Snapshots",),
    "cellwall.embedded.volumes": ("Volumes",),
    "cellwall.engine.parts.commands": ("Command",),
    "cellwall.engine.engine": ("Engine",),
    "cellwall.engine.parts.ports": ("Connection",),
    "cellwall.engine.sandbox": ("AsyncSandbox",),
    "cellwall.engine.policy.settings": ("EngineSettings",),
    "cellwall.engine.parts.terminals": ("Terminal",),
    "cellwall.images.steps": ("ImageSteps",),
    "cellwall.model.errors": (
        "AccessDenied",
        "CapacityError",
        "CellwallError",
        "Conflict",
        "FileError",
        "HostUnsupported",
        "Interrupted",
        "NodeLost",
        "NodeUnreachable",
        "NotFound",
        "PortError",
        "QuotaExceeded",
        "SandboxBroken",
        "SandboxUnavailable",
        "ServerUnreachable",
        "UsageError",
    ),
    "cellwall.model.execution": ("CommandResult", "Event", "Execution", "ExecutionError"),
    "cellwall.model.files": ("Change", "FileEntry"),
    "cellwall.model.limits": ("Limits",),
    "cellwall.model.outcome": ("Isolation", "IsolationLevel", "Outcome", "Verdict"),
    "cellwall.model.secret": ("Secret",),
    "cellwall.model.snapshot": ("Fork", "Snapshot"),
    "cellwall.model.volume": ("Volume", "VolumeMount"),
    "cellwall.surface.tools.tools": ("Tool", "ToolBox", "ToolCall", "ToolError"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AccessDenied",
    "AsyncSandbox",
    "CapacityError",
    "CellwallError",
    "Change",
    "Command",
    "CommandResult",
    "Conflict",
    "Connection",
    "Engine",
    "EngineSettings",
    "Event",
    "Execution",
    "ExecutionError",
    "FileEntry",
    "FileError",
    "Fork",
    "HostUnsupported",
    "ImageSteps",
    "Images",
    "Interrupted",
    "Isolation",
    "IsolationLevel",
    "Limits",
    "NodeLost",
    "NodeUnreachable",
    "NotFound",
    "Outcome",
    "PortError",
    "QuotaExceeded",
    "Sandbox",
    "SandboxBroken",
    "SandboxUnavailable",
    "Secret",
    "ServerUnreachable",
    "Snapshot",
    "Snapshots",
    "Terminal",
    "Tool",
    "ToolBox",
    "ToolCall",
    "ToolError",
    "UsageError",
    "Verdict",
    "Volume",
    "VolumeMount",
    "Volumes",
    "aconnect",
    "arun",
    "connect",
    "run",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - module attributes are of any type
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'cellwall' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

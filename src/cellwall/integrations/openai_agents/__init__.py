"""OpenAI's Agents SDK: a shell and an editor for its tools, sandboxes for its `SandboxAgent`.

Needs `openai-agents`; `pip install 'cellwall[openai-agents]'`. Parts: `box`, `sandbox_client`.
"""

from __future__ import annotations

from cellwall.integrations.openai_agents.box import CellwallBox, CellwallEditor
from cellwall.integrations.openai_agents.sandbox_client import (
    CellwallSandboxClient,
    CellwallSandboxClientOptions,
)

__all__ = [
    "CellwallBox",
    "CellwallEditor",
    "CellwallSandboxClient",
    "CellwallSandboxClientOptions",
]

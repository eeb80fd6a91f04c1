"""Google's ADK: a code executor for its agents, and an environment for its toolset.

Needs `google-adk`; `pip install 'cellwall[google-adk]'`. Parts: `code_executor`, `environment`.
"""

from __future__ import annotations

from cellwall.integrations.google_adk.code_executor import CellwallCodeExecutor
from cellwall.integrations.google_adk.environment import CellwallEnvironment

__all__ = ["CellwallCodeExecutor", "CellwallEnvironment"]

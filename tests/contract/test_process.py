"""The `process` runtime keeps the contract; it isolates nothing, and says so."""

from __future__ import annotations

from cellwall.testing.contract import RuntimeContract


class TestProcessRuntime(RuntimeContract):
    runtime_name = "process"
    isolation = "process"

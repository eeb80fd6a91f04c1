"""LangChain's suite for sandboxes of Deep Agents, over ours: one class embedded, one by a server.

Run by `test_agents_deepagents_suite`, in an environment that has the suite and its plugins.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

import cellwall
from cellwall.integrations.deepagents import CellwallBackend


class TestEmbedded(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[CellwallBackend]:
        with CellwallBackend(runtime=os.environ.get("SUITE_RUNTIME")) as backend:
            yield backend


class TestServer(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[CellwallBackend]:
        with (
            cellwall.connect() as client,  # where it is, the environment says
            CellwallBackend(client=client) as backend,
        ):
            yield backend

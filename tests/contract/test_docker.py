"""The `docker` runtime keeps the contract, in a daemon of our own."""

from __future__ import annotations

import pytest

from cellwall.testing.contract import RuntimeContract

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("docker_daemon")]


class TestDockerRuntime(RuntimeContract):
    runtime_name = "docker"
    isolation = "namespace"

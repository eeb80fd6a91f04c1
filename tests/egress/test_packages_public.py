"""The registries of this machine's own pip and npm, through a broker: small packages of theirs.

What is published there changes without us, so this asks for what stays: names and old versions.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.egress.packages.broker import BrokerSettings
from cellwall.egress.packages.upstream import Upstream
from cellwall.engine.templates.package_index import uv_variables
from conftest import require_capability, require_command
from kit.packages import brokers
from kit.packages.brokers import Serving
from kit.packages.clients import npm, pip, uv

_PIPS_OWN = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"


def _registries() -> list[Upstream]:
    """Return what pip and npm use here; no host is written down in this project."""
    require_command("pip")
    index = uv_variables(os.environ).get("UV_DEFAULT_INDEX") or _said(
        "/usr/bin/python3", "-c", _PIPS_OWN
    )
    registry = _said(require_command("npm"), "config", "get", "registry")
    is_http = index.startswith("http") and registry.startswith("http")
    require_capability("package registries over http", is_http, "configure pip and npm")
    return [
        Upstream.of({"registry": "pypi", "url": index}),
        Upstream.of({"registry": "npm", "url": registry}),
    ]


def _said(*command: str) -> str:
    return subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL).strip()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Serving]:
    # A machine behind a mirror has its registries at private addresses.
    settings = BrokerSettings(listed=("0.0.0.0/0", "::/0"))
    with brokers.serving(tmp_path, _registries(), settings) as started:
        yield started


@pytest.mark.parametrize("client", [pip, uv])
def test_python_package_with_what_it_needs(broker: Serving, client: object) -> None:
    assert callable(client)
    ran = client(broker, "requests-toolbelt==1.0.0")
    assert ran.status == 0, ran.screen
    assert {"requests", "requests_toolbelt", "urllib3"} <= {
        path.name for path in ran.place.iterdir()
    }
    broker.only(deny=["urllib3"])
    ran = client(broker, "requests-toolbelt==1.0.0")
    assert "is refused: it is on the list of packages that are denied here" in ran.screen


def test_python_package_of_an_age(broker: Serving) -> None:
    """Real registries say when a file came."""
    broker.only(min_age_days=365)
    assert uv(broker, "requests-toolbelt==1.0.0").status == 0
    broker.only(min_age_days=3650)
    assert "younger than 3650 days" in uv(broker, "requests-toolbelt==1.0.0").screen


def test_npm_package(broker: Serving) -> None:
    ran = npm(broker, "install", "left-pad@1.3.0")
    assert ran.status == 0, ran.screen
    assert (ran.place / "node_modules" / "left-pad" / "index.js").exists()
    broker.only(min_age_days=3650)
    assert "younger than 3650 days" in npm(broker, "install", "left-pad@1.3.0").screen

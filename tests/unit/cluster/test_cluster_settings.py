"""What a node and a gateway refuse to be started with."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.apps.cluster.node import named
from cellwall.apps.cluster.settings import gateway_settings, node_settings
from cellwall.apps.settings_loader import load
from cellwall.model.errors import UsageError

FILES = 'authority = "a.pem"\ncertificate = "c.pem"\nkey = "c.key"\n'


def _written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cellwall.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_whole_settings_are_read(tmp_path: Path) -> None:
    node = node_settings(_written(tmp_path, f"[node]\n{FILES}fence_s = 20.0"))
    assert (node.fence_s, node.files.key) == (20.0, Path("c.key"))
    gateway = gateway_settings(_written(tmp_path, f'[gateway]\n{FILES}nodes = ["10.0.0.5:7443"]'))
    assert (gateway.nodes, gateway.lost_after_s) == (("10.0.0.5:7443",), 13.0)
    found = 'provider = "kubernetes"\nnamespace = "n"\nservice = "s"'
    gateway = gateway_settings(_written(tmp_path, f"[gateway]\n{FILES}{found}"))
    assert (gateway.namespace, gateway.service) == ("n", "s")


def test_gateway_with_a_list_imports_no_client_of_kubernetes() -> None:
    code = "import sys, cellwall.apps.cluster.gateway; print('lightkube' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    code = code.replace("apps.cluster.gateway", "cluster.providers.kubernetes")  # the control
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "authority is not given"),
        (f"[node]\n{FILES}fence = 3", "unknown name 'fence'"),
        (f"[node]\n{FILES}fence_s = 0", "not above 0"),
        (f'[node]\n{FILES}fence_s = "long"', "fence_s = 'long' is not float"),
        ("node = 3", "not a section"),
        ("[node", "write it as TOML"),
    ],
)
def test_wrong_node_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        node_settings(_written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (FILES, "has no nodes"),
        (f'provider = "consul"\nnodes = ["a:1"]\n{FILES}', "'consul' is not known"),
        (f'provider = "kubernetes"\n{FILES}', "service is not given"),
        (f'provider = "kubernetes"\nservice = "s"\nnodes = ["a:1"]\n{FILES}', "means nothing"),
        (f'nodes = ["a:1"]\nservice = "s"\n{FILES}', "service means nothing"),
        (f'nodes = ["a:1"]\nnamespace = "n"\n{FILES}', "namespace means nothing"),
        (f'nodes = "a:1"\n{FILES}', "not a list of texts"),
        (f'nodes = ["a:1"]\n{FILES}probe_s = 20.0', "several times"),
        (f'nodes = ["a:1"]\n{FILES}probe_s = 0.0', "several times"),
    ],
)
def test_wrong_gateway_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        gateway_settings(_written(tmp_path, f"[gateway]\n{text}"))


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ({"keep_sessions": True}, "keep_sessions"),
        ({"node": "a7c2"}, "draws its names itself"),
        ({"port": 0}, "find it again"),
    ],
)
def test_server_that_can_be_no_node_is_refused(server: dict[str, object], why: str) -> None:
    loaded = load(None, {}, {})
    assert named(loaded).server.node == "auto"  # the control
    with pytest.raises(UsageError, match=why):
        named(replace(loaded, server=replace(loaded.server, **server)))  # type: ignore[arg-type]

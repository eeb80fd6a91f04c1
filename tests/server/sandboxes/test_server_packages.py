"""Packages over HTTP, by the SDK and from the command line, from a registry of the test's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import cellwall
from cellwall.model.errors import UsageError
from kit.packages import registries
from kit.packages.made import wheel
from kit.packages.registries import Registry
from kit.servers import ADMIN, ALICE, Server, error_of, new_sandbox, run_cell, running

pytestmark = pytest.mark.root

CODE = "import alpha; print(alpha.version)"


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with registries.running() as made:
        made.add(wheel("alpha", "1.0"))
        made.add(wheel("denied", "1.0"))
        yield made


@pytest.fixture(scope="module")
def stocked(registry: Registry) -> Iterator[Server]:
    """A server whose operator names the test's registry."""
    upstream = f"{{registry = 'pypi', url = '{registry.url('/simple', 'user:word@')}'}}"
    policy = "{registries = ['pypi'], deny = ['denied']}"
    with running(f"[engine]\npackage_registries = [{upstream}]\npackages = {policy}\n") as made:
        yield made


def test_installed_into_a_live_sandbox_and_audited(stocked: Server) -> None:
    client = stocked.client()
    place = f"/sandboxes/{new_sandbox(client)}"
    assert run_cell(client, place, CODE)["verdict"] == "exception"
    answer = client.post(f"{place}/packages", json={"packages": ["alpha"]})
    assert (answer.status_code, answer.json()) == (200, {"installed": ["alpha==1.0"]})
    assert run_cell(client, place, CODE)["stdout"] == "1.0\n"
    refused = client.post(f"{place}/packages", json={"packages": ["denied"]})
    assert refused.status_code == 400
    assert "denied here" in error_of(refused)["message"]
    audit = stocked.client(ADMIN).get("/audit", params={"limit": 200}).json()["records"]
    actions = {record["action"] for record in audit}
    assert {"packages.install", "network.package", "network.refused"} <= actions
    told = json.dumps(audit)
    assert "alpha-1.0-py3-none-any.whl" in told
    assert "user:word" not in told


def test_packages_of_a_sandbox_and_of_an_execution(stocked: Server) -> None:
    client = stocked.client()
    made = client.post("/sandboxes", json={"packages": ["alpha"]})
    assert made.status_code == 201
    assert run_cell(client, f"/sandboxes/{made.json()['id']}", CODE)["stdout"] == "1.0\n"
    done = client.post("/execute", json={"code": CODE, "packages": ["alpha"]})
    assert done.status_code == 200, done.text
    assert done.json()["stdout"] == "1.0\n"


@pytest.mark.parametrize(
    "body",
    [
        {"packages": ["-r /etc/passwd"]},
        {"packages": ["git+https://x/y"]},
        {"packages": "alpha"},
        {"network": {"packages": {"registries": ["npm"]}}},
        {"network": {"packages": {"registries": ["cargo"]}}},
    ],
)
def test_bad_input_is_refused_before_anything_is_made(
    stocked: Server, body: dict[str, object]
) -> None:
    client = stocked.client()
    for path, more in (("/sandboxes", {}), ("/execute", {"code": "print(1)"})):
        answer = client.post(path, json={**body, **more})
        assert answer.status_code in {400, 422}, answer.text
    assert client.post(f"/sandboxes/{new_sandbox(client)}/packages", json={"packages": []}).is_error


def test_the_sdk_installs(stocked: Server) -> None:
    with cellwall.connect(stocked.address, api_key=ALICE) as client:
        with client.Sandbox() as sandbox:
            assert sandbox.install(["alpha"]).packages == ("alpha==1.0",)
            assert sandbox.run(CODE).stdout == "1.0\n"
            with pytest.raises(UsageError, match="not found"):
                sandbox.install(["no-such-thing"])
        with client.Sandbox(network="packages") as sandbox:
            assert sandbox.network.packages is not None
            assert sandbox.commands.run("pip install -q alpha").ok
        assert client.run(CODE, packages=["alpha"]).stdout == "1.0\n"


def test_the_command_line_installs(registry: Registry) -> None:
    upstream = json.dumps([{"registry": "pypi", "url": registry.url("/simple")}])
    env = {**os.environ, "CELLWALL_PACKAGE_REGISTRIES": upstream}

    def cli(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "cellwall.apps.cli.main", "run", *words, "-c", CODE]
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)

    assert cli("--package", "alpha").stdout == "1.0\n"
    none = cli("--package", "no-such-thing")
    assert none.returncode == 125
    assert "not found in the package registry" in none.stderr
    env["CELLWALL_PACKAGES"] = "none"
    assert "none may be installed here" in cli("--package", "alpha").stderr


def test_the_command_line_of_a_server(stocked: Server) -> None:
    env = {**os.environ, "CELLWALL_URL": stocked.address, "CELLWALL_API_KEY": ALICE}

    def cli(*words: str) -> str:
        argv = [sys.executable, "-m", "cellwall.apps.cli.main", *words]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    made = cli("sandbox", "create", "--network", "packages")
    assert cli("sandbox", "install", made, "alpha") == "alpha==1.0"
    assert cli("sandbox", "exec", made, "--", "python", "-c", CODE) == "1.0"
    assert "packages of pypi" in cli("network", "show", made)
    assert cli("network", "set", made, "--network", "none") == "none"
    events = [each["event"] for each in json.loads(cli("network", "log", made, "--json"))]
    assert {"open", "package", "close"} <= set(events)
    assert "alpha-1.0-py3-none-any.whl" in cli("network", "log", made)
    stocked.client().delete(f"/sandboxes/{made}")

"""deploy/kubernetes: every document is what the API takes, and says what the pages promise.

The schemas are those of the API itself, strict: a field that it does not know is an error. Of
KubeRay's own kind, which is not among them, the pods are validated.
"""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cellwall.apps.cluster.settings import gateway_settings, node_settings
from cellwall.apps.settings_loader import load
from kit.agents.other_environment import python_of
from kit.places import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
VALIDATE = Path(__file__).with_name("suites") / "validate_manifests.py"

pytestmark = pytest.mark.timeout(300)
Document = dict[str, Any]


def documents(name: str) -> list[Document]:
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def found(name: str, kind: str) -> Document:
    """Return the document of a kind of which a file has one."""
    (one,) = [each for each in documents(name) if each["kind"] == kind]
    return one


def _pods_of_ray() -> list[Document]:
    spec = documents("raycluster.yaml")[0]["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    pod = {"apiVersion": "v1", "kind": "Pod"}
    return [{**pod, **group["template"], "metadata": {"name": "a"}} for group in groups]


def faults(given: list[Document]) -> list[str]:
    """Return what the API would say of each document."""
    done = subprocess.run(
        [python_of("suite-manifests"), VALIDATE],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answers: list[str] = json.loads(done.stdout)
    return answers


def test_api_takes_every_document() -> None:
    given = [*documents("nodes.yaml"), *documents("gateways.yaml"), *_pods_of_ray()]
    assert len(given) == 7 + 9 + 2
    assert [each for each in faults(given) if each] == []


def test_misspelt_field_is_found_in_every_document() -> None:
    """The control: `strict` means it, at the top and deep within."""
    given = [*documents("nodes.yaml"), *documents("gateways.yaml"), *_pods_of_ray()]
    top = [{**each, "specs": {}} for each in given]
    assert all(faults(top))
    pods = [found("nodes.yaml", "Deployment"), found("gateways.yaml", "Deployment")]
    deep = copy.deepcopy(pods)
    for each in deep:
        each["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnly"] = True
    assert all("readOnly" in each for each in faults(deep))


def test_settings_are_what_a_node_and_a_gateway_read(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(found("nodes.yaml", "ConfigMap")["data"]["node.toml"])
    node, server = node_settings(path), load(path, {}, {}).server
    service = found("nodes.yaml", "Service")["spec"]["ports"][0]
    assert (server.port, service["name"]) == (service["port"], "node")
    path.write_text(found("gateways.yaml", "ConfigMap")["data"]["gateway.toml"])
    gateway, front = gateway_settings(path), load(path, {}, {}).server
    assert gateway.fence_s == node.fence_s
    assert (gateway.provider, gateway.service) == ("kubernetes", "cellwall-node")
    assert gateway.namespace == found("nodes.yaml", "Deployment")["metadata"]["namespace"]
    pod = found("gateways.yaml", "Deployment")["spec"]["template"]["spec"]
    assert pod["containers"][0]["ports"][0]["containerPort"] == front.port
    assert pod["terminationGracePeriodSeconds"] > front.stop_s


def test_files_that_settings_name_are_mounted() -> None:
    for name in ("nodes.yaml", "gateways.yaml"):
        (text,) = found(name, "ConfigMap")["data"].values()
        named = [word.strip('"') for word in text.split() if word.startswith('"/')]
        container = found(name, "Deployment")["spec"]["template"]["spec"]["containers"][0]
        mounts = {each["mountPath"] for each in container["volumeMounts"]}
        assert named
        assert {str(Path(each).parent) for each in named} <= mounts


def test_nodes_reach_nothing_and_gateways_alone_reach_them() -> None:
    policy = found("nodes.yaml", "NetworkPolicy")["spec"]
    assert (policy["podSelector"], policy["egress"]) == ({}, [])
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    (rule,) = policy["ingress"]
    (peer,) = rule["from"]
    gateways = found("gateways.yaml", "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"] == gateways
    assert set(peer) == {"podSelector", "namespaceSelector"}


def test_gateways_may_read_where_nodes_are_and_nothing_else() -> None:
    (rule,) = found("gateways.yaml", "Role")["rules"]
    assert rule == {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["list", "watch"],
    }
    spec = found("nodes.yaml", "Deployment")["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False


def test_pods_have_no_right_that_compose_does_not_give() -> None:
    for pod in (*_deployed(), *_pods_of_ray()[1:]):
        spec = pod["spec"]
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            context = container["securityContext"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["allowPrivilegeEscalation"] is False
            assert "privileged" not in context
            # The API takes it without covers of /proc only with a user namespace of its own.
            assert "procMount" not in context or spec["hostUsers"] is False


def _deployed() -> list[Document]:
    return [
        found(name, "Deployment")["spec"]["template"] for name in ("nodes.yaml", "gateways.yaml")
    ]

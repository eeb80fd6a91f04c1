"""`cellwall cluster doctor` finds what is wrong, and each finding names a remedy."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import cellwall
from cellwall.apps.cluster.doctor import Seen, judged
from cellwall.cluster.certificates import issue_gateway, issue_node, make_authority
from cellwall.runtimes.base import Finding
from kit.cluster.processes import Cluster, cluster
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

NONE: Mapping[str, object] = {}
NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture(scope="module")
def two() -> Iterator[Cluster]:
    with cluster(2) as made:
        yield made


def _doctor(made: Cluster, **changes: str) -> tuple[int, list[dict[str, Any]]]:
    """Run it with the settings of the gateway, and changes of them."""
    text = (made.folder / "gate-0" / "cellwall.toml").read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = made.folder / "doctor.toml"
    path.write_text(text, encoding="utf-8")
    argv = [sys.executable, "-m", "cellwall.apps.cli.main", "cluster", "doctor", "--json"]
    done = subprocess.run(
        [*argv, "--config", str(path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_nothing_is_wrong_with_a_cluster_that_is_well(two: Cluster) -> None:
    status, found = _doctor(two)
    assert status == 0
    assert [each["grade"] for each in found] == ["PASS"] * 6, found
    assert sum("ready" in each["detail"] for each in found) == 2


def test_certificate_of_another_use_or_authority_is_found(two: Cluster, tmp_path: Path) -> None:
    status, found = _doctor(two, **{"gate-0.pem": "node-0.pem", "gate-0.key": "node-0.key"})
    (wrong,) = [each for each in found if each["grade"] == "FAIL"]
    assert status == 1
    assert "it is for serving, not for calling" in wrong["detail"]
    assert "cluster cert" in wrong["remedy"]
    make_authority(tmp_path / "other")
    files = issue_gateway(tmp_path / "other", "gate-9")
    old = two.folder / "authority"
    status, found = _doctor(
        two,
        **{
            str(old / "gate-0.pem"): str(files.certificate),
            str(old / "gate-0.key"): str(files.key),
        },
    )
    assert status == 1
    assert [each["grade"] for each in found].count("FAIL") == 2  # no node lets it in


def test_node_that_is_away_is_found(two: Cluster) -> None:
    port = two.ports["node-1"]
    status, found = _doctor(two, **{f":{port}": ":1"})
    assert status == 1
    (wrong,) = [each for each in found if each["grade"] == "FAIL"]
    assert wrong["feature"] == "node 127.0.0.1:1"
    assert "cellwall node" in wrong["remedy"]


def test_look_begins_no_fence_at_a_node_that_no_gateway_has_heard() -> None:
    with cluster(1, gateways=0) as made:
        made.nodes["node-0"].kill()
        made.start_gateway()
        made.gateways[0].kill()
        made.start_node("node-0", fence_s=1.0)
        name = _name(made)
        until = time.monotonic() + 3.0
        wait_until(lambda: time.monotonic() > until, "a fence would be over")
        assert _name(made) == name


def _name(made: Cluster) -> str:
    """Return the name of the one node, as it says."""
    _, found = _doctor(made, **{"fence_s = 10.0": "fence_s = 1.0"})
    (said,) = [each["detail"] for each in found if each["feature"].startswith("node ")]
    return str(said).partition(",")[0]


def _seen(folder: Path, ahead_s: float = 0.0, facts: Mapping[str, object] = NONE) -> Seen:
    pem = issue_node(folder, "node-7", ("127.0.0.1",)).certificate.read_bytes()
    said = {"name": "aaaa", "state": "ready", "fence_s": 10.0, "version": cellwall.__version__}
    return Seen("127.0.0.1:7443", {**said, **facts}, pem, ahead_s, "")


def _wrong(*seen: Seen, at: datetime.datetime = NOW) -> list[Finding]:
    found = [each for each in judged(list(seen), 10.0, at) if each.grade != "PASS"]
    assert all(each.remedy for each in found)
    return found


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    make_authority(tmp_path / "authority")
    return tmp_path / "authority"


def test_ages_of_certificates(authority: Path) -> None:
    seen = _seen(authority)
    assert _wrong(seen) == []
    (soon,) = _wrong(seen, at=NOW + datetime.timedelta(days=340))
    assert (soon.grade, "ends soon" in soon.detail) == ("CAUTION", True)
    for days in (366, -1):
        (over,) = _wrong(seen, at=NOW + datetime.timedelta(days=days))
        assert (over.grade, "is valid from" in over.detail) == ("FAIL", True)


@pytest.mark.parametrize(
    ("facts", "ahead_s", "grade", "words"),
    [
        ({"fence_s": 20.0}, 0.0, "FAIL", "fence_s = 20"),
        ({"fence_s": 5.0}, 0.0, "CAUTION", "fence_s = 5"),
        ({"version": "9.9.9"}, 0.0, "CAUTION", "version is 9.9.9"),
        ({}, 3600.0, "CAUTION", "clock differs by 3600 s"),
        ({}, -3600.0, "CAUTION", "clock differs by -3600 s"),
    ],
)
def test_what_a_node_says_is_judged(
    authority: Path, facts: dict[str, object], ahead_s: float, grade: str, words: str
) -> None:
    (wrong,) = _wrong(_seen(authority, ahead_s, facts))
    assert (wrong.grade, words in wrong.detail) == (grade, True), wrong


def test_name_that_two_nodes_say_is_found(authority: Path) -> None:
    found = _wrong(_seen(authority), _seen(authority))
    assert [each.grade for each in found] == ["FAIL", "FAIL"]
    assert all("of another node, too" in each.detail for each in found)

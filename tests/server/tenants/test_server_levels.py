"""Floors per tier, allowed runtimes and words of trust over HTTP: met or refused, never bent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import cellwall
from kit.servers import ADMIN, ALICE, BOB, Server, error_of, running

SETTINGS = """
[tiers.strong]
least_isolation = "kernel"
[tiers.narrow]
runtimes = ["process"]
[tenants]
alice = "strong"
[trust.untrusted]
isolation = "kernel"
[trust.semi]
isolation = "namespace"
"""
CODE = {"code": "print(6 * 7)"}


@pytest.fixture(scope="module")
def tiered() -> Iterator[Server]:
    """Alice's tier demands a kernel of its own; this server has the jail alone."""
    with running("[engine]\nruntimes = ['jail']\n" + SETTINGS) as server:
        yield server


def refusal(answer: httpx.Response, status: int) -> str:
    error = error_of(answer)
    assert (answer.status_code, bool(error["remedy"])) == (status, True), error
    return str(error["message"])


@pytest.mark.parametrize("path", ["/execute", "/sandboxes"])
def test_request_below_the_tiers_floor_is_refused(tiered: Server, path: str) -> None:
    body = CODE if path == "/execute" else {}
    alice, bob = tiered.client(ALICE), tiered.client(BOB)
    below = "isolation 'namespace' is below 'kernel', the least for tier 'strong'"
    assert refusal(alice.post(path, json={**body, "isolation": "namespace"}), 400) == below
    said = refusal(alice.post(path, json={**body, "runtime": "jail"}), 400)
    assert "runtime 'jail' gives isolation 'namespace', 'kernel' is the least" in said
    # Unnamed is the floor, and what this host has is weaker: nothing runs.
    assert "no runtime of this host offers it" in refusal(alice.post(path, json=body), 503)
    served = bob.post(path, json={**body, "isolation": "namespace"})
    assert served.json()["isolation"]["level"] == "namespace"


def test_nothing_of_a_refused_request_is_accepted(tiered: Server) -> None:
    """In the background too, and a program of a batch spoils only itself."""
    alice = tiered.client(ALICE)
    low = {**CODE, "isolation": "process"}
    assert "below 'kernel'" in refusal(
        alice.post("/execute", json={**low, "background": True}), 400
    )
    lines = alice.post("/executions/batch", json={"executions": [low, low]}).text.splitlines()
    assert len(lines) == 3
    assert all("below 'kernel'" in line for line in lines[:2])
    assert '"failed":2' in lines[2]


def test_quota_and_runtimes_say_what_the_tier_demands(tiered: Server) -> None:
    alice, bob = tiered.client(ALICE), tiered.client(BOB)
    assert alice.get("/quota").json()["quotas"]["least_isolation"] == "kernel"
    assert bob.get("/quota").json()["quotas"]["least_isolation"] is None
    shown = {each["name"]: each for each in bob.get("/runtimes").json()["runtimes"]}
    assert (shown["jail"]["allowed"], shown["jail"]["available"]) == (True, True)
    assert (shown["gvisor"]["allowed"], shown["gvisor"]["missing"]) == (False, ["not allowed"])
    assert "CELLWALL_RUNTIMES" in shown["gvisor"]["remedies"][0]
    assert "CELLWALL_ALLOW_PROCESS" in shown["process"]["remedies"][0]


def test_tier_is_served_by_its_runtimes_only() -> None:
    more = "[engine]\nruntimes = ['jail', 'process']\nallow_process = true\n" + SETTINGS
    with running(
        more.replace("strong", "other").replace('alice = "other"', 'alice = "narrow"')
    ) as server:
        alice, bob = server.client(ALICE), server.client(BOB)
        low = {**CODE, "isolation": "process"}
        assert alice.post("/execute", json=low).json()["isolation"]["runtime"] == "process"
        assert bob.post("/execute", json=low).json()["isolation"]["runtime"] == "jail"
        said = refusal(alice.post("/execute", json={**CODE, "runtime": "jail"}), 400)
        assert said == "runtime 'jail' is not allowed for tier 'narrow'"
        assert "offers it" in refusal(alice.post("/execute", json=CODE), 503)
        shown = {each["name"]: each for each in alice.get("/runtimes").json()["runtimes"]}
        assert shown["jail"]["remedies"] == ["the operator may allow it for tier 'narrow'"]


def test_start_times_are_measured_and_shown_to_who_may_manage(tiered: Server) -> None:
    bob, admin = tiered.client(BOB), tiered.client(ADMIN)
    bob.post("/execute", json=CODE)

    def start(client: httpx.Client) -> Any:
        (jail,) = [r for r in client.get("/runtimes").json()["runtimes"] if r["name"] == "jail"]
        return jail["start"]

    seen = start(admin)
    assert seen["count"] >= 1
    assert 0 < seen["p50_ms"] < 60_000
    assert start(bob) is None


# -- trust -----------------------------------------------------------------------------------------


def test_trust_is_a_level_and_is_said_back(tiered: Server) -> None:
    bob = tiered.client(BOB)
    for word in ("semi", "trusted"):
        answer = bob.post("/execute", json={**CODE, "trust": word}).json()
        assert (answer["trust"], answer["isolation"]["level"]) == (word, "namespace")
    assert "isolation 'kernel'" in refusal(
        bob.post("/execute", json={**CODE, "trust": "untrusted"}), 503
    )
    assert bob.post("/execute", json=CODE).json()["trust"] is None
    made = bob.post("/sandboxes", json={"trust": "semi"}).json()
    assert made["trust"] == "semi"
    cell = bob.post(
        f"/sandboxes/{made['id']}/execute", json=CODE, headers={"accept": "application/json"}
    )
    assert cell.json()["trust"] == "semi"
    assert bob.get(f"/sandboxes/{made['id']}").json()["trust"] == "semi"
    bob.delete(f"/sandboxes/{made['id']}")
    line = bob.post("/executions/batch", json={"executions": [{**CODE, "trust": "semi"}]}).text
    assert '"trust":"semi"' in line.splitlines()[0]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"trust": "semi", "isolation": "kernel"}, "isolation is given as well"),
        ({"trust": "semi", "runtime": "jail"}, "runtime is given as well"),
        ({"trust": "semi", "mode": "jail"}, "runtime is given as well"),
        ({"trust": "somewhat"}, "trust"),
        ({"trust": "semi", "network": "open"}, "network"),
    ],
)
def test_trust_beside_what_it_stands_for_is_refused(
    tiered: Server, fields: dict[str, str], words: str
) -> None:
    for path in ("/execute", "/sandboxes"):
        body = {**(CODE if path == "/execute" else {}), **fields}
        assert words in refusal(tiered.client(BOB).post(path, json=body), 400)


def test_trust_that_the_tier_does_not_allow_is_refused(tiered: Server) -> None:
    said = refusal(tiered.client(ALICE).post("/execute", json={**CODE, "trust": "trusted"}), 400)
    assert "trust 'trusted' means isolation 'process' is below 'kernel'" in said


def test_sdk_and_library_take_trust_and_say_it_back(tiered: Server) -> None:
    with cellwall.connect(tiered.address, api_key=BOB) as client:
        assert client.run("1", trust="semi").trust == "semi"
        with client.Sandbox(trust="trusted") as sandbox:
            assert (sandbox.trust, sandbox.run("1").trust) == ("trusted", "trusted")
        with pytest.raises(cellwall.CellwallError, match="given as well"):
            client.run("1", trust="semi", isolation="kernel")
    assert cellwall.run("1", trust="untrusted").trust == "untrusted"
    with cellwall.Sandbox(trust="semi") as sandbox:
        assert sandbox.trust == "semi"

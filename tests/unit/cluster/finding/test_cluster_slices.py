"""EndpointSlices as addresses: what of the API's liberties must not become a node too many."""

from __future__ import annotations

from typing import Any

import pytest

from cellwall.cluster.gateway.wire.links import Address
from cellwall.cluster.providers.slices import pods_in
from kit.cluster.api_server import endpoint, endpoint_slice

FOUR, SIX = Address("10.1.0.5", 7443), Address("fd00::5", 7443)


def _four(uid: str = "a", **conditions: bool) -> dict[str, Any]:
    return endpoint(uid, FOUR.host, **conditions)


def _six(uid: str = "a") -> dict[str, Any]:
    return endpoint(uid, SIX.host)


def test_pods_of_all_slices_are_found() -> None:
    one = endpoint_slice("one", 7443, _four("a"), endpoint("b", "10.1.0.6"))
    two = endpoint_slice("two", 7443, endpoint("c", "10.1.0.7"))
    hosts = {each.host for each in pods_in([one, two], {}).values()}
    assert hosts == {"10.1.0.5", "10.1.0.6", "10.1.0.7"}


def test_pod_in_several_slices_is_one_node() -> None:
    twice = [endpoint_slice(name, 7443, _four()) for name in ("one", "two")]
    assert pods_in(twice, {}) == {"a": FOUR}


def test_pod_with_two_families_is_one_node_at_an_address_that_stays() -> None:
    four = endpoint_slice("four", 7443, _four())
    six = endpoint_slice("six", 7443, _six(), family="IPv6")
    assert pods_in([six, four], {}) == pods_in([four, six], {}) == {"a": FOUR}
    only = pods_in([six], {})
    assert only == {"a": SIX}
    assert pods_in([four, six], only) == {"a": SIX}  # not another node by another slice
    assert pods_in([four], only) == {"a": FOUR}


def test_pod_that_is_not_ready_is_found_and_one_that_ends_is_not() -> None:
    assert pods_in([endpoint_slice("s", 7443, _four(ready=False))], {}) == {"a": FOUR}
    ending = _four(ready=False, serving=True, terminating=True)
    assert pods_in([endpoint_slice("s", 7443, ending)], {}) == {}
    # A copy of it in another slice may be older.
    both = [endpoint_slice("s", 7443, ending), endpoint_slice("t", 7443, _four())]
    assert pods_in(both, {}) == {}


def test_later_pod_at_the_address_of_one_that_ends_is_found() -> None:
    ending = _four("a", terminating=True)
    assert pods_in([endpoint_slice("s", 7443, ending, _four("b"))], {"a": FOUR}) == {"b": FOUR}


def test_endpoint_without_a_pod_is_known_by_its_address() -> None:
    plain = {"addresses": [FOUR.host]}
    found = pods_in([endpoint_slice("s", 7443, plain), endpoint_slice("t", 7443, plain)], {})
    assert list(found.values()) == [FOUR]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, True),  # the control
        ({"addressType": "FQDN"}, False),
        ({"ports": None}, False),
        ({"ports": [{"name": "metrics", "port": 9}, {"name": "other", "port": 7}]}, False),
        ({"ports": [{"name": "metrics", "port": 9}, {"name": "node", "port": 7443}]}, True),
        ({"ports": [{"name": "", "port": 7443}]}, True),
        ({"endpoints": None}, False),
    ],
)
def test_what_is_no_node_is_left_out(change: dict[str, Any], *, found: bool) -> None:
    each = {**endpoint_slice("s", 7443, _four()), **change}
    assert (pods_in([each], {}) == {"a": FOUR}) == found

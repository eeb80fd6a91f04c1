"""What of `tests/server` does not pass through a gateway, with the reason of each.

Used where `switch` is on. What `FAILS` names is run and has to fail, so that an entry that is no
longer true is found; what `OTHERS` names is no matter of a gateway's, and is not run there.
"""

# ruff: noqa: E501 - ids of tests are as long as they are
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BELOW = "tests/server/"
_FAILS: Mapping[str, tuple[str, ...]] = {
    "what ran is in the audits of nodes, and the gateways of these tests keep none": (
        "sandboxes/test_server_images.py::test_sandbox_on_an_image_that_is_pulled_on_demand",
        "sandboxes/test_server_network.py::test_the_audit_tells_of_each_connection",
        "sandboxes/test_server_network.py::test_what_is_denied_is_refused_and_told",
        "sandboxes/test_server_packages.py::test_installed_into_a_live_sandbox_and_audited",
        "sandboxes/test_server_volumes.py::test_files_outlive_the_sandbox",
        "state/test_server_history.py::test_a_work_area_is_kept_compared_and_rolled_back",
        "templates/test_server_templates.py::test_audit_has_builds_and_removals",
        "mcp/test_mcp_server.py::test_quotas_and_audit_hold_for_tools",
    ),
    "the gateways of these tests have no directory, so they make no keys; tests/cluster/tenants has those": (
        "sandboxes/test_server_ports_attack.py::test_signed_addresses_end_with_the_key_that_signed_them",
    ),
    "ids have the name of a node in front, so that its texts are compared with their ids in them": (
        "tenants/test_server_ownership.py::test_things_of_others_are_as_if_there_were_none",
    ),
    "an id of no node is refused before a node is asked": (
        "tenants/test_server_ownership.py::test_every_route_wants_the_scope_it_says[DELETE /templates/builds/{build_id}]",
        "http/test_server_bad_input.py::test_no_route_takes_a_query_that_it_does_not_have",
    ),
    "a refused body is dropped up to 8 MiB, and its connection has no other request": (
        "http/test_server_guards.py::test_refused_body_is_taken_to_its_end_from_who_has_a_key[X-API-Key: alice-key-0123456789abcdef0123456789abcdef\\r\\n-25165824-True]",
        "http/test_server_guards.py::test_small_body_is_read_before_its_refusal[length]",
        "http/test_server_guards.py::test_small_body_is_read_before_its_refusal[chunks]",
    ),
    "an offer of a WebSocket with a body is refused, not ignored": (
        "http/test_server_upgrades.py::test_honest_request_keeps_its_body[False-two connections]",
        "http/test_server_upgrades.py::test_honest_request_keeps_its_body[True-two connections]",
    ),
    "requests that come together with an offer to switch are refused": (
        "http/test_server_upgrades.py::test_requests_behind_offers_are_answered_each",
    ),
    "the key is looked at before the form of a WebSocket's head, whose headers may be longer": (
        "http/test_server_upgrades.py::test_refused_websocket_is_answered_and_closed[long header]",
        "http/test_server_upgrades.py::test_refused_websocket_is_answered_and_closed[no WebSocket key]",
        "http/test_server_upgrades.py::test_refused_websocket_is_answered_and_closed[long path]",
    ),
    "a wrong token is 404 also beside a bearer": (
        "sandboxes/test_server_ports.py::test_bearer_of_the_inside_passes_beside_a_token",
    ),
    "a batch above the budget is refused as a whole": (
        "http/test_server_large_bodies.py::test_lines_of_batches_that_never_end_are_refused_one_by_one",
    ),
    "a gateway does not close idle connections to make room": (
        "http/test_server_connections_attack.py::test_connections_that_nobody_uses_give_way",
    ),
    "a signature names no key, so it opens nothing behind a gateway": (
        "doors/e2b/test_e2b_access.py::test_a_signature_opens_a_file_for_what_was_signed_until_it_expires",
        "doors/e2b/test_e2b_files.py::test_a_signed_address_reads_and_writes_one_file",
        "doors/e2b/test_e2b_files.py::test_a_part_of_a_file_is_read",
    ),
    "a visitor without a token names no key, so ports are not public behind a gateway": (
        "doors/e2b/test_e2b_access.py::test_where_the_operator_permits_it_ports_are_public_unless_the_client_says_no",
    ),
    "a client that resets its connection while it is not read is seen to have left by the node's pings alone, within 40 s": (
        "streams/test_server_leaving.py::test_terminal_that_reads_nothing_ends_with_its_client",
    ),
}
_OTHERS: Mapping[str, tuple[str, ...]] = {
    "it looks for requests in the node's log that end on their way to the node": (
        "streams/test_server_leaving.py::test_upgrade_that_the_inside_never_answers_ends_with_its_client",
    ),
    "a program of a batch over its quota is refused at once, and does not wait": (
        "streams/test_server_leaving.py::test_batch_over_its_quota_ends_with_its_client",
    ),
    "it is about the memory of the server's own process, which the gateway's bounds protect": (
        "http/test_server_large_bodies.py::test_control_without_that_they_hold_what_they_send",
    ),
    "it compares times, and an id of no node is refused before a node is asked": (
        "tenants/test_server_ownership.py::test_unknown_and_foreign_take_the_same_time",
        "tenants/test_server_ownership.py::test_ids_do_not_count",
    ),
    "it asks for all numbers while a thousand programs wait, and a part that takes 5 s is left out": (
        "tenants/test_server_tenants.py::test_one_behind_a_thousand_of_another_is_served_within_two_run_times",
    ),
    "a node keeps no sandboxes over the end of its server (keep_sessions), and tests/cluster has what its losses are": (
        "durable/",
        "state/test_durable_hibernated.py",
        "nodes/test_durable_tokens.py",
    ),
    "records are each node's, and /audit of a gateway has its own": (
        "audit/test_audit_worth.py",
        "audit/test_server_audit.py",
        "audit/test_server_audit_docs.py",
    ),
    "the gateways of these tests have no directory for keys and secrets; tests/cluster/tenants has those": (
        "tenants/test_server_keys.py",
        "tenants/test_server_key_store.py",
        "tenants/test_server_secrets.py",
    ),
    "it is about servers that are no nodes behind a gateway, and their names": (
        "nodes/test_server_node.py",
    ),
    "it counts the records of the server's own log, where the gateway's probes are, too": (
        "audit/test_server_watching.py::test_a_hostile_request_cannot_write_records",
        "audit/test_server_watching.py::test_each_request_is_one_record",
    ),
    "it starts a server at another address than a node of these tests has": (
        "audit/test_server_watching.py::test_metrics_off_this_machine_need_a_token",
    ),
}


def _by_name(reasons: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    return {_BELOW + name: reason for reason, names in reasons.items() for name in names}


FAILS = _by_name(_FAILS)
"""Reason by a test's id, without its parameters or with them."""
OTHERS = _by_name(_OTHERS)
"""Reason by the beginning of ids: a folder, a file, or a test."""


def mark(items: Sequence[pytest.Item]) -> None:
    """Mark what was collected."""
    for item in items:
        name = item.nodeid
        reason = FAILS.get(name, FAILS.get(name.partition("[")[0]))
        other = next((why for begins, why in OTHERS.items() if name.startswith(begins)), None)
        if other is not None:
            item.add_marker(pytest.mark.skip(reason=f"behind a gateway: {other}"))
        elif reason is not None:
            item.add_marker(pytest.mark.xfail(reason=f"behind a gateway: {reason}", strict=True))

"""The attack corpus in copies of sandboxes: the jail's own tests, with another arena.

Nothing is copied but the sandboxes: what `CORPUS` names runs again, controls and witnesses
included, in a sandbox that has become a session which was written down before. What it shows
differently is in `DEVIATIONS` with its reason, a strict xfail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from attack.corpus import (
    test_attack_calls,
    test_attack_environment,
    test_attack_files,
    test_attack_host_files,
    test_attack_leaders,
    test_attack_memory,
    test_attack_privilege,
    test_attack_processes,
    test_attack_residue,
    test_attack_sessions,
    test_attack_views,
)
from kit.attack.again import again, deviation
from kit.copies.arena import CopyArena

pytestmark = [pytest.mark.attack, pytest.mark.root]

bait = test_attack_host_files.bait
canary = test_attack_files.canary
tried_calls = test_attack_calls.tried
tried_host_files = test_attack_host_files.tried
tried_privilege = test_attack_privilege.tried
tried_views = test_attack_views.tried

CORPUS: Mapping[Any, Mapping[str, tuple[str, ...]]] = {
    test_attack_host_files: {
        "test_host_file_is_denied": (),
        "test_canary_never_came_out": (),
        "test_host_devices_are_absent": (),
        "test_special_write_is_denied": (),
        "test_system_directories_are_denied_to_writers": (),
        "test_own_interpreter_is_denied_to_writers": (),
        "test_crypto_socket_is_denied": (),
        "test_odd_tree_leaves_nothing": (),
    },
    test_attack_privilege: {
        "test_privilege_is_denied": (),
    },
    test_attack_calls: {
        "test_call_is_denied": (),
        "test_benign_twin_gets_all_it_asks_for": (),
    },
    test_attack_files: {
        "test_link_to_a_host_file_reads_nothing_of_the_host": (),
        "test_directory_link_lists_and_downloads_nothing_of_the_host": (),
        "test_flipping_a_parent_directory_moves_no_upload_outside": (),
        "test_link_at_a_name_that_is_written_leads_nowhere": (),
        "test_special_file_is_refused_within_a_second": (),
        "test_file_that_changes_while_read_comes_to_an_end": (),
    },
    test_attack_environment: {"test_detour_through_proc_ends_in_the_own_root": ()},
    test_attack_processes: {
        "test_killing_everybody_is_confined_to_the_sandbox": (),
        "test_hunting_the_agent_ends_in_a_well_formed_result": (),
        "test_forging_frames_to_the_agent_hurts_only_the_forger": (),
        "test_process_left_behind_is_gone_with_its_sandbox": ("G09", "G21"),
        "test_cpu_burned_in_short_children_is_counted": (),
    },
    test_attack_leaders: {"test_leader_of_a_session_plays_with_its_own_terminal_only": ()},
    test_attack_views: {
        "test_view_is_denied": (),
        "test_what_this_kernel_has_is_hidden": (),
        "test_environment_is_the_golden_list": (),
        "test_devices_are_the_golden_list": (),
        "test_control_group_names_say_nothing": (),
    },
    test_attack_memory: {
        "test_memory_hog_is_ended_by_the_memory_limit": (),
    },
    test_attack_residue: {
        "test_token_left_in_one_sandbox_is_found_in_no_other": (),
        "test_socket_families_that_join_sandboxes_are_denied": (),
        "test_processes_of_another_sandbox_are_out_of_reach": (),
    },
    test_attack_sessions: {
        "test_crashed_context_is_named_and_replaced": (),
        "test_blocked_cell_is_ended_by_the_wall_clock": (),
        "test_memory_hoarded_over_many_cells_ends_their_context": (),
    },
}
"""Module → test → ids of the cases that run; none named: all of them."""

_FROM_THE_TOP = (
    "a session's /usr is an overlay, whose files the kernel names from their own top: no path that "
    "was mapped, in any session"
)
DEVIATIONS: Mapping[str, Mapping[str, str]] = {
    "copy": {"test_host_file_is_denied[A12-links-to-mapped-files]": _FROM_THE_TOP}
}

for _module, _tests in CORPUS.items():
    for _name, _cases in _tests.items():
        globals()[_name] = again(getattr(_module, _name), _cases, ["copy"])


@pytest.fixture(scope="module")
def arena(request: pytest.FixtureRequest) -> Iterator[CopyArena]:
    """One engine, whose sandboxes are copies."""
    made = CopyArena()
    yield made
    assert made.copies, "no sandbox was a copy"
    made.close()


@pytest.fixture(autouse=True)
def _deviation(request: pytest.FixtureRequest) -> None:
    deviation(request, DEVIATIONS)


@pytest.fixture
def tried(request: pytest.FixtureRequest, arena: CopyArena) -> Any:
    """The probes of the module that a test comes from."""
    del arena  # they ask for it themselves; a test has it as a parameter through this one
    module = request.function.__globals__["__name__"].rpartition("test_attack_")[2]
    return request.getfixturevalue(f"tried_{module}")

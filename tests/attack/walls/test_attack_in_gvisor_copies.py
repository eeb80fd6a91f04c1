"""The attack corpus in whole copies of gVisor sandboxes: the jail's own tests, with another arena.

Nothing is copied but the sandboxes: what `CORPUS` names runs again, controls and witnesses
included, in a sandbox that was written down with its kernel and continued. A case costs three
starts, so of each group those run that could show a wall that a continued kernel has not. What is
different on gVisor is different in its copies for the same reason: `test_attack_corpus` has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from attack.corpus import (
    test_attack_environment,
    test_attack_files,
    test_attack_host_files,
    test_attack_memory,
    test_attack_processes,
    test_attack_residue,
    test_attack_sessions,
    test_attack_views,
)
from attack.walls import test_attack_corpus
from cellwall.model.errors import HostUnsupported
from conftest import require_capability
from kit.attack.again import again, deviation
from kit.copies.arena import CopyArena

pytestmark = [pytest.mark.attack, pytest.mark.root, pytest.mark.timeout(240)]

bait = test_attack_host_files.bait
canary = test_attack_files.canary
tried = test_attack_host_files.tried

CORPUS: Mapping[Any, Mapping[str, tuple[str, ...]]] = {
    test_attack_host_files: {
        "test_host_file_is_denied": (
            "A01-canary-and-shadow",
            "A04-roots-in-proc",
            "A05-descriptors",
            "A06-file-handles",
        ),
        "test_canary_never_came_out": (),
        "test_host_devices_are_absent": (),
        "test_special_write_is_denied": (
            "B03-agent",
            "B04-device-nodes",
            "B09-bind-over-system-files",
            "B18-mounts",
        ),
        "test_system_directories_are_denied_to_writers": (),
        "test_own_interpreter_is_denied_to_writers": (),
        "test_crypto_socket_is_denied": (),
        "test_odd_tree_leaves_nothing": (),
    },
    test_attack_files: {
        "test_link_to_a_host_file_reads_nothing_of_the_host": (),
        "test_directory_link_lists_and_downloads_nothing_of_the_host": (),
        "test_link_at_a_name_that_is_written_leads_nowhere": ("data.txt",),
    },
    test_attack_environment: {
        "test_detour_through_proc_ends_in_the_own_root": ("/proc/self/root",),
    },
    test_attack_processes: {
        "test_killing_everybody_is_confined_to_the_sandbox": (),
        "test_hunting_the_agent_ends_in_a_well_formed_result": (),
        "test_process_left_behind_is_gone_with_its_sandbox": ("G09", "G21"),
    },
    test_attack_views: {
        "test_environment_is_the_golden_list": (),
        "test_control_group_names_say_nothing": (),
    },
    test_attack_memory: {
        "test_memory_hog_is_ended_by_the_memory_limit": ("I01", "I02"),
    },
    test_attack_residue: {
        "test_token_left_in_one_sandbox_is_found_in_no_other": (),
        "test_processes_of_another_sandbox_are_out_of_reach": (),
    },
    test_attack_sessions: {
        "test_crashed_context_is_named_and_replaced": ("Q01-exit", "Q01-segfault"),
        "test_memory_hoarded_over_many_cells_ends_their_context": (),
    },
}
"""Module → test → ids of the cases that run; none named: all of them."""

DEVIATIONS = {
    "gvisor-copy": {
        **test_attack_corpus.DEVIATIONS["gvisor"],
        "test_environment_is_the_golden_list": "a session on gVisor has no MPLBACKEND, copied or "
        "not; `test_trees` compares a copy's variables with its source's",
    }
}

for _module, _tests in CORPUS.items():
    for _name, _cases in _tests.items():
        globals()[_name] = again(getattr(_module, _name), _cases, ["gvisor-copy"])


@pytest.fixture(scope="module")
def arena(request: pytest.FixtureRequest) -> Iterator[CopyArena]:
    """One engine, whose sandboxes are copies."""
    try:
        made = CopyArena(runtime="gvisor", isolation="kernel")
    except HostUnsupported as error:
        require_capability("gvisor", False, f"{error}; {error.remedy}")
        raise
    yield made
    assert made.copies, "no sandbox was a copy"
    made.close()


@pytest.fixture(autouse=True)
def _deviation(request: pytest.FixtureRequest) -> None:
    deviation(request, DEVIATIONS)

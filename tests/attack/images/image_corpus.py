"""What of the attack corpus runs once more on the root of an image: data, and how it is collected.

Not a test: `test_attack_image_jail`, `_docker` and `_gvisor` collect it, each for its wall. The
tests are those of `test_attack_corpus`, controls and witnesses included, run by the image's own
Python, as root inside; what concerns a user's rights runs as a user inside, too. Limits, output
and sessions are held by the same code for both, and root is the one who could do more. What differs
is in `DEVIATIONS` with its reason, a strict xfail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from attack.corpus import (
    test_attack_calls,
    test_attack_environment,
    test_attack_files,
    test_attack_host_files,
    test_attack_leaders,
    test_attack_residue,
)
from attack.walls import test_attack_corpus
from cellwall import Engine, EngineSettings
from kit.arena import Arena
from kit.attack.again import again
from kit.attack.again import deviation as differs
from kit.docker_daemon import Daemon
from kit.images.host_tree import APP, image

bait = test_attack_host_files.bait
tried = test_attack_host_files.tried
canary = test_attack_files.canary
library = test_attack_environment.library

USERS = {"root": 0, "user": APP}

JAILS_OWN: Mapping[Any, Mapping[str, tuple[str, ...]]] = {
    test_attack_calls: {
        "test_path_rewritten_during_the_call_leads_nowhere": (),
        "test_set_of_answering_calls_is_the_golden_one": (),
        "test_flood_of_splices_stays_in_its_sandbox": (),
    },
    test_attack_environment: {
        "test_hostile_variable_is_powerless": (),
        "test_hostile_directory_is_refused": (),
    },
    test_attack_host_files: {"test_set_uid_files_of_the_image_are_powerless": ()},
    test_attack_leaders: {
        "test_leader_of_a_session_does_not_hang_the_engine_with_its_terminal": ()
    },
    test_attack_residue: {
        "test_no_random_number_repeats_in_twenty_runs": (),
        "test_token_of_the_embedder_is_nowhere_in_the_sandbox": (),
        "test_program_starts_in_the_golden_state": (),
        "test_parent_and_the_fork_servers_socket_are_out_of_reach": (),
        "test_exit_hooks_and_buffers_of_the_image_are_silent": (),
    },
}
"""What runs in the jail only, and what an image could change of it."""

AS_A_USER_TOO = frozenset(
    {
        "test_canary_never_came_out",
        "test_control_group_names_say_nothing",
        "test_devices_are_the_golden_list",
        "test_end_from_outside_says_who_did_it",
        "test_environment_is_the_golden_list",
        "test_filling_the_work_area_is_ended_by_the_disk_limit",
        "test_forged_output_stays_text",
        "test_forging_frames_to_the_agent_hurts_only_the_forger",
        "test_host_devices_are_absent",
        "test_host_file_is_denied",
        "test_hunting_the_agent_ends_in_a_well_formed_result",
        "test_killing_everybody_is_confined_to_the_sandbox",
        "test_link_at_a_name_that_is_written_leads_nowhere",
        "test_own_interpreter_is_denied_to_writers",
        "test_poison_of_one_run_is_gone_in_the_next",
        "test_process_left_behind_is_gone_with_its_sandbox",
        "test_processes_of_another_sandbox_are_out_of_reach",
        "test_program_holds_nothing_but_its_three_descriptors",
        "test_set_uid_copy_is_powerless",
        "test_set_uid_files_of_the_image_are_powerless",
        "test_special_file_is_refused_within_a_second",
        "test_special_write_is_denied",
        "test_system_directories_are_denied_to_writers",
        "test_token_left_in_one_sandbox_is_found_in_no_other",
        "test_verdict_is_how_it_ended",
    }
)
"""What a user's rights decide, and one for each of the other groups."""

ON_GVISOR = (
    AS_A_USER_TOO - {"test_forging_frames_to_the_agent_hurts_only_the_forger"}
) | frozenset(
    {
        "test_benign_twin_gets_all_it_asks_for",
        "test_crash_leaves_no_core",
        "test_crashed_context_is_named_and_replaced",
        "test_crypto_socket_is_denied",
        "test_descriptor_flood_is_refused_at_the_limit",
        "test_detour_through_proc_ends_in_the_own_root",
        "test_directory_link_lists_and_downloads_nothing_of_the_host",
        "test_flood_that_a_limit_ends_is_still_counted",
        "test_full_work_area_counts_and_the_next_run_starts_clean",
        "test_ipc_objects_are_gone_with_the_sandbox",
        "test_link_to_a_host_file_reads_nothing_of_the_host",
        "test_mount_attempts_in_a_loop_are_denied",
        "test_socket_families_that_join_sandboxes_are_denied",
        "test_tracebacks_hold_no_host_path",
    }
)
"""One at least of each group: a sandbox costs a second there, and the kernel that holds the limits
is the inside's own, whatever the root is.
"""

_ITS_OWN = (
    "root's own copy in its sandbox; `test_changes_stay_in_their_sandbox` holds the image's tree"
)
_IS_ROOT = "it is root already; `test_who_left_root_does_not_come_back` has the bit's effect"
_NOT_THERE = "the image's user may make nothing at the top of the root, which is root's"
_LINK = "root may write what the link names, in its own sandbox"
_BY_EXEC = "an image's Python is started by exec and obeys its variables; what fails has its words"
_GROUPS = "setgroups and chroot answer, which root inside may call"
_ONE_WORD = "init's exe is refused inside; root outside hears the same word of its own"

_NODES = "in /dev of the inside's own kernel, whose devices they are; elsewhere refused"

_OF_ROOT = {
    "test_special_write_is_denied[B10-hard-link]": _ITS_OWN,
    "test_system_directories_are_denied_to_writers": _ITS_OWN,
    "test_own_interpreter_is_denied_to_writers": _ITS_OWN,
    "test_set_uid_copy_is_powerless": _IS_ROOT,
    "test_link_at_a_name_that_is_written_leads_nowhere[data.txt]": _LINK,
    "test_special_write_is_denied[B03-agent]": _ONE_WORD,
}
_OF_A_USER = {
    "test_special_write_is_denied[B03-agent]": _ONE_WORD,
    "test_filling_the_work_area_is_ended_by_the_disk_limit[J01-top]": _NOT_THERE,
}
_GVISORS = {
    test: why
    for test, why in test_attack_corpus.DEVIATIONS["gvisor"].items()
    if test != "test_verdict_is_how_it_ended[memory]"  # whole on an image: what fills it is no fork
}
DEVIATIONS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "jail": {
        "root": {
            **_OF_ROOT,
            "test_hostile_variable_is_powerless[python-PYTHONHOME]": _BY_EXEC,
            "test_set_of_answering_calls_is_the_golden_one": _GROUPS,
        },
        "user": {**_OF_A_USER},
    },
    "docker": {
        "root": {**test_attack_corpus.DEVIATIONS["docker"], **_OF_ROOT},
        "user": {**test_attack_corpus.DEVIATIONS["docker"], **_OF_A_USER},
    },
    "gvisor": {
        "root": {
            **_GVISORS,
            **_OF_ROOT,
            "test_special_write_is_denied[B04-device-nodes]": _NODES,
        },
        "user": {**_GVISORS, **_OF_A_USER},
    },
}
"""Runtime → user inside → test, or test[case] → why it is different there."""


_NOT_COPIED = "sandboxes on images are not copied, which `test_copies` holds"
NOT_AGAIN: Mapping[str, str] = {
    "test_attack_alone": "an image's sandbox always has a whole init",
    "test_attack_cancel": "a start is cancelled by the same code, whatever the root",
    "test_attack_sealed_files": "init's door, the same code in every root",
    "test_attack_copies": _NOT_COPIED,
    "test_attack_copies_ends": _NOT_COPIED,
    "test_attack_copies_mutated": _NOT_COPIED,
    "test_attack_counts": "numbers of a user; each sandbox on an image has ids of its own (E04)",
    "test_attack_debug_profile": "the same filter, whatever the root",
    "test_attack_faults": "faults of a jail, and images' in `test_faults_images`",
    "test_attack_frames": "the engine's reading of the channel, before any root",
    "test_attack_history": "the guest's code and the engine's, the same on every root",
    "test_attack_in_flight": "a jail without root; `test_rootless_images` has images",
    "test_attack_javascript": "a language of the template's",
    "test_attack_leaving": "an image's sandbox is never alone, so no end is foreseen",
    "test_attack_mutation": "guards left out; those of images are rows of `tests/mutants`",
    "test_attack_neighbour": "the cgroup's, which knows no root",
    "test_attack_networks": "network namespaces that serve again, with no root in them",
    "test_attack_own_ids": "a jail without root; `test_rootless_images` has images",
    "test_attack_pid_reuse": "the host's killing, which knows no root",
    "test_attack_ports": "the guest's door, the same code in every root",
    "test_attack_posture": "in `test_attack_image_root` and `test_attack_image_walls`",
    "test_attack_privilege": "its probes run in `test_attack_image_root` and `_walls`",
    "test_attack_reviewed": "a jail's init, and its smallest limits at once",
    "test_attack_root": "in `test_attack_image_shared`: locks, FIFOs and notices on an image",
    "test_attack_rounds": "the same limits in a row",
    "test_attack_shared_files": "in `test_attack_image_shared`",
    "test_attack_swap": "the cgroup's, which knows no root",
    "test_attack_templates": "about templates",
    "test_attack_terminals": "the guest's door, the same code in every root",
    "test_attack_tools": "the guest's door, the same code in every root",
    "test_attack_tools_javascript": "the guest's door, the same code in every root",
    "test_attack_volumes": "runs on templates and images itself",
    "test_attack_watches": "the guest's door, the same code in every root",
    "test_attack_words": "refused before there is a sandbox",
    "test_attack_words_passed": "refused before there is a sandbox",
    "test_root_without_cgroups": "a jail without cgroups, where an image has nothing of its own",
    "test_rootless_counts": "a jail without root; `test_rootless_images` has images",
    "test_rootless_host_refusals": "a jail without root; `test_rootless_images` has images",
    "test_rootless_images": "images of an ordinary user itself",
    "test_rootless_sandbox": "a jail without root; `test_rootless_images` has images",
    "test_rootless_snapshots": "a jail without root; `test_rootless_images` has images",
}
"""Modules of attacks that do not run on images once more, with the reason or where it is shown."""


def places_of(test: str) -> list[str]:
    """Runtime and user of each place in which a test runs, for the documentation."""
    return [
        f"{wall} {user}"
        for wall in DEVIATIONS
        if any(test in named for named in corpus_of(wall).values())
        for user in users_of(wall, test)
    ]


def users_of(wall: str, test: str) -> list[str]:
    """The users inside as whom a test runs; a plain user outside of jails for what files allow."""
    too = AS_A_USER_TOO
    if wall != "jail":
        too &= test_attack_corpus.CORPUS[test_attack_host_files].keys()
    return list(USERS) if test in too else ["root"]


def corpus_of(wall: str) -> dict[Any, dict[str, tuple[str, ...]]]:
    """Module, test and cases that run on a wall."""
    found = {module: dict(named) for module, named in test_attack_corpus.CORPUS.items()}
    if wall == "jail":
        for module, named in JAILS_OWN.items():
            found.setdefault(module, {}).update(named)
    if wall == "gvisor":
        for named in found.values():
            for name in named.keys() - ON_GVISOR:
                del named[name]
    return found


def tests_on(wall: str) -> dict[str, Callable[..., None]]:
    """The tests of a module for that wall, by name."""
    return {
        name: again(getattr(module, name), cases, users_of(wall, name))
        for module, named in corpus_of(wall).items()
        for name, cases in named.items()
    }


@pytest.fixture(scope="module")
def arena(request: pytest.FixtureRequest, image_tree: Path) -> Iterator[Arena]:
    """One engine for each user inside, on the wall of the module."""
    root = image(image_tree, USERS[request.param])
    made = _arena(request, request.module.WALL, image=root)
    yield made
    made.close()


def _arena(request: pytest.FixtureRequest, wall: str, **choice: Any) -> Arena:
    if wall == "jail":
        return Arena(**choice)
    if wall == "gvisor":
        request.getfixturevalue("gvisor_arena")  # which says why there is none
        return Arena(runtime=wall, isolation="kernel", **choice)
    state, templates = request.getfixturevalue("docker_ground")
    daemon: Daemon = request.getfixturevalue("docker_daemon")
    settings = EngineSettings(pool_min=0, pool_max=0)
    made = Arena(
        lambda: Engine(state, settings, templates=templates),
        runtime=wall,
        isolation="namespace",
        **choice,
    )
    made.containers = lambda: len(daemon.containers())
    return made


@pytest.fixture(autouse=True)
def deviation(request: pytest.FixtureRequest) -> None:
    """A strict xfail for what is different here."""
    differs(request, DEVIATIONS[request.module.WALL])

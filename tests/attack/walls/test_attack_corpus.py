"""The attack corpus on the other walls: the jail's own tests, with another arena.

Nothing is copied: what `CORPUS` names runs again in containers and on gVisor, controls and
witnesses included; where it names cases, only those, because every sandbox costs a second here.
Groups A to C, F to K, M, Q and the verdicts; D, E and H are in `test_attack_docker` and
`test_attack_gvisor` as well. What a wall shows differently is in `DEVIATIONS` with its reason, a
strict xfail: one that goes away is noticed. What does not run here is in `jail_only`, with its
reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from attack.corpus import (
    test_attack_calls,
    test_attack_disk,
    test_attack_environment,
    test_attack_files,
    test_attack_host_files,
    test_attack_leaders,
    test_attack_memory,
    test_attack_output,
    test_attack_processes,
    test_attack_residue,
    test_attack_sessions,
    test_attack_verdicts,
    test_attack_views,
)
from attack.walls import test_attack_gvisor
from cellwall import Engine, EngineSettings
from cellwall.testing.bare import BareTemplates
from kit.arena import Arena
from kit.attack import jail_only
from kit.attack.again import again, deviation
from kit.docker_daemon import Daemon
from kit.places import TESTS

pytestmark = [pytest.mark.attack, pytest.mark.root]
LEVELS = {"docker": "namespace", "docker+runsc": "kernel", "gvisor": "kernel"}

bait = test_attack_host_files.bait
tried = test_attack_host_files.tried
canary = test_attack_files.canary
library = test_attack_environment.library

CORPUS: Mapping[Any, Mapping[str, tuple[str, ...]]] = {
    test_attack_host_files: {
        "test_host_file_is_denied": (),
        "test_canary_never_came_out": (),
        "test_host_devices_are_absent": (),
        "test_special_write_is_denied": (),
        "test_system_directories_are_denied_to_writers": (),
        "test_own_interpreter_is_denied_to_writers": (),
        "test_crypto_socket_is_denied": (),
        "test_planted_start_up_files_are_gone_in_the_next_run": (),
        "test_set_uid_copy_is_powerless": (),
        "test_odd_tree_leaves_nothing": (),
        "test_crash_leaves_no_core": (),
    },
    test_attack_calls: {
        "test_ipc_objects_are_gone_with_the_sandbox": (),
        "test_benign_twin_gets_all_it_asks_for": (),
    },
    test_attack_leaders: {"test_leader_of_a_session_plays_with_its_own_terminal_only": ()},
    test_attack_files: {
        "test_link_to_a_host_file_reads_nothing_of_the_host": (),
        "test_directory_link_lists_and_downloads_nothing_of_the_host": (),
        "test_flipping_a_parent_directory_moves_no_upload_outside": (),
        "test_link_at_a_name_that_is_written_leads_nowhere": ("data.txt",),
        "test_special_file_is_refused_within_a_second": ("C07", "C08-socket", "C08-zero"),
        "test_file_that_changes_while_read_comes_to_an_end": ("C09",),
    },
    test_attack_environment: {
        "test_preloaded_library_speaks_behind_the_filter": (),
        "test_detour_through_proc_ends_in_the_own_root": ("/proc/self/root",),
    },
    test_attack_processes: {
        "test_killing_everybody_is_confined_to_the_sandbox": (),
        "test_killing_everybody_reaches_the_sentinel_unconfined": (),
        "test_process_bomb_is_ended_by_the_process_limit": ("G05", "G12"),
        "test_process_bomb_explodes_under_a_raised_limit": ("G07",),
        "test_program_that_never_ends_is_ended_by_the_wall_clock": ("G03", "G04"),
        "test_hunting_the_agent_ends_in_a_well_formed_result": (),
        "test_forging_frames_to_the_agent_hurts_only_the_forger": ("G02-noise", "G02-endless"),
        "test_forking_while_being_killed_leaves_nothing": (),
        "test_hostile_process_name_breaks_no_reader": (),
        "test_process_left_behind_is_gone_with_its_sandbox": ("G09", "G13", "G21"),
        "test_cpu_burned_in_short_children_is_counted": (),
        "test_exit_code_is_never_taken_for_a_limit": ("137",),
        "test_signal_to_oneself_is_never_taken_for_a_limit": ("SIGKILL", "SIGXCPU"),
    },
    test_attack_views: {
        "test_environment_is_the_golden_list": (),
        "test_devices_are_the_golden_list": (),
        "test_control_group_names_say_nothing": (),
        "test_tracebacks_hold_no_host_path": ("plain", "recursion", "frames"),
    },
    test_attack_memory: {
        "test_memory_hog_is_ended_by_the_memory_limit": ("I01", "I02", "I03", "I05", "I14"),
        "test_memory_hog_fits_under_a_raised_limit": ("I02", "I14"),
        "test_full_work_area_counts_and_the_next_run_starts_clean": (),
        "test_deep_recursion_is_named_as_the_programs_own_crash": (),
    },
    test_attack_disk: {
        "test_filling_the_work_area_is_ended_by_the_disk_limit": (
            "J01",
            "J01-shm",
            "J01-tmp",
            "J01-top",
            "J02",
        ),
        "test_filling_the_work_area_succeeds_under_a_raised_limit": ("J01", "J01-top", "J02"),
        "test_unlinked_file_stops_growing_at_the_disk_limit": (),
        "test_descriptor_flood_is_refused_at_the_limit": ("J05",),
        "test_pty_flood_leaves_the_host_its_own": (),
        "test_mount_attempts_in_a_loop_are_denied": (),
        "test_file_above_its_limit_is_ended_or_refused": (),
    },
    test_attack_output: {
        "test_flood_that_a_limit_ends_is_still_counted": ("wall",),
        "test_forged_output_stays_text": ("K06", "K07", "K08", "K10"),
        "test_huge_value_is_left_out_and_the_answer_says_so": ("K11-nested",),
        "test_input_of_a_program_that_does_not_read_is_bounded": (),
        "test_slow_reader_stops_the_writer_and_not_the_host": (),
        "test_output_after_the_deadline_is_not_in_the_result": (),
        "test_program_holds_nothing_but_its_three_descriptors": (),
        "test_only_output_above_the_cap_is_called_cut": ("K20-exact", "K20-one-more"),
    },
    test_attack_residue: {
        "test_token_left_in_one_sandbox_is_found_in_no_other": (),
        "test_socket_families_that_join_sandboxes_are_denied": (),
        "test_processes_of_another_sandbox_are_out_of_reach": (),
        "test_poison_of_one_run_is_gone_in_the_next": (),
    },
    test_attack_sessions: {
        "test_crashed_context_is_named_and_replaced": ("Q01-exit", "Q01-segfault", "Q01-abort"),
        "test_blocked_cell_is_ended_by_the_wall_clock": ("Q06-loop", "Q02"),
        "test_waiting_for_input_with_no_client_comes_to_an_end": (),
        "test_memory_hoarded_over_many_cells_ends_their_context": (),
        "test_hundred_cells_at_once_run_one_after_the_other": (),
        "test_sandbox_past_its_time_is_gone_with_everything": ("Q09-idle",),
    },
    test_attack_verdicts: {
        "test_verdict_is_how_it_ended": (),
        "test_end_from_outside_says_who_did_it": (),
    },
}
"""Module → test → ids of the cases that run; none named: all of them."""

IN_DOCKER_TOO = frozenset(
    {
        "test_canary_never_came_out",
        "test_crypto_socket_is_denied",
        "test_end_from_outside_says_who_did_it",
        "test_filling_the_work_area_is_ended_by_the_disk_limit",
        "test_forged_output_stays_text",
        "test_host_devices_are_absent",
        "test_host_file_is_denied",
        "test_killing_everybody_is_confined_to_the_sandbox",
        "test_own_interpreter_is_denied_to_writers",
        "test_process_left_behind_is_gone_with_its_sandbox",
        "test_processes_of_another_sandbox_are_out_of_reach",
        "test_special_write_is_denied",
        "test_system_directories_are_denied_to_writers",
        "test_token_left_in_one_sandbox_is_found_in_no_other",
        "test_verdict_is_how_it_ended",
    }
)
"""What runs on gVisor in Docker, too: how it is put together; its kernel is gVisor's as well."""

_PID_1 = "gVisor lets a program kill its pid 1: its own sandbox ends, with a name, and no other"
_NO_JOBS = "gVisor stops no reader in the background: it waits, and the wall clock ends it"
_PTYS = "the inside's kernel makes them, none of the host's"
_DISK = (
    "only gVisor's kernel sees that a work area is full: refused, and named by the program's end"
)
_INODES = "gVisor counts no files; they end at the memory limit"
_DEVICES = "/dev/fuse and /dev/net/tun of the inside's kernel, which lead nowhere"
_ONE_WORD = "init's exe lies on a read-only root, so root outside hears the same word as the inside"
_WHOLE = "the kernel kills gVisor as a whole, so there is no signal of the program's to tell"
_UNTOLD = (
    "refused by gVisor's kernel, and a daemon has one set of trace points for all its containers: "
    "contained, and not named"
)

DEVIATIONS: Mapping[str, Mapping[str, str]] = {
    "docker": {
        "test_special_write_is_denied[B03-agent]": _ONE_WORD,
        "test_pty_flood_leaves_the_host_its_own": "a container has no number of its own for pseudo "
        "terminals; the kernel keeps kernel.pty.reserve of them for the host",
    },
    "docker+runsc": {
        "test_host_file_is_denied[A03-climbing]": "a climb through a bind is ENOTDIR in gVisor",
        "test_host_devices_are_absent": _DEVICES,
        "test_special_write_is_denied[B03-agent]": _ONE_WORD,
        "test_killing_everybody_is_confined_to_the_sandbox": _PID_1,
        "test_filling_the_work_area_is_ended_by_the_disk_limit[J01]": _DISK,
        "test_filling_the_work_area_is_ended_by_the_disk_limit[J01-shm]": _DISK,
        "test_filling_the_work_area_is_ended_by_the_disk_limit[J01-tmp]": _DISK,
        "test_filling_the_work_area_is_ended_by_the_disk_limit[J01-top]": _DISK,
        "test_filling_the_work_area_is_ended_by_the_disk_limit[J02]": _INODES,
        "test_verdict_is_how_it_ended[memory]": _WHOLE,
        "test_verdict_is_how_it_ended[processes]": _UNTOLD,
        "test_verdict_is_how_it_ended[disk]": _DISK,
    },
    "gvisor": {
        "test_host_file_is_denied[A06-file-handles]": "gVisor has no file handles: ENOTSUP",
        "test_host_devices_are_absent": _DEVICES,
        "test_special_write_is_denied[B03-agent]": _ONE_WORD,
        "test_killing_everybody_is_confined_to_the_sandbox": _PID_1,
        "test_devices_are_the_golden_list": _DEVICES,
        "test_leader_of_a_session_plays_with_its_own_terminal_only": _NO_JOBS,
        "test_hunting_the_agent_ends_in_a_well_formed_result": _PID_1,
        "test_forging_frames_to_the_agent_hurts_only_the_forger": "init hears who speaks with the "
        "first message only; who does not say so is not heard, and not killed for it",
        "test_control_group_names_say_nothing": "there are none: the file is empty",
        "test_pty_flood_leaves_the_host_its_own": _PTYS,
        "test_socket_families_that_join_sandboxes_are_denied": "netlink of the inside's own kernel",
        "test_verdict_is_how_it_ended[memory]": _WHOLE,
    },
}
"""Runtime → test, or test[case] → why it is different there."""


def runtimes_of(test: str) -> list[str]:
    """The runtimes on which a test of the corpus runs."""
    return [name for name in LEVELS if name != "docker+runsc" or test in IN_DOCKER_TOO]


def test_every_attack_runs_here_or_says_why_not() -> None:
    """By the names in the files: what is neither in the corpus nor explained is forgotten."""
    here = {name for named in CORPUS.values() for name in named}
    of_one_wall = {
        "test_attack_corpus",
        "test_attack_docker",
        "test_attack_gvisor",
        "test_attack_in_copies",
        "test_attack_in_gvisor_copies",
    }
    forgotten, known = [], set[str]()
    for path in (TESTS / "attack").rglob("test_*.py"):
        names = set(re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
        if path.stem not in {*of_one_wall, *jail_only.MODULES}:
            known |= names
            forgotten += sorted(names - here - jail_only.TESTS.keys())
    assert forgotten == []
    assert sorted(jail_only.TESTS.keys() - known) == []
    assert sorted(jail_only.TESTS.keys() & here) == []


def test_every_attack_runs_on_images_or_says_why_not() -> None:
    """By modules; of those of the corpus, what is left out is in the table of the jail's own."""
    from attack.images import image_corpus  # which imports this module

    here = {module.__name__.rpartition(".")[2] for module in image_corpus.corpus_of("jail")}
    here |= {"test_attack_calls", "test_attack_views"}  # in `test_attack_image_probes`, too
    found = {path.stem for path in (TESTS / "attack").rglob("test_*.py")}
    walls = {
        "test_attack_corpus",
        "test_attack_docker",
        "test_attack_gvisor",
        "test_attack_in_copies",
        "test_attack_in_gvisor_copies",
    }
    on_images = {path.stem for path in (TESTS / "attack" / "images").glob("test_*.py")}
    assert found - here - walls - on_images == image_corpus.NOT_AGAIN.keys()


for _module, _tests in CORPUS.items():
    for _name, _cases in _tests.items():
        globals()[_name] = again(getattr(_module, _name), _cases, runtimes_of(_name))


@pytest.fixture(scope="module")
def arena(request: pytest.FixtureRequest) -> Iterator[Arena]:
    """One engine for each of the other runtimes."""
    name: str = request.param
    if name == "gvisor":
        yield request.getfixturevalue("gvisor_arena")
        return
    state, templates = request.getfixturevalue("docker_ground")
    made = _containers(name, state, templates)
    daemon: Daemon = request.getfixturevalue("docker_daemon")
    made.containers = lambda: len(daemon.containers())
    yield made
    made.close()


def _containers(name: str, state: Path, templates: BareTemplates) -> Arena:
    settings = EngineSettings(pool_min=0, pool_max=0)
    return Arena(
        lambda: Engine(state, settings, templates=templates), runtime=name, isolation=LEVELS[name]
    )


@pytest.fixture(autouse=True)
def _deviation(request: pytest.FixtureRequest) -> None:
    deviation(request, DEVIATIONS)


@pytest.mark.parametrize("arena", ["docker+runsc"], indirect=True)
@pytest.mark.parametrize("probe", test_attack_gvisor.PROBES)
def test_what_is_reached_is_the_insides_own(arena: Arena, probe: str) -> None:
    """Groups D, E and H, as without Docker."""
    test_attack_gvisor.test_what_is_reached_is_the_insides_own(arena, probe)

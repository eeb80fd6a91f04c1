"""The attack corpus on the other walls: the jail's own tests, with another arena.

Nothing is copied: what `CORPUS` names runs again in containers and on gVisor, controls and
witnesses included; where it names cases, only those, because every sandbox costs a second here.
Groups A, B, F to K, M and the verdicts; D and E are in `test_attack_docker` and
`test_attack_gvisor`, N is about fork-servers, which only the jail has. What a wall shows
differently is in `DEVIATIONS` with its reason, a strict xfail: one that goes away is noticed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import test_attack_disk
import test_attack_environment
import test_attack_files
import test_attack_gvisor
import test_attack_host_files
import test_attack_memory
import test_attack_output
import test_attack_processes
import test_attack_residue
import test_attack_verdicts
import test_attack_views
from arena import Arena
from docker_daemon import Daemon

from cellwall import Engine, EngineSettings
from cellwall.testing.bare import BareTemplates

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
    },
    test_attack_files: {
        "test_link_to_a_host_file_reads_nothing_of_the_host": (),
        "test_flipping_a_parent_directory_moves_no_upload_outside": (),
    },
    test_attack_environment: {
        "test_preloaded_library_speaks_behind_the_filter": (),
        "test_detour_through_proc_ends_in_the_own_root": ("/proc/self/root",),
    },
    test_attack_processes: {
        "test_killing_everybody_is_confined_to_the_sandbox": (),
        "test_killing_everybody_reaches_the_sentinel_unconfined": (),
        "test_process_bomb_is_ended_by_the_process_limit": ("G05",),
        "test_process_bomb_explodes_under_a_raised_limit": ("G07",),
        "test_program_that_never_ends_is_ended_by_the_wall_clock": ("G04",),
        "test_process_left_behind_is_gone_with_its_sandbox": ("G09", "G21"),
        "test_cpu_burned_in_short_children_is_counted": (),
        "test_exit_code_is_never_taken_for_a_limit": ("137",),
        "test_signal_to_oneself_is_never_taken_for_a_limit": ("SIGKILL", "SIGXCPU"),
    },
    test_attack_views: {"test_environment_is_the_golden_list": ()},
    test_attack_memory: {
        "test_memory_hog_is_ended_by_the_memory_limit": ("I02", "I03", "I05"),
        "test_memory_hog_fits_under_a_raised_limit": ("I02",),
    },
    test_attack_disk: {
        "test_filling_the_work_area_is_ended_by_the_disk_limit": ("J01", "J02"),
        "test_filling_the_work_area_succeeds_under_a_raised_limit": ("J01", "J02"),
        "test_unlinked_file_stops_growing_at_the_disk_limit": (),
        "test_descriptor_flood_is_refused_at_the_limit": ("J05",),
        "test_pty_flood_leaves_the_host_its_own": (),
        "test_mount_attempts_in_a_loop_are_denied": (),
        "test_file_above_its_limit_is_ended_or_refused": (),
    },
    test_attack_output: {
        "test_flood_that_a_limit_ends_is_still_counted": ("wall",),
        "test_forged_output_stays_text": ("K06", "K10"),
        "test_program_holds_nothing_but_its_three_descriptors": (),
        "test_only_output_above_the_cap_is_called_cut": ("K20-exact", "K20-one-more"),
    },
    test_attack_residue: {
        "test_token_left_in_one_sandbox_is_found_in_no_other": (),
        "test_socket_families_that_join_sandboxes_are_denied": (),
        "test_processes_of_another_sandbox_are_out_of_reach": (),
        "test_poison_of_one_run_is_gone_in_the_next": (),
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

_PID_1 = (
    "gVisor lets a program kill its pid 1: its own sandbox ends, with a name, and nobody else's"
)
_PTYS = "the inside's kernel makes them, none of the host's"
_DISK = (
    "only gVisor's kernel sees that a work area is full: refused, and named by the program's end"
)
_INODES = "gVisor counts no files; they end at the memory limit"
_DEVICES = "/dev/fuse and /dev/net/tun of the inside's kernel, which lead nowhere"
_ONE_WORD = "init's exe lies on a read-only root, so root outside hears the same word as the inside"
_WHOLE = "the kernel kills gVisor as a whole, so there is no signal of the program's to tell"
_UNTOLD = "refused by gVisor's kernel, which tells nobody outside: contained, and not named"
_UNCOUNTED = "the verdict is the same; how many there were at most is not counted outside"

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
        "test_filling_the_work_area_is_ended_by_the_disk_limit[J02]": _INODES,
        "test_verdict_is_how_it_ended[memory]": _WHOLE,
        "test_verdict_is_how_it_ended[processes]": _UNTOLD,
        "test_verdict_is_how_it_ended[disk]": _DISK,
    },
    "gvisor": {
        "test_host_file_is_denied[A06-file-handles]": "gVisor has no file handles: ENOTSUP",
        "test_host_devices_are_absent": _DEVICES,
        "test_special_write_is_denied[B03-agent]": _ONE_WORD,
        "test_special_write_is_denied[B04-device-nodes]": "a node is made in the inside's kernel, "
        "which has none of the host's devices behind it",
        "test_special_write_is_denied[B19-extended-attributes]": "kept by the inside's kernel, "
        "in memory that counts",
        "test_killing_everybody_is_confined_to_the_sandbox": _PID_1,
        "test_process_bomb_is_ended_by_the_process_limit[G05]": _UNCOUNTED,
        "test_filling_the_work_area_is_ended_by_the_disk_limit[J01]": _DISK,
        "test_filling_the_work_area_is_ended_by_the_disk_limit[J02]": _INODES,
        "test_pty_flood_leaves_the_host_its_own": _PTYS,
        "test_socket_families_that_join_sandboxes_are_denied": "netlink of the inside's own kernel",
        "test_verdict_is_how_it_ended[memory]": _WHOLE,
        "test_verdict_is_how_it_ended[disk]": _DISK,
    },
}
"""Runtime → test, or test[case] → why it is different there."""


def runtimes_of(test: str) -> list[str]:
    """The runtimes on which a test of the corpus runs."""
    return [name for name in LEVELS if name != "docker+runsc" or test in IN_DOCKER_TOO]


def _elsewhere(test: Callable[..., None], cases: tuple[str, ...]) -> Callable[..., None]:
    """The same test on the other runtimes, with those of its cases that are named."""
    assert isinstance(test, FunctionType)
    made = FunctionType(
        test.__code__, test.__globals__, test.__name__, test.__defaults__, test.__closure__
    )
    made.__doc__, made.__annotations__ = test.__doc__, test.__annotations__
    marks = [
        _cut(mark, cases) if cases and mark.name == "parametrize" else mark
        for mark in getattr(test, "pytestmark", [])
    ]
    if {"arena", "tried"} & set(inspect.signature(test).parameters):
        where = pytest.mark.parametrize(
            "arena", runtimes_of(test.__name__), indirect=True, scope="module"
        )
        marks.append(where.mark)
    setattr(made, "pytestmark", marks)  # noqa: B010 - pytest's, which functions do not declare
    return made


def _cut(mark: pytest.Mark, wanted: tuple[str, ...]) -> pytest.Mark:
    kept = [case for case in mark.args[1] if str(getattr(case, "id", case)) in wanted]
    assert len(kept) == len(wanted), f"{mark.args[0]}: {wanted} are not all there"
    return pytest.mark.parametrize(mark.args[0], kept).mark


for _module, _tests in CORPUS.items():
    for _name, _cases in _tests.items():
        globals()[_name] = _elsewhere(getattr(_module, _name), _cases)


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
    spec = getattr(request.node, "callspec", None)
    if spec is None or "arena" not in spec.params:
        return
    runtime = spec.params["arena"]
    case = spec.id.removeprefix(f"{runtime}-").removesuffix(f"-{runtime}")
    test, known = request.node.originalname, DEVIATIONS[runtime]
    reason = known.get(test) or known.get(f"{test}[{case}]")
    if reason is not None:
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.mark.parametrize("arena", ["docker+runsc"], indirect=True)
@pytest.mark.parametrize("probe", ["probe_privilege", "probe_calls"])
def test_what_is_reached_is_the_insides_own(arena: Arena, probe: str) -> None:
    """Groups D and E, as without Docker."""
    test_attack_gvisor.test_what_is_reached_is_the_insides_own(arena, probe)

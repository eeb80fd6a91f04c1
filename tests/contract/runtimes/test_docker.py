"""The `docker` runtime keeps the contract in a daemon of our own, as such and with gVisor."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from cellwall.engine.engine import Engine
from cellwall.testing.bare import BareTemplates
from cellwall.testing.contract import RuntimeContract
from conftest import Require

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("docker_daemon")]


class OnOneGround:
    """All of them use one state directory, so that there is one image."""

    @pytest.fixture(scope="class")
    @classmethod
    def make_engine(cls, docker_ground: tuple[Path, BareTemplates]) -> Callable[[], Engine]:
        state, templates = docker_ground
        return lambda: Engine(state, templates=templates)


class TestDockerRuntime(OnOneGround, RuntimeContract):
    runtime_name = "docker"
    isolation = "namespace"
    deviations: ClassVar[dict[str, str]] = {
        "test_each_sandbox_has_a_boot_id_of_its_own": "engines mount nothing there: it is empty",
    }


_HIDDEN = (
    "gVisor's processes are not the host's, so their end cannot be seen by name; the tests of "
    "faults see by pidfd and cgroup that the whole tree is gone"
)


# The same adapter with another flag, on the wall of `test_gvisor`, and slow: `make walls` has it.
# The attacks, which `make test` has, take its answers, files, limits and verdicts as well.
@pytest.mark.slow
class TestDockerRunscRuntime(OnOneGround, RuntimeContract):
    runtime_name = "docker+runsc"
    isolation = "kernel"
    deviations: ClassVar[dict[str, str]] = {
        "test_each_sandbox_has_a_boot_id_of_its_own": "gVisor's kernel has none",
        "test_command_above_each_limit_ends_alone": "processes are contained, not told apart",
        "test_cell_with_too_many_processes_ends_alone": "contained, and not told apart; see below",
        "test_limit_leaves_no_process": _HIDDEN,
        "test_cancelled_call_leaves_no_process": _HIDDEN,
        "test_terminal_is_a_terminal": "gVisor sends no SIGWINCH and stops no job at ^Z",
        "test_too_many_processes_are_contained": "refused by gVisor's kernel, and a daemon has "
        "one set of trace points for all its containers: contained, and the verdict is the "
        "program's own end",
        "test_terminal_passes_bytes_and_cuts_nothing": "gVisor's terminals are not transparent",
    }

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _gvisor_is_there(cls, require: Require) -> None:
        found = shutil.which("runsc")
        require("runsc", found is not None, "run: apt-get install runsc")

"""Owner labels: dead is only what is certainly dead."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from cellwall.linux import owner_label


def _parts() -> list[str]:
    return owner_label.new_label().split("-")


def test_a_label_names_boot_namespace_pid_and_start() -> None:
    boot, namespace, pid, started, _ = _parts()
    assert re.fullmatch(r"[0-9a-f]{8}", boot)
    assert int(namespace) == os.stat("/proc/self/ns/pid").st_ino
    assert (int(pid), int(started)) == (os.getpid(), owner_label.start_time(os.getpid()))


def test_two_engines_of_one_process_have_two_labels() -> None:
    assert owner_label.new_label() != owner_label.new_label()


def test_the_living_are_not_dead() -> None:
    assert not owner_label.is_dead(owner_label.new_label())


def test_a_process_that_ended_is_dead() -> None:
    program = "from cellwall.linux import owner_label as owner; print(owner.new_label())"
    path = os.path.dirname(os.path.dirname(os.path.dirname(owner_label.__file__)))
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": path},
    )
    assert owner_label.is_dead(done.stdout.strip())


def test_a_zombie_counts_as_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert owner_label.start_time(child.pid) is None
    finally:
        child.wait()


@pytest.mark.parametrize(
    ("index", "value", "dead"),
    [
        pytest.param(0, "00000000", True, id="other boot"),
        pytest.param(2, "4194303", True, id="no such pid"),
        pytest.param(3, "1", True, id="pid reused"),
    ],
)
def test_each_part_of_a_label_counts(index: int, value: str, dead: bool) -> None:
    parts = _parts()
    parts[index] = value
    assert owner_label.is_dead("-".join(parts)) is dead
    assert owner_label.is_dead_in_this_boot("-".join(parts)) is (dead and index != 0)


def test_masked_boot_id_is_not_the_end_of_what_no_reboot_leaves() -> None:
    """systemd-nspawn gives each container a boot id of its own; pid namespaces tell them apart."""
    _, namespace, pid, started, nonce = _parts()
    assert not owner_label.is_dead_in_this_boot(
        f"00000000-{int(namespace) + 1}-{pid}-{started}-{nonce}"
    )
    assert owner_label.is_dead_in_this_boot(f"00000000-{namespace}-{pid}-1-{nonce}")


def test_who_lives_in_another_pid_namespace_is_not_ours_to_judge() -> None:
    """Its pid says nothing here, where nobody has it, or somebody else."""
    boot, _, _, started, token = _parts()
    assert not owner_label.is_dead(f"{boot}-1-4194303-{started}-{token}")


@pytest.mark.parametrize("label", ["", "engine", "../../etc", "a-b-c-d-e", "1-2-3-4-5-6"])
def test_what_is_no_label_of_ours_is_left_alone(label: str) -> None:
    assert not owner_label.is_dead(label)
    assert not owner_label.is_dead_in_this_boot(label)

"""The posture check: the exact confinement passes, every single deviation from it does not."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import pytest

from cellwall.jail import plan, posture
from cellwall.jail.steps import Lockdown

NAMESPACES = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
HOST = {name: f"{name}:[1]" for name in NAMESPACES}
UID, GID = 1879048193, 1879048194
LIMITS = {
    "Max core file size": ("1", "1"),
    "Max file size": ("67108864", "67108864"),
    "Max open files": ("256", "256"),
    "Max locked memory": ("0", "0"),
    "Max msgqueue size": ("0", "0"),
    "Max nice priority": ("0", "0"),
    "Max realtime priority": ("0", "0"),
    "Max pending signals": ("1024", "1024"),
    "Max processes": ("102", "102"),
}
GOOD: dict[str, Any] = {
    "Uid": "\t".join([str(UID)] * 4),
    "Gid": "\t".join([str(GID)] * 4),
    "Groups": "",
    "CapInh": "0" * 16,
    "CapPrm": "0" * 16,
    "CapEff": "0" * 16,
    "CapBnd": "0" * 16,
    "CapAmb": "0" * 16,
    "NoNewPrivs": "1",
    "Seccomp": "2",
    "namespaces": {name: f"{name}:[2]" for name in NAMESPACES},
    "uid_map": ("1000", str(UID), "1"),
    "gid_map": ("1000", str(GID), "1"),
    "limits": LIMITS,
    "cgroups": frozenset({"memory:cellwall.engine/sandbox"}),
}


def _lockdown(*, rootless: bool = False) -> Lockdown:
    shape = plan.Shape(1, 512, 256, 1000, 100, 64, 256, rootless=rootless)
    facts = plan.HostFacts((), ("usr",), (), (), (), (), ("processor: 0\n",), "6", "#1", 40, 4)
    return plan.sandbox_plan(facts, shape).lockdown


def _want(*, rootless: bool = False) -> posture.Expectation:
    lockdown = _lockdown(rootless=rootless)
    return posture.expected(lockdown, (UID, GID), {"memory:cellwall.engine/sandbox"}, HOST)


def _found(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    facts = copy.deepcopy(GOOD)
    change(facts)
    return facts


def _set(name: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda facts: facts.__setitem__(name, value)


def _in(group: str, name: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda facts: facts[group].__setitem__(name, value)


def test_the_exact_confinement_passes() -> None:
    posture.compare(7, GOOD, _want())


_ONE_CAPABILITY = "0000000000200000"
DEVIATIONS: list[tuple[str, Callable[[dict[str, Any]], None]]] = [
    *((f"Uid {n}", _set("Uid", "\t".join(["0" if i == n else str(UID) for i in range(4)])))
      for n in range(4)),
    *((f"Gid {n}", _set("Gid", "\t".join(["0" if i == n else str(GID) for i in range(4)])))
      for n in range(4)),
    ("Groups", _set("Groups", "27 100")),
    *((name, _set(name, _ONE_CAPABILITY))
      for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")),
    ("NoNewPrivs", _set("NoNewPrivs", "0")),
    ("Seccomp off", _set("Seccomp", "0")),
    ("Seccomp strict", _set("Seccomp", "1")),
    *((f"{name} namespace", _in("namespaces", name, HOST[name])) for name in NAMESPACES),
    ("uid_map wide", _set("uid_map", ("0", "0", "4294967295"))),
    ("uid_map two", _set("uid_map", (*GOOD["uid_map"], "0", "0", "1"))),
    ("gid_map", _set("gid_map", ("1000", str(UID), "1"))),
    *((f"{name} soft", _in("limits", name, ("unlimited", LIMITS[name][1]))) for name in LIMITS),
    *((f"{name} hard", _in("limits", name, (LIMITS[name][0], "unlimited"))) for name in LIMITS),
    *((f"{name} missing", lambda facts, name=name: facts["limits"].pop(name)) for name in LIMITS),
    ("cgroup", _set("cgroups", frozenset({"/init.scope"}))),
    *((f"{name} not reported", _set(name, "not reported"))
      for name in ("Uid", "Gid", "Groups", "CapEff", "NoNewPrivs", "Seccomp")),
]  # fmt: skip


@pytest.mark.parametrize(
    "change", [change for _, change in DEVIATIONS], ids=[name for name, _ in DEVIATIONS]
)
def test_each_single_deviation_is_found(change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(posture.PostureMismatch) as caught:
        posture.compare(7, _found(change), _want())
    assert len(caught.value.differences) == 1


def test_every_fact_has_a_deviation_above() -> None:
    """A new fact in `read` needs a line in the table."""
    changed = set()
    for _, change in DEVIATIONS:
        facts = _found(change)
        changed |= {name for name in GOOD if facts[name] != GOOD[name]}
    assert changed == set(posture.read(os.getpid())) == set(GOOD)


def test_every_limit_of_the_plan_is_compared() -> None:
    assert set(_want().limits) == set(LIMITS)
    assert len(_lockdown().rlimits) == len(LIMITS)


def test_the_message_names_process_field_and_both_values() -> None:
    with pytest.raises(posture.PostureMismatch) as caught:
        posture.compare(7, _found(_set("Seccomp", "0")), _want())
    assert str(caught.value) == "posture of process 7: Seccomp: expected '2', kernel says '0'"


def test_rootless_expects_the_groups_that_cannot_be_left() -> None:
    ours = " ".join(map(str, os.getgroups()))
    posture.compare(7, _found(_set("Groups", ours)), _want(rootless=True))
    with pytest.raises(posture.PostureMismatch):
        posture.compare(7, _found(_set("Groups", f"{ours} 424242")), _want(rootless=True))


# -- mounts ----------------------------------------------------------------------------------

_SAFE = frozenset({"ro", "nosuid", "nodev"})
_WORK = frozenset({"rw", "nosuid", "nodev"})
_NODE = frozenset({"rw", "nosuid"})


def _mounts() -> dict[str, frozenset[str]]:
    points = {"/": _SAFE, "/usr": _SAFE, "/dev/null": _NODE, "/proc/kcore": _SAFE}
    return points | dict.fromkeys(posture.WRITABLE, _WORK)


def test_the_mounts_of_a_jail_pass() -> None:
    posture.compare_mounts(7, list(_mounts().items()))


@pytest.mark.parametrize(
    ("point", "options", "missing"),
    [
        ("/usr", {"ro", "nodev"}, "nosuid"),
        ("/usr", {"ro", "nosuid"}, "nodev"),
        ("/usr", {"rw", "nosuid", "nodev"}, "ro"),
        ("/", {"rw", "nosuid", "nodev"}, "ro"),
        ("/tmp", {"rw", "nodev"}, "nosuid"),
        ("/tmp", {"rw", "nosuid"}, "nodev"),
        ("/surprise", {"rw", "nosuid", "nodev"}, "ro"),
    ],
)
def test_each_weak_mount_is_found(point: str, options: set[str], missing: str) -> None:
    found = _mounts() | {point: frozenset(options)}
    with pytest.raises(posture.PostureMismatch) as caught:
        posture.compare_mounts(7, list(found.items()))
    assert caught.value.differences[f"mount {point}"][0] == missing


@pytest.mark.parametrize("point", sorted(posture.WRITABLE))
def test_a_missing_work_area_is_found(point: str) -> None:
    found = _mounts()
    del found[point]
    with pytest.raises(posture.PostureMismatch, match="absent"):
        posture.compare_mounts(7, list(found.items()))


def test_the_topmost_mount_of_a_point_decides() -> None:
    below = [("/surprise", _WORK), *_mounts().items(), ("/surprise", _SAFE)]
    posture.compare_mounts(7, below)
    with pytest.raises(posture.PostureMismatch):
        posture.compare_mounts(7, [*below, ("/surprise", _WORK)])


# -- reading the kernel ----------------------------------------------------------------------


def test_this_very_process_is_no_sandbox() -> None:
    """What `read` brings back of an ordinary process fails; so it reads the real thing."""
    with pytest.raises(posture.PostureMismatch) as caught:
        posture.compare(os.getpid(), posture.read(os.getpid()), _want())
    assert {"Uid", "Gid", "uid_map", "Seccomp", "cgroup"} <= set(caught.value.differences)


def test_host_namespaces_are_our_own() -> None:
    assert posture.read(os.getpid())["namespaces"] == posture.host_namespaces()


def test_a_process_that_is_gone_has_no_posture() -> None:
    with pytest.raises(OSError, match="No such file"):
        posture.read(4_194_304)

"""The posture check: the exact confinement passes, every single deviation from it does not."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellwall.jail.inspect import posture
from cellwall.jail.plan import plan
from cellwall.jail.plan.steps import Lockdown

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
    return posture.expected(
        lockdown, posture.HostIds((UID, GID)), {"memory:cellwall.engine/sandbox"}, HOST
    )


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


_ROOT = (1879113727, 1879113728)


def _with_root(change: Callable[[dict[str, Any]], object] = lambda _: None) -> dict[str, Any]:
    facts = _found(change)
    for name, root in zip(("uid_map", "gid_map"), _ROOT, strict=True):
        facts[name] = (*facts[name], "0", str(root), "1")
    return facts


def test_root_has_the_id_that_is_set_aside_for_it_and_no_process() -> None:
    cgroups = {"memory:cellwall.engine/sandbox"}
    want = posture.expected(_lockdown(), posture.HostIds((UID, GID), _ROOT), cgroups, HOST)
    posture.compare(7, _with_root(), want)
    wrong = (
        GOOD,
        _with_root(_set("Uid", "\t".join([str(_ROOT[0])] * 4))),
        _with_root() | {"uid_map": (*GOOD["uid_map"], "0", "0", "1")},
        _with_root() | {"gid_map": (*GOOD["gid_map"], "0", str(_ROOT[1]), "2")},
    )
    for facts in wrong:
        with pytest.raises(posture.PostureMismatch):
            posture.compare(7, facts, want)


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
_NODE = frozenset({"ro", "nosuid"})


def _mounts() -> dict[str, frozenset[str]]:
    points = {"/usr": _SAFE, "/dev/null": _NODE, "/proc": _SAFE, "/proc/kcore": _SAFE}
    return points | dict.fromkeys(posture.WRITABLE, _WORK)


def test_the_mounts_of_a_jail_pass() -> None:
    posture.compare_mounts(7, list(_mounts().items()))


@pytest.mark.parametrize(
    ("point", "options", "missing"),
    [
        ("/usr", {"ro", "nodev"}, "nosuid"),
        ("/usr", {"ro", "nosuid"}, "nodev"),
        ("/usr", {"rw", "nosuid", "nodev"}, "ro"),
        ("/proc", {"rw", "nosuid", "nodev"}, "ro"),
        ("/tmp", {"rw", "nosuid", "nodev"}, "ro"),
        ("/", {"rw", "nodev"}, "nosuid"),
        ("/", {"rw", "nosuid"}, "nodev"),
        ("/surprise", {"rw", "nosuid", "nodev"}, "ro"),
        ("/dev/null", {"rw", "nosuid"}, "ro"),
        ("/dev/surprise", {"rw", "nosuid"}, "ro"),
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


# -- what was verified once ------------------------------------------------------------------
#
# A verifier that has seen one good process recognises the next by its text. Each deviation is
# therefore shown to one that knows the good text, not to a new one, which compares everything.


class Process(int):
    """A pid whose /proc is a directory of the test's, written as the kernel writes it."""

    place: Path

    def __format__(self, spec: str) -> str:
        """Where it is, as seen from /proc."""
        return f"..{self.place}"


Make = Callable[..., Process]
Mounts = dict[str, frozenset[str]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """`make(facts, mounts)`: the process that shows them."""

    def process(facts: dict[str, Any] = GOOD, mounts: Mounts | None = None) -> Process:
        made = Process(7)
        made.place = Path(tempfile.mkdtemp(dir=tmp_path))
        for name, text in _files(facts, mounts or _mounts()).items():
            made.place.joinpath(name).write_text(text)
        made.place.joinpath("ns").mkdir()
        for name, link in facts["namespaces"].items():
            made.place.joinpath("ns", name).symlink_to(link)
        return made

    return process


def _files(facts: dict[str, Any], mounts: Mounts) -> dict[str, str]:
    status = {name: facts[name] for name in posture._STATUS if facts[name] != "not reported"}
    status |= {"Groups": facts["Groups"] + " "} if "Groups" in status else {}
    points = [(point, ",".join(sorted(options))) for point, options in mounts.items()]
    return {
        "status": "Name:\tguest\n" + "".join(f"{k}:\t{v}\n" for k, v in status.items()),
        "limits": "Limit  Soft  Hard\n"
        + "".join(
            f"{name:<26}{soft:<21}{hard}\n" for name, (soft, hard) in facts["limits"].items()
        ),
        "uid_map": " ".join(facts["uid_map"]) + "\n",
        "gid_map": " ".join(facts["gid_map"]) + "\n",
        "cgroup": f"4:memory:/{next(iter(facts['cgroups'])).rpartition(':')[2].lstrip('/')}\n",
        "mountinfo": "".join(f"1 2 0:3 / {point} {how} - x x rw\n" for point, how in points),
        "mounts": "".join(f"x {point} x {how} 0 0\n" for point, how in points),
    }


@pytest.fixture
def knowing(make: Make) -> posture.Verifier:
    """One that has seen a good process, its mounts and what its namespaces are."""
    verifier = posture.Verifier()
    verifier.verify(make(), _want())
    verifier.verify_mounts(make(), _want())
    return verifier


LINKS = tuple(GOOD["namespaces"].values())


def test_what_was_verified_once_is_recognised(
    make: Make, knowing: posture.Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: below, it is the short way that finds each deviation."""
    monkeypatch.setattr(posture, "compare", None)
    monkeypatch.setattr(posture, "compare_mounts", None)
    assert knowing.verify(make(), _want()) == LINKS
    knowing.verify_beside(make(), _want(), LINKS)
    knowing.verify_mounts(make(), _want())


@pytest.mark.parametrize(
    "change", [change for _, change in DEVIATIONS], ids=[name for name, _ in DEVIATIONS]
)
def test_each_single_deviation_is_found_after_a_good_one(
    make: Make, knowing: posture.Verifier, change: Callable[[dict[str, Any]], object]
) -> None:
    with pytest.raises(posture.PostureMismatch):
        knowing.verify(make(_found(change)), _want())


@pytest.mark.parametrize(
    "change",
    [change for name, change in DEVIATIONS if "_map" not in name],
    ids=[name for name, _ in DEVIATIONS if "_map" not in name],
)
def test_each_single_deviation_is_found_beside_a_good_one(
    make: Make, knowing: posture.Verifier, change: Callable[[dict[str, Any]], object]
) -> None:
    """But for the id maps, which belong to a namespace that is compared."""
    with pytest.raises(posture.PostureMismatch):
        knowing.verify_beside(make(_found(change)), _want(), LINKS)


@pytest.mark.parametrize("name", NAMESPACES)
def test_namespace_of_the_fork_server_is_found_after_a_good_one(
    make: Make, knowing: posture.Verifier, name: str
) -> None:
    shared = replace(_want(), server_namespaces={name: GOOD["namespaces"][name]})
    with pytest.raises(posture.PostureMismatch, match=f"{name} namespace"):
        knowing.verify(make(), shared)


@pytest.mark.parametrize("name", NAMESPACES)
def test_namespace_of_another_sandbox_is_found_beside_the_first(
    make: Make, knowing: posture.Verifier, name: str
) -> None:
    other = make(_found(_in("namespaces", name, f"{name}:[3]")))
    with pytest.raises(posture.PostureMismatch, match="namespaces"):
        knowing.verify_beside(other, _want(), LINKS)


def test_weak_mount_is_found_after_good_ones(make: Make, knowing: posture.Verifier) -> None:
    for point in ("/usr", "/surprise"):
        with pytest.raises(posture.PostureMismatch, match=f"mount {point}"):
            knowing.verify_mounts(make(GOOD, _mounts() | {point: _WORK}), _want())

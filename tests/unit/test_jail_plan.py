"""What a jail consists of: every rule of the plan, without privileges and without a kernel."""

from __future__ import annotations

import json
import resource
from dataclasses import replace

import pytest

from cellwall.jail import plan, steps
from cellwall.jail.linux import mounts

FACTS = plan.HostFacts(
    root_links=(("bin", "usr/bin"), ("lib64", "usr/lib64")),
    root_directories=("usr", "opt32"),
    etc_copied=(("os-release", "ID=debian\n"),),
    etc_bound=("ssl/certs",),
    var_bound=("ghc",),
    proc_files=("cpuinfo", "kcore", "keys", "kmsg", "version", "tomorrows-leak"),
    proc_directories=("sys", "acpi", "irq", "net", "tomorrows-tree"),
    cpu_blocks=("processor: 0\n", "processor: 1\n", "processor: 2\n"),
    release="6.1.0",
    version="#1 SMP",
    last_capability=40,
    landlock_abi=4,
)
SHAPE = plan.Shape(
    cpus=2, memory_mb=512, disk_mb=256, inodes=1000, processes=100, file_mb=64, open_files=256
)
ROOT = plan.Root("/state/templates/t", ("/opt/python",), "/state/guest.pyz")
MIB = 1024 * 1024
NOTHING_SPECIAL = mounts.ATTR_NOSUID | mounts.ATTR_NODEV


def _of(kind: type[steps.Step], where: tuple[steps.Step, ...]) -> list[steps.Step]:
    return [step for step in where if isinstance(step, kind)]


def _files() -> dict[str, str]:
    return {s.path: s.content for s in plan.root_plan(FACTS, ROOT) if isinstance(s, steps.File)}


def _limit(shape: plan.Shape, number: int) -> tuple[int, int] | None:
    found = plan.sandbox_plan(FACTS, shape).lockdown.rlimits
    return next(((soft, hard) for n, soft, hard in found if n == number), None)


# -- the shared root -------------------------------------------------------------------------


def test_root_binds_nothing_but_what_is_named() -> None:
    bound = {s.source for s in plan.root_plan(FACTS, ROOT) if isinstance(s, steps.Bind)}
    assert bound == {
        "/usr",
        "/opt32",
        "/etc/ssl/certs",
        "/var/lib/ghc",
        "/state/templates/t",
        "/opt/python",
        "/state/guest.pyz",
    }


def test_root_binds_are_read_only_without_set_uid_or_devices() -> None:
    for step in plan.root_plan(FACTS, ROOT):
        if isinstance(step, steps.Bind):
            wanted = NOTHING_SPECIAL | mounts.ATTR_RDONLY
            assert step.attributes & wanted == wanted, step.describe()


def test_root_itself_ends_read_only() -> None:
    last = plan.root_plan(FACTS, ROOT)[-1]
    assert isinstance(last, steps.Remount)
    assert (last.path, last.attributes & mounts.ATTR_RDONLY) == ("/", mounts.ATTR_RDONLY)


def test_root_has_six_devices_and_none_of_the_machine() -> None:
    devices = {s.name for s in plan.root_plan(FACTS, ROOT) if isinstance(s, steps.Device)}
    assert devices == {"null", "zero", "full", "random", "urandom", "tty"}


def test_root_tells_no_account_of_the_host() -> None:
    files = _files()
    users = [line.split(":")[0] for line in files["/etc/passwd"].splitlines()]
    assert users == ["root", "user", "nobody"]
    assert "/etc/shadow" not in files
    assert files["/etc/resolv.conf"] == ""
    assert files["/etc/hostname"] == "cellwall\n"


def test_every_directory_is_made_before_what_lies_in_it() -> None:
    made = {"/"}
    for step in plan.root_plan(FACTS, ROOT):
        path = getattr(step, "path", "")
        if isinstance(step, (steps.Directory, steps.File, steps.Symlink)):
            parent = path.rpartition("/")[0] or "/"
            bound_above = any(path.startswith(m + "/") for m in made if m not in {"/"})
            assert parent in made or bound_above, step.describe()
        if path:
            made.add(path)


# -- the sandbox's own namespaces ------------------------------------------------------------


def test_own_counts_are_bounded_while_the_settings_can_be_reached() -> None:
    """After the sandbox's own /proc is there, and before a view covers its settings."""
    found = list(plan.sandbox_plan(FACTS, SHAPE).steps)
    settings = [step for step in found if isinstance(step, steps.Setting)]
    assert {step.path.rpartition("/")[2]: step.value for step in settings} == {
        "max_inotify_instances": 32,
        "max_inotify_watches": 8192,
        "max_user_namespaces": 0,
    }
    (mounted,) = (n for n, step in enumerate(found) if getattr(step, "fstype", "") == "proc")
    (covered,) = (n for n, step in enumerate(found) if getattr(step, "path", "") == "/proc/sys")
    assert all(mounted < found.index(step) < covered for step in settings)
    assert all(step.path.startswith("/proc/sys/user/") for step in settings)


# -- views -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
def test_views_tell_the_quota_of_cpus(count: int) -> None:
    files = _files()
    view = f"{plan.VIEWS}/{count}"
    assert files[f"{view}/proc/cpuinfo"].count("processor") == count
    assert files[f"{view}/proc/stat"].count("\ncpu") == count
    expected = "0\n" if count == 1 else f"0-{count - 1}\n"
    assert files[f"{view}/sys/devices/system/cpu/online"] == expected


def test_views_tell_no_value_that_names_the_machine() -> None:
    files = _files()
    base = f"{plan.VIEWS}/1/proc"
    assert files[f"{base}/cmdline"] == "\n"
    assert files[f"{base}/loadavg"].startswith("0.00 0.00 0.00")
    assert files[f"{base}/sys/kernel/random/boot_id"].startswith("00000000-")


@pytest.mark.parametrize("memory_mb", [16, 512, 1_048_576])
def test_meminfo_tells_the_quota_in_kib(memory_mb: int) -> None:
    lines = dict(line.split(":") for line in plan.meminfo(memory_mb).splitlines())
    assert lines["MemTotal"].split() == [str(memory_mb * 1024), "kB"]
    assert lines["SwapTotal"].split() == ["0", "kB"]


@pytest.mark.parametrize(("cpus", "view"), [(1, 1), (2, 2), (64, 3)])
def test_a_sandbox_shows_the_view_of_its_cpus(cpus: int, view: int) -> None:
    decided = plan.sandbox_plan(FACTS, replace(SHAPE, cpus=cpus))
    sources = {s.source for s in decided.steps if isinstance(s, steps.Cover)}
    assert f"{plan.VIEWS}/{view}/proc/cpuinfo" in sources


# -- one sandbox -----------------------------------------------------------------------------


def test_proc_masks_deny_what_nobody_listed() -> None:
    covered = {step.path for step in plan.proc_masks(FACTS)}
    assert covered == {
        "/proc/kcore",
        "/proc/keys",
        "/proc/kmsg",
        "/proc/tomorrows-leak",
        "/proc/acpi",
        "/proc/irq",
        "/proc/tomorrows-tree",
    }


def test_proc_masks_never_cover_what_a_program_needs() -> None:
    everything = tuple(plan.PROC_KEPT | plan.PROC_SYNTHETIC)
    facts = replace(FACTS, proc_files=everything, proc_directories=())
    assert plan.proc_masks(facts) == ()


def test_every_synthetic_entry_of_proc_is_replaced() -> None:
    decided = plan.sandbox_plan(FACTS, SHAPE).steps
    covered = {step.path for step in decided if isinstance(step, steps.Cover)}
    assert {f"/proc/{name}" for name in plan.PROC_SYNTHETIC} <= covered


def test_proc_comes_before_its_masks_and_hides_foreign_processes() -> None:
    decided = plan.sandbox_plan(FACTS, SHAPE).steps
    first = decided[0]
    assert isinstance(first, steps.Mount)
    assert (first.fstype, first.path, first.options) == ("proc", "/proc", "hidepid=invisible")


def test_the_work_area_is_one_bounded_tmpfs() -> None:
    decided = plan.sandbox_plan(FACTS, SHAPE).steps
    tmpfs = [s for s in decided if isinstance(s, steps.Mount) and s.fstype == "tmpfs"]
    assert [s.path for s in tmpfs] == ["/tmp"]
    assert {"size=256m", "nr_inodes=1000", "uid=1000"} <= set(tmpfs[0].options.split(","))
    assert tmpfs[0].flags & mounts.MS_NOSUID
    assert tmpfs[0].flags & mounts.MS_NODEV


def test_no_step_of_a_sandbox_reaches_for_a_host_path() -> None:
    decided = plan.sandbox_plan(FACTS, SHAPE).steps
    assert _of(steps.Bind, decided) == []
    assert _of(steps.Device, decided) == []
    for step in decided:
        if isinstance(step, steps.Cover):
            assert step.source.startswith(("/opt/cellwall/", "/tmp/")), step.describe()


def test_terminals_are_new_and_few() -> None:
    decided = plan.sandbox_plan(FACTS, SHAPE).steps
    devpts = next(s for s in decided if isinstance(s, steps.Mount) and s.fstype == "devpts")
    assert {"newinstance", "max=64"} <= set(devpts.options.split(","))


# -- lockdown --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "limit"),
    [
        (resource.RLIMIT_CORE, 1),
        (resource.RLIMIT_FSIZE, 64 * MIB),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_NICE, 0),
        (resource.RLIMIT_RTPRIO, 0),
        (resource.RLIMIT_SIGPENDING, 1024),
        (resource.RLIMIT_NPROC, 102),
    ],
)
def test_lockdown_numbers(number: int, limit: int) -> None:
    assert _limit(SHAPE, number) == (limit, limit)


def test_data_is_bounded_only_where_no_cgroup_holds_memory() -> None:
    assert _limit(SHAPE, resource.RLIMIT_DATA) is None
    soft = replace(SHAPE, soft_memory=True)
    assert _limit(soft, resource.RLIMIT_DATA) == (1024 * MIB, 1024 * MIB)


def test_lockdown_becomes_an_ordinary_user() -> None:
    lockdown = plan.sandbox_plan(FACTS, SHAPE).lockdown
    assert (lockdown.uid, lockdown.gid, lockdown.umask) == (1000, 1000, 0o022)


@pytest.mark.parametrize("rootless", [True, False])
def test_groups_are_left_wherever_the_kernel_allows(rootless: bool) -> None:
    lockdown = plan.sandbox_plan(FACTS, replace(SHAPE, rootless=rootless)).lockdown
    assert lockdown.clear_groups is not rootless


def test_landlock_allows_writing_only_in_the_work_area() -> None:
    lockdown = plan.sandbox_plan(FACTS, SHAPE).lockdown
    assert lockdown.landlock_abi == FACTS.landlock_abi
    assert set(lockdown.write) == {
        plan.HOME,
        "/tmp",
        "/var/tmp",
        "/dev/shm",
        "/dev/pts",
    }
    assert not {"/", "/root", "/home", "/run"} & {*lockdown.read_exec, *lockdown.write}


# -- data ------------------------------------------------------------------------------------


def test_facts_survive_the_way_to_the_forkserver() -> None:
    assert plan.HostFacts.from_json(json.loads(json.dumps(FACTS.as_json()))) == FACTS


def test_digest_changes_with_any_limit_that_is_built_in() -> None:
    def digest(shape: plan.Shape) -> str:
        return plan.digest(plan.sandbox_plan(FACTS, shape).steps)

    assert digest(SHAPE) == digest(replace(SHAPE))
    changed = {
        digest(replace(SHAPE, disk_mb=255)),
        digest(replace(SHAPE, inodes=999)),
        digest(replace(SHAPE, memory_mb=511)),
        digest(replace(SHAPE, cpus=1)),
    }
    assert len(changed - {digest(SHAPE)}) == 4


def test_every_step_describes_itself_with_its_place() -> None:
    everything = (*plan.root_plan(FACTS, ROOT), *plan.sandbox_plan(FACTS, SHAPE).steps)
    for step in everything:
        place = getattr(step, "path", "") or getattr(step, "name", "")
        assert place in step.describe()

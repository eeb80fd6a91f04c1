"""What a jail consists of: every rule of the plan, without privileges and without a kernel."""

from __future__ import annotations

import json
import resource
import uuid

import pytest

from cellwall.jail.plan import boot_id, image_plan, plan, steps, views
from cellwall.linux.syscalls import mounts

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


@pytest.mark.parametrize(("layers", "kind"), [(0, steps.Bind), (1, steps.Layer), (2, steps.Layer)])
def test_root_shows_nothing_but_what_is_named(layers: int, kind: type[steps.Step]) -> None:
    planned = plan.root_plan(FACTS._replace(layers=layers), ROOT)
    shown = {s.source for s in planned if isinstance(s, (steps.Bind, steps.Layer))}
    assert shown == {"/usr", "/opt32", "/state/templates/t", "/opt/python"}
    assert all(isinstance(s, kind) for s in planned if isinstance(s, (steps.Bind, steps.Layer)))
    copied = {s.source for s in planned if isinstance(s, steps.Copy)}
    assert copied == {"/etc/ssl/certs", "/var/lib/ghc", "/state/guest.pyz"}


def test_root_binds_are_read_only_without_set_uid_or_devices() -> None:
    binds = [s for s in plan.root_plan(FACTS, ROOT) if isinstance(s, steps.Bind)]
    wanted = NOTHING_SPECIAL | mounts.ATTR_RDONLY
    assert binds
    for step in binds:
        assert step.attributes & wanted == wanted, step.describe()


def test_file_systems_below_a_tree_are_layers_of_their_own() -> None:
    facts = FACTS._replace(layers=1, nested=("/usr/local", "/usr/local/share"))
    layers = [s.path for s in plan.root_plan(facts, ROOT) if isinstance(s, steps.Layer)]
    places = [layers.index(path) for path in ("/usr", "/usr/local", "/usr/local/share")]
    assert places == sorted(places)


def test_sockets_in_trees_that_are_bound_are_covered() -> None:
    facts = FACTS._replace(channels=("/usr/local/share/s.sock",))
    planned = list(plan.root_plan(facts, ROOT))
    (at,) = (n for n, s in enumerate(planned) if getattr(s, "path", "") == facts.channels[0])
    bound = max(n for n, s in enumerate(planned) if isinstance(s, steps.Bind))
    assert isinstance(planned[at], steps.Cover)
    assert at > bound


def test_root_itself_ends_read_last() -> None:
    remounts = [s for s in plan.root_plan(FACTS, ROOT) if isinstance(s, steps.Remount)]
    assert [s.path for s in remounts] == [plan.OWN, "/etc", plan.VAR, "/"]
    assert all(s.attributes & mounts.ATTR_RDONLY for s in remounts)
    assert plan.root_plan(FACTS, ROOT)[-1] == remounts[-1]


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
    mounted, covered = (_last(found, f"{plan.ROOT}/proc{name}") for name in ("", "/sys"))
    assert all(mounted < found.index(step) < covered for step in settings)
    assert all(step.path.startswith(f"{plan.ROOT}/proc/sys/user/") for step in settings)


def _last(found: list[steps.Step], path: str) -> int:
    """The place of the last step at a path: what is mounted there is seen."""
    return max(n for n, step in enumerate(found) if getattr(step, "path", "") == path)


@pytest.mark.parametrize("image", [(), (0, 0)])
def test_boot_id_is_a_file_of_its_own_under_a_mount_that_is_read_last(
    image: tuple[int, ...],
) -> None:
    made = image_plan.sandbox_plan if image else plan.sandbox_plan
    found = list(made(FACTS, SHAPE._replace(image=image)).steps)
    path = f"{plan.ROOT}/proc/sys/kernel/random/boot_id"
    (written,) = (n for n, step in enumerate(found) if isinstance(step, steps.BootId))
    covers = [(n, step) for n, step in enumerate(found) if isinstance(step, steps.Cover)]
    (shown,) = (n for n, step in covers if step == steps.Cover("/tmp/boot_id", path))
    (locked,) = (
        n for n, step in enumerate(found) if getattr(step, "path", "") == path and n > shown
    )
    assert _last(found, f"{plan.ROOT}/proc/sys") < written < shown < locked
    assert isinstance(found[locked], steps.Remount)
    assert getattr(found[locked], "attributes") & mounts.ATTR_RDONLY  # noqa: B009 - any step


def test_boot_ids_are_random_and_forgotten() -> None:
    drawn = set()
    for _ in range(50):
        boot_id.draw()
        text = boot_id.TEXT.raw.decode()
        made = uuid.UUID(text.removesuffix("\n"))
        assert (f"{made}\n", made.version, made.variant) == (text, 4, uuid.RFC_4122)
        drawn.add(made)
    assert len(drawn) == 50
    assert all(len({each.bytes[at] for each in drawn}) > 3 for at in range(16))
    boot_id.forget()
    assert boot_id.TEXT.raw == b"00000000-0000-0000-0000-000000000000\n"


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
    lines = dict(line.split(":") for line in views.meminfo(memory_mb).splitlines())
    assert lines["MemTotal"].split() == [str(memory_mb * 1024), "kB"]
    assert lines["SwapTotal"].split() == ["0", "kB"]


@pytest.mark.parametrize(("cpus", "view"), [(1, 1), (2, 2), (64, 3)])
def test_a_sandbox_shows_the_view_of_its_cpus(cpus: int, view: int) -> None:
    decided = plan.sandbox_plan(FACTS, SHAPE._replace(cpus=cpus))
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
    facts = FACTS._replace(proc_files=everything, proc_directories=())
    assert plan.proc_masks(facts) == ()


def test_every_synthetic_entry_of_proc_is_replaced() -> None:
    decided = plan.sandbox_plan(FACTS, SHAPE).steps
    covered = {s.path.removeprefix(plan.ROOT) for s in decided if isinstance(s, steps.Cover)}
    assert {f"/proc/{name}" for name in plan.PROC_SYNTHETIC} <= covered


def test_proc_comes_before_its_masks_and_hides_foreign_processes() -> None:
    decided = list(plan.sandbox_plan(FACTS, SHAPE).steps)
    (proc,) = (s for s in decided if isinstance(s, steps.Mount) and s.fstype == "proc")
    assert (proc.path, proc.options) == (f"{plan.ROOT}/proc", "hidepid=invisible")
    (entered,) = (n for n, s in enumerate(decided) if isinstance(s, steps.Enter))
    masks = [decided.index(mask) for mask in plan.proc_masks(FACTS)]
    assert decided.index(proc) < entered < min(masks)


def test_proc_takes_no_change_once_its_settings_are_made() -> None:
    decided = list(plan.sandbox_plan(FACTS, SHAPE).steps)
    (shut,) = (
        n for n, s in enumerate(decided) if isinstance(s, steps.Remount) and s.path == "/proc"
    )
    assert decided[shut].attributes & mounts.ATTR_RDONLY  # type: ignore[union-attr]
    assert all(n < shut for n, s in enumerate(decided) if isinstance(s, steps.Setting))


def test_the_work_area_is_one_bounded_tmpfs() -> None:
    decided = plan.sandbox_plan(FACTS, SHAPE).steps
    tmpfs = [s for s in decided if isinstance(s, steps.Mount) and s.fstype == "tmpfs"]
    assert [s.path for s in tmpfs] == ["/tmp"]
    inodes = 1000 + plan.OWN_INODES
    assert {"size=256m", f"nr_inodes={inodes}", "uid=1000"} <= set(tmpfs[0].options.split(","))
    assert tmpfs[0].flags & mounts.MS_NOSUID
    assert tmpfs[0].flags & mounts.MS_NODEV


@pytest.mark.parametrize("has_root", [True, False])
def test_a_sandbox_s_own_root_costs_its_user_no_inode(has_root: bool) -> None:
    decided = plan.sandbox_plan(FACTS, SHAPE._replace(has_root=has_root)).steps
    kinds = (steps.Directory, steps.Symlink, steps.File)
    assert sum(isinstance(s, kinds) for s in decided) < plan.OWN_INODES


def test_no_step_of_a_sandbox_reaches_for_a_host_path() -> None:
    decided = plan.sandbox_plan(FACTS._replace(layers=2), SHAPE._replace(own_layers=True)).steps
    for kind in (steps.Bind, steps.Layer, steps.Copy, steps.Device):
        assert _of(kind, decided) == []
    for step in decided:
        if isinstance(step, steps.Cover):
            assert step.source.startswith(("/opt/cellwall/", "/tmp/", "/dev")), step.describe()


# -- the sandbox's own root ------------------------------------------------------------------


def _trees(layers: int, *, is_session: bool = True) -> dict[str, steps.Step]:
    """How each shared tree comes into the sandbox's root."""
    shape = SHAPE._replace(base_mounts=("/home/me/python",), own_layers=is_session)
    decided = plan.sandbox_plan(FACTS._replace(layers=layers), shape).steps
    wanted = ("/usr", "/opt32", plan.TEMPLATE_ROOT, "/home/me/python", plan.OWN)
    found = {s.path: s for s in decided if isinstance(s, (steps.Mount, steps.Cover))}
    return {path: found[plan.ROOT + path] for path in wanted}


def test_each_session_has_an_overlay_of_its_own_over_every_tree() -> None:
    for path, step in _trees(2).items():
        assert isinstance(step, steps.Mount)
        assert step.fstype == "overlay"
        assert step.options.startswith(f"lowerdir={path}:")
        runs = 0 if path == plan.OWN else mounts.MS_NOEXEC
        assert step.flags | runs == NOTHING_SPECIAL | mounts.MS_RDONLY | mounts.MS_NOEXEC


@pytest.mark.parametrize("layers", [0, 1])
def test_a_template_s_trees_are_taken_over_with_what_is_mounted_below(layers: int) -> None:
    for path, step in _trees(layers).items():
        assert step == steps.Cover(path, plan.ROOT + path, is_whole=True)
    assert _trees(layers) == _trees(2, is_session=False), "of one program only"


def test_masks_and_views_come_from_the_sandbox_s_own_overlay() -> None:
    decided = list(
        plan.sandbox_plan(FACTS._replace(layers=2), SHAPE._replace(own_layers=True)).steps
    )
    (entered,) = (n for n, s in enumerate(decided) if isinstance(s, steps.Enter))
    for at, step in enumerate(decided):
        if isinstance(step, steps.Cover) and step.source.startswith(plan.OWN):
            assert at > entered, step.describe()


def test_what_is_root_s_in_the_top_directory_cannot_be_moved_by_the_user() -> None:
    decided = list(plan.sandbox_plan(FACTS, SHAPE._replace(has_root=True)).steps)
    begins = decided.index(steps.FilesAs(0, 1000))
    ends = decided.index(steps.FilesAs(1000, 0))
    assert decided[begins + 1] == steps.Directory(plan.ROOT, 0o1777)
    users = [s for s in decided[begins:ends] if isinstance(s, steps.Directory) and s.owner != -1]
    assert users == [steps.Directory(plan.ROOT + plan.HOME, owner=1000)]
    others = decided[:begins] + decided[ends:]
    assert not any(getattr(s, "path", "").startswith(f"{plan.ROOT}/") for s in others
                   if isinstance(s, (steps.Directory, steps.Symlink)))  # fmt: skip


def test_without_an_id_for_root_the_top_directory_is_the_user_s() -> None:
    decided = plan.sandbox_plan(FACTS, SHAPE).steps
    assert _of(steps.FilesAs, decided) == []
    assert steps.Directory(plan.ROOT, 0o755) in decided


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
    soft = SHAPE._replace(soft_memory=True)
    assert _limit(soft, resource.RLIMIT_DATA) == (1024 * MIB, 1024 * MIB)


def test_lockdown_becomes_an_ordinary_user() -> None:
    lockdown = plan.sandbox_plan(FACTS, SHAPE).lockdown
    assert (lockdown.uid, lockdown.gid, lockdown.umask) == (1000, 1000, 0o022)


@pytest.mark.parametrize("rootless", [True, False])
def test_groups_are_left_wherever_the_kernel_allows(rootless: bool) -> None:
    lockdown = plan.sandbox_plan(FACTS, SHAPE._replace(rootless=rootless)).lockdown
    assert lockdown.clear_groups is not rootless


def test_landlock_knows_nothing_but_the_sandbox_s_own_root() -> None:
    """It was entered before: what lies outside has no rule."""
    decided = plan.sandbox_plan(FACTS, SHAPE)
    lockdown = decided.lockdown
    assert lockdown.landlock_abi == FACTS.landlock_abi
    assert (lockdown.read_exec, lockdown.write, lockdown.devices) == ((), ("/",), ("/dev",))
    assert steps.Enter(plan.ROOT) in decided.steps


# -- data ------------------------------------------------------------------------------------


def test_facts_survive_the_way_to_the_forkserver() -> None:
    assert plan.HostFacts.from_json(json.loads(json.dumps(FACTS.as_json()))) == FACTS


def test_shapes_survive_the_way_to_the_worker() -> None:
    shape = SHAPE._replace(base_mounts=("/opt/python",), has_root=True)
    assert plan.Shape.from_json(json.loads(json.dumps(shape._asdict()))) == shape


def test_digest_changes_with_any_limit_that_is_built_in() -> None:
    def digest(shape: plan.Shape) -> str:
        return plan.digest(plan.sandbox_plan(FACTS, shape).steps)

    assert digest(SHAPE) == digest(SHAPE._replace())
    changed = {
        digest(SHAPE._replace(disk_mb=255)),
        digest(SHAPE._replace(inodes=999)),
        digest(SHAPE._replace(memory_mb=511)),
        digest(SHAPE._replace(cpus=1)),
    }
    assert len(changed - {digest(SHAPE)}) == 4


def test_every_step_describes_itself_with_its_place() -> None:
    everything = (*plan.root_plan(FACTS, ROOT), *plan.sandbox_plan(FACTS, SHAPE).steps)
    for step in everything:
        place = getattr(step, "path", "") or getattr(step, "name", "")
        assert place in step.describe()

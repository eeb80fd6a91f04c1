"""Group H: attempts to learn about the host from /proc, /sys and their settings.

A probe: sent into the sandbox and to the controls behind `probe_kit`. What could be written is
only opened.
"""

import ctypes
import os

from kit.probes.probe_kit import LIBC, SETTING, attempt, each, open_to_write, read

FILES = ("environ", "maps", "mem", "stack", "syscall", "auxv", "io", "pagemap", "fd", "cwd", "exe")


def look(name: str) -> None:
    path = f"/proc/{SETTING['pid']}/{name}"
    if name == "fd":
        os.listdir(path)
    elif name in {"cwd", "exe"}:
        os.readlink(path)
    else:
        os.close(os.open(path, os.O_RDONLY))


each("H02", "root", FILES, look)

HIDDEN = ["kcore", "kallsyms", "kmsg", "timer_list", "sched_debug", "keys", "key-users", "modules"]
HIDDEN += ["latency_stats", "interrupts", "softirqs", "kpagecount", "kpageflags", "kpagecgroup"]
HIDDEN += ["slabinfo", "vmallocinfo", "iomem", "ioports", "diskstats", "partitions", "buddyinfo"]
HIDDEN += ["zoneinfo", "locks", "config.gz", "crypto", "devices", "consoles", "pressure/cpu"]
each("H03", "root", HIDDEN, lambda name: read("/proc/" + name) and None)

SETTINGS = ["kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "vm/drop_caches"]
SETTINGS += ["net/ipv4/ip_forward", "kernel/printk", "kernel/panic", "kernel/randomize_va_space"]
SETTINGS += ["vm/overcommit_memory", "fs/file-max", "kernel/pid_max", "kernel/ngroups_max"]
each("H04", "root", SETTINGS, lambda name: open_to_write("/proc/sys/" + name))

TRIGGERS = ["sysrq-trigger", "mtrr", "irq/default_smp_affinity", "acpi/wakeup", "bus/pci/00"]
each("H05", "root", TRIGGERS, lambda name: open_to_write("/proc/" + name))

GROUPS = ["memory/cgroup.procs", "memory/memory.limit_in_bytes", "memory/release_agent"]
GROUPS += ["pids/cgroup.procs", "cgroup.procs", "cgroup.subtree_control", "unified/cgroup.procs"]
each("H06", "root", GROUPS, lambda name: open_to_write("/sys/fs/cgroup/" + name))

DEVICES = ["/sys/firmware", "/sys/class/powercap", "/sys/kernel/debug", "/sys/kernel/tracing"]
DEVICES += ["/sys/kernel/security", "/sys/kernel/uevent_helper", "/sys/block", "/sys/class/net"]
DEVICES += ["/sys/module", "/sys/kernel/slab", "/sys/bus/pci", "/sys/fs/cgroup", "/sys/class/dmi"]
each("H07", "root", DEVICES, os.stat)

NAMES = ["/var/lib/cloud", "/etc/shadow", "/etc/ssh", "/etc/fstab", "/var/log", "/etc/sudoers"]
each("H11", "root", NAMES, os.stat)


@attempt("H11", "root")
def name_of_the_host() -> None:
    if SETTING["hostname"] not in {os.uname().nodename, read("/proc/sys/kernel/hostname").strip()}:
        raise OSError(2, "another name")


def boot_of_the_host(root: str) -> None:
    if read(f"{root}/proc/sys/kernel/random/boot_id").strip() != SETTING["boot_id"]:
        raise OSError(2, "another id")


ROOTS = ["", "/proc/self/root", "/proc/1/root", f"/proc/{os.getpid()}/task/{os.getpid()}/root"]
each("H11", "root", ROOTS, boot_of_the_host)


@attempt("H11", "root")
def boot_of_the_host_by_its_number() -> None:
    """sysctl(2), of kernels before 5.5: CTL_KERN, KERN_RANDOM, RANDOM_BOOT_ID."""
    names, found = (ctypes.c_int * 3)(1, 40, 3), ctypes.create_string_buffer(16)
    size, at = ctypes.c_size_t(16), ctypes.addressof
    words = (ctypes.c_size_t * 10)(at(names), 3, at(found), at(size))
    is_there = os.uname().machine == "x86_64" and not LIBC.syscall(ctypes.c_long(156), words)
    if not is_there or found.raw.hex() != SETTING["boot_id"].replace("-", ""):
        raise OSError(2, "no such call")


@attempt("H01", "root")
def process_of_the_host() -> None:
    if SETTING["host_pid"] not in os.listdir("/proc"):
        raise OSError(2, "not listed")


@attempt("H10", "root")
def interfaces() -> str:
    with open("/proc/net/dev") as file:
        names = [line.split(":")[0].strip() for line in file.readlines()[2:]]
    others = [name for name in names if name not in {"lo", "tunl0", "sit0", "ip6tnl0", "gre0"}]
    if not others:
        raise OSError(2, "only the loopback")
    return repr(others)


@attempt("H10", "root")
def listening_sockets() -> None:
    with open("/proc/net/tcp") as file:
        if SETTING["port"] not in file.read():
            raise OSError(2, "not listed")

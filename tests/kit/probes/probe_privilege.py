"""Group D: attempts at namespaces, mounts, ids, capabilities and the machine's settings.

A probe: sent into the sandbox and to the controls behind `probe_kit`. Whatever could change the
machine has arguments no kernel accepts.
"""

import contextlib
import ctypes
import errno
import os
import struct
from functools import partial

from kit.probes.probe_kit import BAD, LIBC, SETTING, attempt, call, each

NAMESPACES = {"cgroup": 1 << 25, "uts": 1 << 26, "ipc": 1 << 27, "user": 1 << 28}
NAMESPACES.update(pid=1 << 29, net=1 << 30, mount=1 << 17, time=1 << 7)
NAMES = sorted(NAMESPACES)
SIGCHLD = 17


def unshare(name: str) -> None:
    call("unshare", NAMESPACES[name])


def clone(name: str) -> None:
    if call("clone", NAMESPACES[name] | SIGCHLD, 0, 0, 0, 0) == 0:
        os._exit(0)
    os.wait()


def clone3(name: str) -> None:
    arguments = struct.pack("=11Q", NAMESPACES[name], 0, 0, 0, SIGCHLD, 0, 0, 0, 0, 0, 0)
    if call("clone3", arguments, 88) == 0:
        os._exit(0)
    os.wait()


each("D01", "space", NAMES, unshare)
# Bit 7 of the first argument is part of the exit signal; only clone3 can ask for a time namespace.
each("D02", "space", [name for name in NAMES if name != "time"], clone)
each("D03", "space", NAMES, clone3)


@attempt("D04", "user")
def unshare_command() -> None:
    if os.system("unshare -Urm mount -t tmpfs none /mnt 2>/dev/null"):
        raise OSError(1, "unshare")


def join(where: str) -> None:
    who, name = where.split("/")
    pid = SETTING["pid"] if who == "another" else "self"
    call("setns", os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY), 0)


KINDS = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
each("D05", "root", [f"{who}/{name}" for who in ("another", "own") for name in KINDS], join)


@attempt("D05", "root")
def join_all_of_a_process() -> None:
    call("setns", os.pidfd_open(int(SETTING["pid"])), NAMESPACES["net"] | NAMESPACES["uts"])


@attempt("D05", "space")
def climb_to_the_owner() -> None:
    call("ioctl", os.open("/proc/self/ns/net", os.O_RDONLY), 0xB701, 0)  # NS_GET_USERNS


def poisoned(case: str, control: str, calls: "dict[str, tuple[int | bytes | None, ...]]") -> None:
    for name, arguments in calls.items():
        attempt(case, control, name)(partial(call, name, *arguments))


HERE = SETTING["work"].encode() + b"\0"
poisoned(
    "D06",
    "space",
    {
        "mount": (b"none\0", HERE, b"tmpfs\0", 0, None),
        "umount2": (BAD, 0),
        "move_mount": (-1, BAD, -1, BAD, 0),
        "open_tree": (-1, BAD, 1),
        "fsopen": (b"tmpfs\0", 0),
        "fsconfig": (-1, 0, BAD, BAD, 0),
        "fsmount": (-1, 0, 0),
        "fspick": (-1, BAD, 0),
        "mount_setattr": (-1, BAD, 0, BAD, 0),
        "pivot_root": (BAD, BAD),
        "setns": (-1, 0),
    },
)
poisoned("D06-chroot", "space", {"chroot": (BAD,)})

COVERED = ["/proc/cmdline", "/proc/sys", "/proc/kallsyms", "/sys"]
each("D07", "space", COVERED, lambda path: call("umount2", path.encode() + b"\0", 2))
MS_REMOUNT_BIND = 0x1020
each(
    "D07",
    "space",
    [path + "/" for path in COVERED],
    lambda path: call("mount", None, path[:-1].encode() + b"\0", None, MS_REMOUNT_BIND, None),
)


def capset() -> None:
    header = struct.pack("=Ii", 0x20080522, 0)
    call("capset", header, struct.pack("=6I", 1 << 21, 1 << 21, 1 << 21, 0, 0, 0))


attempt("D08", "root", "setuid")(lambda: os.setresuid(0, 0, 0))
attempt("D08", "root", "setgid")(lambda: os.setresgid(0, 0, 0))
attempt("D08", "root", "setuid to a neighbour")(lambda: os.setuid(1001))
attempt("D08", "root", "setgroups")(lambda: os.setgroups([0]))
attempt("D08", "root", "capset")(capset)


def prctl(option: int, *arguments: int) -> None:
    words = [ctypes.c_ulong(word) for word in (*arguments, 0, 0, 0, 0)[:4]]
    if LIBC.prctl(option, *words) == -1:
        raise OSError(ctypes.get_errno(), "prctl")


@attempt("D08", "root")
def ambient_capability() -> None:
    header = struct.pack("=Ii", 0x20080522, 0)
    have = ctypes.create_string_buffer(24)
    call("capget", header, have)
    low, _, _, high, high_permitted, _ = struct.unpack("=6I", have)
    permitted = struct.unpack("=6I", have)[1]
    wanted = struct.pack("=6I", low, permitted, 1 << 13, high, high_permitted, 0)
    if permitted:
        call("capset", header, wanted)
    prctl(47, 2, 13)  # PR_CAP_AMBIENT_RAISE, CAP_NET_RAW


attempt("D10", "root", "securebits")(lambda: prctl(28, 0))
attempt("D10", "root", "tracer")(lambda: prctl(0x59616D61, 1))


@attempt("D11", "root")
def memory_of_another() -> None:
    prctl(4, 1)  # PR_SET_DUMPABLE
    os.close(os.open(f"/proc/{SETTING['pid']}/mem", os.O_RDONLY))


def write_map(name: str) -> None:
    text = {"setgroups": "deny", "uid_map": f"0 {os.getuid()} 1"}[name]
    with contextlib.suppress(OSError):
        unshare("user")
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)


each("D14", "space", ["uid_map", "setgroups"], write_map)


def oom(value: str) -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(value)


each("D15", "root", ["-1000", "-1", "999"], oom)


@attempt("D15", "space")
def below_where_it_was_raised_to() -> None:
    """What a fork-server does without the capability, and what a program may do then."""
    oom("500")
    oom("0")


attempt("D16", "root", "fifo")(lambda: call("sched_setscheduler", 0, 1, struct.pack("=i", 1)))
attempt("D16", "root", "round robin")(
    lambda: call("sched_setscheduler", 0, 2, struct.pack("=i", 1))
)
attempt("D16", "root", "nice")(lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
attempt("D16", "root", "real-time input and output")(lambda: call("ioprio_set", 1, 0, 1 << 13))


@attempt("D16", "root", "affinity")
def affinity() -> None:
    """Answered as done inside; what counts is where the kernel lets it run."""
    os.sched_setaffinity(0, range(2))
    if os.sched_getaffinity(0) != {0, 1}:
        raise OSError(errno.EPERM, "the mask is as it was")


poisoned(
    "D17",
    "root",
    {
        "reboot": (0, 0, 0, 0),
        "kexec_load": (0, 0, 0, 0xFFFF),
        "kexec_file_load": (-1, -1, 0, 0, 0xFFFF),
        "init_module": (BAD, 0, BAD),
        "finit_module": (-1, BAD, 0xFFFF),
        "delete_module": (BAD, 0),
        "swapon": (BAD, 0),
        "swapoff": (BAD,),
        "acct": (BAD,),
        "quotactl": (0xFFFF, BAD, 0, BAD),
        "settimeofday": (BAD, BAD),
        "clock_settime": (9999, BAD),
        "adjtimex": (BAD,),
        "clock_adjtime": (0, BAD),
        "sethostname": (BAD, 5),
        "setdomainname": (BAD, 5),
    },
)


# The clock, with arguments that would change nothing: what is set was read just before.
@attempt("G25", "root")
def frequency_of_the_clock() -> None:
    timex = ctypes.create_string_buffer(208)
    call("adjtimex", timex)
    struct.pack_into("=I", timex, 0, 2)  # ADJ_FREQUENCY
    call("adjtimex", timex)


@attempt("G25", "root")
def time_zone_of_the_kernel() -> None:
    zone = ctypes.create_string_buffer(8)
    call("gettimeofday", None, zone)
    call("settimeofday", None, zone)


@attempt("G25", "space")
def time_namespace_with_another_clock() -> None:
    unshare("time")
    with open("/proc/self/timens_offsets", "w") as file:
        file.write("monotonic 86400 0")


if os.uname().machine == "x86_64":
    poisoned("D18", "root", {"iopl": (4,), "ioperm": (1 << 20, 1, 1), "modify_ldt": (0, HERE, 0)})

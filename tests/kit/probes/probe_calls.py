"""Groups E and F: attempts at system calls nobody needs, and at calling past the filter.

A probe: sent into the sandbox and to the controls behind `probe_kit`.
"""

import ctypes
import mmap
import os
import signal
import struct
from functools import partial

from kit.probes.probe_kit import BAD, LIBC, NR, SETTING, attempt, call

CALLS: "dict[str, dict[str, tuple[int | bytes | None, ...]]]" = {
    "E01": {
        "io_uring_setup": (1, b"\0" * 120),
        "io_uring_enter": (-1, 0, 0, 0, 0, 0),
        "io_uring_register": (-1, 0, BAD, 0),
    },
    "E03": {"userfaultfd": (0,)},
    "E04": {"bpf": (0, struct.pack("=4I", 2, 4, 8, 1) + b"\0" * 56, 72)},
    "E05": {"perf_event_open": (BAD, 0, -1, -1, 0)},
    "E06": {
        "add_key": (BAD, BAD, BAD, 0, -2),
        "request_key": (BAD, BAD, BAD, -2),
        "keyctl": (0, -2, 0, 0, 0),
    },
    "E10": {"fanotify_init": (0, 0), "lookup_dcookie": (0, BAD, 0)},
    "E12": {"memfd_secret": (0,)},
    "E13": {"syslog": (10, 0, 0)},
}
for _case, _calls in CALLS.items():
    for _name, _arguments in _calls.items():
        attempt(_case, "root", _name)(partial(call, _name, *_arguments))


# Pages of the host's pool, which no memory limit counts. A filter has to know the flag: without a
# pool the kernel still makes the file, and complains of the mapping only because it is empty.
attempt("E12-huge", "user", "file")(partial(call, "memfd_create", b"huge\0", 4))
attempt("E12-huge", "user", "mapping")(partial(call, "mmap", 0, 0, 3, 0x40022, -1, 0))


def with_child(use: "object") -> None:
    """Do something to a child of ours that waits."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    try:
        use(pid)  # type: ignore[operator]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def vectors(pid: int) -> "tuple[int, bytes, int, bytes, int, int]":
    words = ctypes.create_string_buffer(8)
    SETTING["kept"] = str(id(words))
    vector = struct.pack("=QQ", ctypes.addressof(words), 8)
    return pid, vector, 1, vector, 1, 0


CHILDREN = {
    "attach": lambda pid: call("ptrace", 16, pid, 0, 0),
    "seize": lambda pid: call("ptrace", 0x4206, pid, 0, 0),
    "read": lambda pid: call("process_vm_readv", *vectors(pid)),
    "write": lambda pid: call("process_vm_writev", *vectors(pid)),
    "descriptor": lambda pid: call("pidfd_getfd", os.pidfd_open(pid), 0, 0),
    "compare": lambda pid: call("kcmp", os.getpid(), pid, 1, 0, 0),
}
for _what, _use in CHILDREN.items():
    _case = "E07" if _what in {"attach", "seize"} else "E08"
    attempt(_case, "user", _what + " a child")(partial(with_child, _use))
attempt("E07", "root", "seize another")(lambda: call("ptrace", 0x4206, int(SETTING["pid"]), 0, 0))
attempt("E07", "user", "be traced")(lambda: call("ptrace", 0, 0, 0, 0))


@attempt("E09", "root")
def process_of_the_host() -> None:
    fd = os.pidfd_open(int(SETTING["host_pid"]))
    signal.pidfd_send_signal(fd, 0)


@attempt("E09", "root")
def sweep_of_all_pids() -> str:
    own = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    found = set()
    for pid in range(1, int(SETTING.get("pids", 4_194_304)), 7):
        fd = LIBC.syscall(NR["pidfd_open"], pid, 0)
        if fd >= 0:
            os.close(fd)
            found.add(pid)
    if SETTING["host_pid"] in map(str, found | own) or len(own) > 20:
        return repr(len(own))
    raise OSError(3, "only our own")


def allow_all(flags: int) -> None:
    code = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000))
    program = struct.pack("=H6xQ", 1, ctypes.addressof(code))
    LIBC.prctl(38, 1, 0, 0, 0)
    call("seccomp", 1, flags, program)


attempt("E11", "user", "listener")(lambda: allow_all(8))


@attempt("E11", "space")
def weaker_filter() -> None:
    allow_all(0)
    call("unshare", 1 << 26)


def opened_families() -> "list[tuple[int, int, int]]":
    found = []
    for family in range(64):
        for kind in (1, 2, 3, 4, 5, 6, 10):
            for protocol in (0, 1, 6, 17, 33, 132, 136, 255, 256, 262):
                fd = LIBC.socket(family, kind | 0o2000000, protocol)
                if fd >= 0:
                    os.close(fd)
                    found.append((family, kind, protocol))
    return found


@attempt("E15", "root")
def families() -> str:
    plain = {(1, kind, 0) for kind in (1, 2, 5)}
    for family in (2, 10):
        plain |= {(family, 1, 0), (family, 1, 6), (family, 2, 0), (family, 2, 17)}
    found = set(opened_families())
    if not found:
        raise AssertionError("not one socket opens")
    if found <= plain:
        raise OSError(97, "only the plain ones")
    return repr(sorted(found - plain))


for _what, _socket in {
    "raw": (2, 3, 1),
    "raw six": (10, 3, 58),
    "packet": (17, 3, 768),
    "netlink": (16, 3, 0),
    "multipath": (2, 1, 262),
    "sctp": (2, 1, 132),
    "udp-lite": (2, 2, 136),
    "smc": (43, 1, 0),
    "vsock": (40, 1, 0),
    "tipc": (30, 5, 0),
    "xdp": (44, 3, 0),
}.items():
    attempt("E16", "root", _what)(partial(call, "socket", *_socket))


@attempt("E22", "user")
def typing_into_a_terminal() -> None:
    os.setsid()
    parent, child = os.openpty()
    call("ioctl", child, 0x540E, 0)  # TIOCSCTTY, so that the terminal is ours
    call("ioctl", child, 0x5412, b"x")  # TIOCSTI
    SETTING["terminal"] = str(parent)


@attempt("E22", "user")
def line_discipline() -> None:
    _, child = os.openpty()
    call("ioctl", child, 0x5423, struct.pack("=i", 0))  # TIOCSETD


@attempt("E22", "user")
def flags_of_an_inode() -> None:
    fd = os.open(f"{SETTING['work']}/flags", os.O_RDWR | os.O_CREAT)
    call("ioctl", fd, 0x40086602, struct.pack("=Q", 0))


# --- F ------------------------------------------------------------------------------------------


def foreign_entry(number: int) -> None:
    """Enter by int 0x80: the 32-bit table, whose numbers differ."""
    code = mmap.mmap(-1, 4096, prot=7)
    code.write(
        b"\x53\xb8" + struct.pack("=I", number) + b"\x31\xdb\x31\xc9\x31\xd2\xcd\x80\x5b\xc3"
    )
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    result = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    if result < 0:
        raise OSError(-result, "int 0x80")


def x32(name: str) -> None:
    if LIBC.syscall(NR[name] | 0x40000000, 0, 0, 0) == -1:
        raise OSError(ctypes.get_errno(), name)


if os.uname().machine == "x86_64":
    for _what, _number in {"getpid": 20, "socketcall": 102, "mount": 21, "unshare": 310}.items():
        attempt("F02", "user", _what)(partial(foreign_entry, _number))
    for _what in ("getpid", "mount", "ptrace"):
        attempt("F03", "user", _what)(partial(x32, _what))


@attempt("F04", "space")
def clone3_with_flags_in_memory() -> None:
    arguments = struct.pack("=11Q", 1 << 26, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
    if call("clone3", arguments, 88) == 0:
        os._exit(0)


@attempt("F04", "space")
def clone3_of_a_future_size() -> None:
    arguments = struct.pack("=11Q", 0, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0) + b"\0" * 40
    if call("clone3", arguments, 128) == 0:
        os._exit(0)


# A whole ELF of 32 bits: mov eax, 1; mov ebx, 42; int 0x80.
OLD_CODE = b"\xb8\x01\0\0\0\xbb\x2a\0\0\0\xcd\x80"
OLD_ELF = b"\x7fELF\x01\x01\x01" + b"\0" * 9
OLD_ELF += struct.pack("=HHIIIIIHHHHHH", 2, 3, 1, 0x8048054, 52, 0, 0, 52, 32, 1, 0, 0, 0)
OLD_ELF += struct.pack("=8I", 1, 0, 0x8048000, 0x8048000, 96, 96, 5, 4096) + OLD_CODE


@attempt("F08", "user")
def program_of_32_bits() -> None:
    fd = os.memfd_create("old", 0)
    os.write(fd, OLD_ELF)
    pid = os.fork()
    if pid == 0:
        try:
            os.execve(fd, ["old"], {})
        except OSError as error:
            os._exit(100 + (error.errno or 0))
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    if os.WEXITSTATUS(status) != 42:
        raise OSError(os.WEXITSTATUS(status) - 100, "execve")

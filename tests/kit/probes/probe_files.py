"""Groups A and B: attempts at the host's files, and at writing where nobody may.

A probe: sent into the sandbox and to the controls behind `probe_kit`, which see. SETTING says
where the things are that this test made; only those are touched in a control.
"""

import ctypes
import mmap
import os
import stat
import struct
import sys
from functools import partial

from kit.probes.probe_kit import (
    BAD,
    CONTROL,
    OURS,
    SETTING,
    attempt,
    call,
    each,
    open_to_write,
    read,
)

CANARY = SETTING["canary"]
HERE = SETTING["work"]
SYSTEM = SETTING["system"].split(":")

# --- A: reading ---------------------------------------------------------------------------------

attempt("A01", "user", "canary")(lambda: read(CANARY))
attempt("A01", "root", "shadow")(lambda: open("/etc/shadow", "rb").close())

CLIMBS = ["../" * 40 + CANARY, "." + "/.." * 40 + CANARY, "/./" + CANARY, "//" + CANARY]
CLIMBS += ["/tmp/../../.." + CANARY, "/proc/self/cwd/" + "../" * 40 + CANARY]
each("A03", "user", CLIMBS, read)

PROC = "/proc/" + SETTING["pid"]
each("A04", "root", ["/proc/self/root", "/proc/thread-self/root"], lambda r: read(r + CANARY))
attempt("A04", "root", "root of another")(lambda: read(PROC + "/root" + CANARY))
attempt("A04", "root", "cwd of another")(lambda: read(PROC + "/cwd/../../../../.." + CANARY))


@attempt("A05", "user")
def inherited_descriptor() -> str:
    found = []
    for fd in range(3, 4096):
        try:
            os.fstat(fd)
        except OSError:
            continue
        if fd not in OURS:
            found.append(fd)
    if not found:
        raise OSError(9, "none")
    return repr(found)


@attempt("A05", "user")
def parent_of_a_descriptor() -> str:
    for fd in range(3, 4096):
        try:
            os.close(os.open("..", os.O_RDONLY, dir_fd=fd))
        except OSError:
            continue
        return str(fd)
    raise OSError(9, "none")


@attempt("A06", "root")
def guessed_file_handle() -> None:
    handle = struct.pack("=IiII", 8, 1, 2, 0)  # FILEID_INO32_GEN of inode 2
    mount = os.open("/usr", os.O_RDONLY)
    call("open_by_handle_at", mount, ctypes.create_string_buffer(handle), os.O_RDONLY)


@attempt("A06", "root")
def handle_of_a_file() -> None:
    handle = ctypes.create_string_buffer(struct.pack("=Ii128x", 128, 0))
    mount_id = ctypes.create_string_buffer(8)
    name = ctypes.create_string_buffer(b"/usr")
    call("name_to_handle_at", -100, name, handle, mount_id, 0)


each("A07", "root", SETTING["state"].split(":"), os.stat)
each("A08", "root", SETTING["installation"].split(":"), os.stat)

SECRETS = (".ssh/id_rsa", ".aws/credentials", ".docker/config.json", ".kube/config", ".netrc")
each("A09", "user", SECRETS, lambda name: read(os.path.expanduser("~/" + name)))

NODES = ["mem", "kmsg", "vda", "loop-control", "net/tun", "fuse", "kvm", "port", "hpet", "rtc0"]
NODES += ["loop0", "ttyS0", "console", "vcs", "snapshot", "vhost-net", "userfaultfd", "ram0"]
each("A11", "root", NODES, lambda name: os.close(os.open("/dev/" + name, os.O_PATH)))


def mapped() -> "tuple[mmap.mmap, list[str]]":
    """Map a file; return it with every link of /proc that leads to a file of this process."""
    with open(SETTING["mapped"], "rb") as file:
        held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    links = [f"/proc/self/{name}" for name in ("exe", "cwd", "root")]
    for folder in ("fd", "map_files"):
        links += [f"/proc/self/{folder}/{name}" for name in os.listdir(f"/proc/self/{folder}")]
    return held, [link for link in links if os.path.islink(link)]


@attempt("A12", "root")
def file_behind_a_mapping() -> str:
    held, links = mapped()
    (link,) = [n for n in links if "map_files" in n and os.readlink(n) == SETTING["mapped"]]
    return read(link) + str(held.closed)  # mapped until here


@attempt("A12", "user")
def host_path_behind_a_link() -> str:
    _, links = mapped()
    named = [os.readlink(link) for link in links]
    if SETTING["mapped"] not in named:
        raise AssertionError("what was mapped is not listed")
    found = [name for name in named if name.startswith(tuple(SETTING["host"].split(":")))]
    if not found:
        raise OSError(2, "only paths of our own root")
    return repr(found)


@attempt("A14", "user")
def link_to_the_canary() -> str:
    link = f"{HERE}/a14-{CONTROL}"
    os.symlink(CANARY, link)
    return read(link)


# --- B: writing ---------------------------------------------------------------------------------


def make_file(directory: str) -> None:
    os.close(os.open(directory + "/planted", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))


each("B01", "user", SYSTEM, make_file)
each("B08", "user", SETTING["packages"].split(":"), make_file)
attempt("B02", "root", "interpreter")(lambda: open_to_write(os.path.realpath(sys.executable)))
attempt("B02", "root", "own exe")(lambda: open_to_write("/proc/self/exe"))
attempt("B03", "root", "init's exe")(lambda: open_to_write("/proc/1/exe"))
attempt("B03", "root", "agent")(lambda: open_to_write(SETTING["agent"]))


def make_node(directory: str, kind: int, major: int, minor: int) -> None:
    os.mknod(f"{directory}/node{kind}.{major}.{minor}", kind | 0o600, os.makedev(major, minor))


for _where in (HERE, SETTING["devices"]):
    for _kind, _major, _minor in (
        (stat.S_IFCHR, 1, 3),
        (stat.S_IFBLK, 254, 0),
        (stat.S_IFCHR, 1, 11),
    ):
        attempt("B04", "root", f"{_where is HERE} {_kind} {_major}:{_minor}")(
            partial(make_node, _where, _kind, _major, _minor)
        )


@attempt("B06", "root")
def file_capability() -> None:
    path = f"{HERE}/b06"
    with open(path, "w"):
        pass
    # All capabilities, effective: vfs_cap_data of revision 2.
    os.setxattr(
        path, "security.capability", struct.pack("<5I", 0x02000001, ~0 & 0xFFFFFFFF, 0, 0, 0)
    )


@attempt("B19", "user")
def extended_attribute() -> None:
    path = f"{HERE}/b19-{CONTROL}"
    with open(path, "w"):
        pass
    os.setxattr(path, "user.filler", b"x" * 1000)


def bind_over(target: str) -> None:
    call("mount", b"/usr/share\0", target.encode() + b"\0", None, 4096, None)


each("B09", "space", ["/etc", "/usr/lib", "/proc/self/task"], bind_over)


@attempt("B10", "root")
def hard_link_to_a_system_file() -> None:
    os.link(SETTING["linked"], f"{HERE}/b10")


@attempt("B13", "root")
def sparse_file_of_a_pebibyte() -> None:
    path = "/dev/shm/b13-sparse"
    with open(path, "wb") as file:
        try:
            file.truncate(1 << 50)
        finally:
            os.unlink(path)


def set_flags(flag: int) -> None:
    path = f"{HERE}/b14.{flag}"
    fd = os.open(path, os.O_RDONLY | os.O_CREAT)
    call("ioctl", fd, 0x40086602, struct.pack("=Q", flag))  # FS_IOC_SETFLAGS
    call("ioctl", fd, 0x40086602, struct.pack("=Q", 0))


attempt("B14", "root", "immutable")(lambda: set_flags(0x10))
attempt("B14", "root", "append only")(lambda: set_flags(0x20))


def mount_new(kind: str) -> None:
    options = b"lowerdir=/usr/lib:/usr/share\0" if kind == "overlay" else None
    name = kind.encode() + b"\0"
    call("mount", name, HERE.encode() + b"\0", name, 0, options)


each("B18", "space", ["tmpfs", "proc", "overlay", "mqueue"], mount_new)


@attempt("B20", "user")
def crypto_socket() -> None:
    call("socket", 38, 5, 0)


@attempt("B20", "user")
def splice_needs_a_pipe() -> None:
    call("splice", BAD, 0, BAD, 0, 1, 0)

"""The policy text: what it must say, and how the compiler refuses text it can not honour."""

from __future__ import annotations

import errno
import socket
import subprocess
from pathlib import Path

import pytest

from cellwall.linux import seccomp
from kit.jail import seccomp_model

POLICY = seccomp.load_policy()
HEADERS = [
    "sys/ioctl.h",
    "asm/termbits.h",
    "linux/sockios.h",
    "linux/fs.h",
    "sys/prctl.h",
    "sys/socket.h",
    "linux/netlink.h",
    "netinet/in.h",
    "netinet/tcp.h",
    "netinet/udp.h",
    "fcntl.h",
    "sched.h",
    "sys/resource.h",
    "linux/seccomp.h",
    "sys/stat.h",
    "sys/mman.h",
    "sys/shm.h",
]
NEWER_THAN_THE_HEADERS = {
    *("PR_SET_MDWE", "PR_GET_MDWE", "PR_GET_AUXV"),
    *("TCP_AO_ADD_KEY", "TCP_AO_DEL_KEY", "TCP_AO_INFO", "TCP_AO_GET_KEYS", "TCP_AO_REPAIR"),
}
OUR_OWN = {
    "CLONE_NEW",
    "NOT_SCHED_RESET_ON_FORK",
    "NOT_SOCK_FLAGS",
    "PER_LINUX",
    "PER_QUERY",
    "IOPRIO_CLASS",
    "IOPRIO_BE",
    "IOPRIO_IDLE",
    "IN_READERS",
    "MFD_UNKNOWN",
}


@pytest.mark.parametrize("arch", sorted(seccomp.AUDIT_ARCH))
def test_policy_decides_every_known_call(arch: str) -> None:
    assert set(seccomp.syscall_numbers(arch)) <= set(seccomp.parse_policy(POLICY))


@pytest.mark.parametrize(
    "name",
    [
        "ptrace",
        "process_vm_readv",
        "process_vm_writev",
        "pidfd_getfd",
        "kcmp",
        "bpf",
        "perf_event_open",
        "keyctl",
        "add_key",
        "request_key",
        "userfaultfd",
        "unshare",
        "setns",
        "mount",
        "umount2",
        "pivot_root",
        "chroot",
        "open_tree",
        "move_mount",
        "fsopen",
        "fsconfig",
        "fsmount",
        "fspick",
        "mount_setattr",
        "statmount",
        "listmount",
        "open_by_handle_at",
        "name_to_handle_at",
        "fanotify_init",
        "kexec_load",
        "kexec_file_load",
        "init_module",
        "finit_module",
        "delete_module",
        "reboot",
        "swapon",
        "swapoff",
        "acct",
        "quotactl",
        "quotactl_fd",
        "settimeofday",
        "clock_settime",
        "adjtimex",
        "clock_adjtime",
        "iopl",
        "ioperm",
        "modify_ldt",
        "syslog",
        "clone3",
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
        "io_setup",
        "memfd_secret",
        "sched_setattr",
        "sched_setaffinity",
        "process_mrelease",
        "sethostname",
        "lookup_dcookie",
    ],
)
def test_policy_never_allows(name: str) -> None:
    rules = seccomp.parse_policy(POLICY)[name]
    assert [rule.action == seccomp.RET_ALLOW for rule in rules] == [False]


@pytest.mark.parametrize(
    ("level", "options"),
    [
        pytest.param(6, {14, *range(19, 23), 29, 31, 32, *range(38, 43)}, id="tcp"),
        pytest.param(17, {100}, id="udp"),
        pytest.param(1, {26, 50, 51, 52}, id="socket"),
        pytest.param(0, set(), id="ip"),
    ],
)
def test_options_of_sockets_that_are_refused(level: int, options: set[int]) -> None:
    """All others are the kernel's to decide; the reading is not the compiler's own."""
    model = seccomp_model.read(POLICY, "x86_64")
    number = seccomp.syscall_numbers("x86_64")["setsockopt"]
    machine = seccomp_model.ARCHITECTURES["x86_64"]
    answers = {n: model.decide(machine, number, (3, level, n, 0, 0, 0)) for n in range(300)}
    assert {n for n, word in answers.items() if word != "allow"} == options


@pytest.mark.parametrize("option", [0x53564D41, 67, 35, 0x59616D61])
def test_options_of_processes_that_are_refused(option: int) -> None:
    """PR_SET_VMA, PR_SET_MEMORY_MERGE, PR_SET_MM, PR_SET_PTRACER, whatever a kernel was built with.

    The control is PR_SET_NAME.
    """
    model = seccomp_model.read(POLICY, "x86_64")
    number = seccomp.syscall_numbers("x86_64")["prctl"]
    machine = seccomp_model.ARCHITECTURES["x86_64"]
    assert model.decide(machine, number, (15, 0, 0, 0, 0, 0)) == "allow"
    assert model.decide(machine, number, (option, 0, 0, 0, 0, 0)) != "allow"


@pytest.mark.needs("gcc")
def test_policy_constants_are_the_kernels(tmp_path: Path) -> None:
    wanted = seccomp_model.constants(POLICY)
    names = [name for name in wanted if name not in OUR_OWN | NEWER_THAN_THE_HEADERS]
    includes = "".join(f"#include <{header}>\n" for header in HEADERS)
    own = "".join(f"#ifdef {name}\nP({name})\n#endif\n" for name in names)
    source = tmp_path / "constants.c"
    source.write_text(
        f"#define _GNU_SOURCE\n#include <stdio.h>\n{includes}"
        f'#define P(x) printf("%s %u\\n", #x, (unsigned)(x));\nint main(void) {{\n{own}'
        "P(AF_UNIX) P(SOCK_STREAM) P(SOCK_DGRAM) P(SOCK_SEQPACKET) P(SOCK_RAW) P(SOCK_PACKET)\n"
        "P(IPPROTO_IP) P(IPPROTO_TCP) P(IPPROTO_UDP) return 0; }\n"
    )
    subprocess.run(["gcc", "-o", tmp_path / "c", source], check=True)
    said = subprocess.run([tmp_path / "c"], check=True, capture_output=True, text=True).stdout
    kernel = {name: int(value) for name, value in map(str.split, said.splitlines())}
    assert {name: wanted[name] for name in kernel} == kernel
    missing = [name for name in names if name not in kernel and not name.startswith("ARCH_")]
    assert missing == []


def test_policy_masks_are_the_complements_python_knows() -> None:
    named = seccomp_model.constants(POLICY)
    flags = socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    assert named["NOT_SOCK_FLAGS"] == 0xFFFFFFFF & ~flags
    assert named["IN_READERS"] == sum(1 << bit for bit in (0, 4, 5))  # inotify(7)
    assert named["CLONE_NEW"] == sum(1 << bit for bit in (17, 25, 26, 27, 28, 29, 30))


@pytest.mark.parametrize(
    ("arch", "header"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("aarch64", "/usr/include/aarch64-linux-gnu/asm/unistd_64.h"),
    ],
)
def test_table_agrees_with_the_systems_header(arch: str, header: str) -> None:
    if not Path(header).exists():
        pytest.skip("this system has no headers for that architecture")
    rows = [line.split() for line in Path(header).read_text().splitlines()]
    theirs = {row[1][5:]: int(row[2]) for row in rows if row[1:] and row[1].startswith("__NR_")}
    ours = seccomp.syscall_numbers(arch)
    assert {name: ours.get(name) for name in theirs if theirs[name] <= max(ours.values())} == theirs


def test_shared_numbers_are_the_same_from_424_on() -> None:
    first, second = (seccomp.syscall_numbers(arch) for arch in ("x86_64", "aarch64"))
    assert {name: nr for name, nr in first.items() if nr >= 424} == {
        name: nr for name, nr in second.items() if nr >= 424
    }


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("permit read", "unknown rule 'permit'"),
        ("errno", "unknown rule 'errno'"),
        ("errno ENOPE read", "no errno name"),
        ("allow", "no call is named"),
        ("allow read write if low32(arg0) == 1", "exactly one call"),
        ("allow read\nallow read", "already decided"),
        ("allow read if arg0 == 1", "whole 64-bit"),
        ("allow read if low32(arg6) == 1", "whole 64-bit"),
        ("allow read if mid32(arg0) == 1", "whole 64-bit"),
        ("allow read if high32(arg6) == 0", "whole 64-bit"),
        ("allow read if high32(arg) == 0", "whole 64-bit"),
        ("allow read if low32(arg0) != 1", "whole 64-bit"),
        ("allow read if low32(arg0) == NAME", "no number"),
        ("allow read if low32(arg0) == 0x100000000", "32 bits"),
        ("allow read if low32(arg0) & 6 == 1", "can never equal"),
        ("allow read if low32(arg0) in {1, 1}", "twice"),
        ("allow read if low32(arg0) in 1, 2", "write a set"),
        ("define A 1\ndefine A 1", "defined twice"),
        ("define A", "define NAME NUMBER"),
    ],
)
def test_policy_line_is_refused(line: str, complaint: str) -> None:
    with pytest.raises(seccomp.PolicyError, match=rf"line \d+: .*{complaint}"):
        seccomp.parse_policy(line)


def test_undecided_call_is_refused() -> None:
    with pytest.raises(seccomp.PolicyError, match=r"nothing is decided about .*acct"):
        seccomp.compile_policy("allow read", "x86_64")


def test_misspelt_call_is_refused() -> None:
    with pytest.raises(seccomp.PolicyError, match=r"no such call .*raed"):
        seccomp.compile_policy(f"{POLICY}\nallow raed", "x86_64")


def test_unknown_architecture_is_refused() -> None:
    with pytest.raises(seccomp.PolicyError, match="'riscv64'; known are aarch64, x86_64"):
        seccomp.compile_policy(POLICY, "riscv64")


def _with_a_set_of(size: int) -> str:
    values = ", ".join(str(value) for value in range(size))
    line = f"allow personality if low32(arg1) in {{{values}}} and"
    return POLICY.replace("allow personality if", line)


def test_set_longer_than_a_branch_is_enforced_whole() -> None:
    program = seccomp.compile_policy(_with_a_set_of(600), "x86_64")
    number = seccomp.syscall_numbers("x86_64")["personality"]
    audit = seccomp.AUDIT_ARCH["x86_64"]
    verdicts = [
        seccomp.evaluate(program, audit, number, (0, value)) for value in (*range(600), 600, 5000)
    ]
    assert verdicts[:600] == [seccomp.RET_ALLOW] * 600
    assert verdicts[600:] == [seccomp.RET_ERRNO | errno.EPERM] * 2


def test_set_that_the_kernel_could_not_take_is_refused() -> None:
    with pytest.raises(seccomp.PolicyError, match="the kernel takes 4096"):
        seccomp.compile_policy(_with_a_set_of(5000), "x86_64")


def test_errno_names_of_the_policy_exist() -> None:
    assert {errno.EPERM, errno.ENOSYS} <= {
        rule.action & 0xFFFF for rules in seccomp.parse_policy(POLICY).values() for rule in rules
    }

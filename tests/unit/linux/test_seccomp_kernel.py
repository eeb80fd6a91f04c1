"""The same program as the kernel runs it.

`test_kernel_agrees_…` lets the real interpreter (or JIT) decide thousands of calls without
executing one: in a copy of the program each verdict becomes an errno of its own, and only calls
whose sixth argument carries a mark are looked at. The rest install the program as it ships.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import pwd
import resource
import signal
import socket
import struct
import threading

import pytest

from cellwall.linux import seccomp
from cellwall.linux.syscalls import bpf
from kit.jail import forked, seccomp_model

MACHINE = seccomp_model.machine()
pytestmark = pytest.mark.skipif(MACHINE not in seccomp.AUDIT_ARCH, reason="no table for this cpu")

POLICY = seccomp.load_policy()
MODEL = seccomp_model.read(POLICY, MACHINE)
PROGRAM = seccomp.compile_policy(POLICY, MACHINE)
NR = seccomp.syscall_numbers(MACHINE)

MARK = 0x5EC0
ALLOWED, KILLED = 3000, 3001
"""Error numbers no system call returns; the kernel passes on anything up to 4095."""

NOT_ASKED = {"uretprobe", "uprobe"}
"""Newer kernels let these past every filter, and then they raise SIGILL."""


def _as_errnos(program: bytes) -> bytes:
    """Return `program` reporting its verdict, for calls whose sixth argument is MARK."""
    turned = {
        seccomp.RET_ALLOW: seccomp.RET_ERRNO | ALLOWED,
        seccomp.RET_KILL_PROCESS: seccomp.RET_ERRNO | KILLED,
    }
    gate = [
        bpf.statement(bpf.LOAD, bpf.OFFSET_ARGS + 8 * 5),
        bpf.Instruction(bpf.JEQ, 1, 0, MARK),
        bpf.statement(bpf.RETURN, seccomp.RET_ALLOW),
    ]
    body = [
        each._replace(k=turned.get(each.k, each.k)) if each.code == bpf.RETURN else each
        for each in bpf.unpack(program)
    ]
    return bpf.pack([*gate, *body])


def _word(code: int) -> str:
    return {0: "ignore", ALLOWED: "allow", KILLED: "kill"}.get(code) or errno.errorcode.get(
        code, str(code)
    )


def test_kernel_agrees_with_the_model_on_every_edge() -> None:
    cases = [
        (nr, args[:5])
        for arch, nr, args in seccomp_model.boundary_inputs(MODEL)
        if arch == seccomp.AUDIT_ARCH[MACHINE] and MODEL.names.get(nr) not in NOT_ASKED
    ]

    def ask() -> list[int]:
        seccomp.install(_as_errnos(PROGRAM))
        return [forked.call(nr, *args, MARK) for nr, args in cases]

    expected = [MODEL.decide(seccomp.AUDIT_ARCH[MACHINE], nr, (*args, 0)) for nr, args in cases]
    answered = [_word(code) for code in forked.answer(ask)]
    assert [
        each for each in zip(cases, answered, expected, strict=True) if each[1] != each[2]
    ] == []
    assert {"allow", "kill", "EPERM", "ENOSYS", "ENOTTY"} <= set(answered)


def _filtered(nr: int, *args: int) -> int:
    def one() -> int:
        seccomp.install(PROGRAM)
        return forked.call(nr, *args)

    return int(forked.answer(one))


@pytest.mark.parametrize(
    ("name", "args", "code"),
    [
        ("mount", (0, 0, 0, 0, 0), errno.EPERM),
        ("ptrace", (0xFFFF, 0, 0, 0), errno.EPERM),
        ("setns", (0xFFFFFFFF, 0), errno.EPERM),
        ("clone3", (0, 0), errno.ENOSYS),
        ("io_uring_setup", (1, 0), errno.ENOSYS),
        ("arch_prctl", (0x5001, 0), errno.EINVAL),
        ("madvise", (0, 0, 12), errno.EINVAL),  # MADV_MERGEABLE: nothing to do, else
        ("inotify_add_watch", (0xFFFFFFFF, 0, 0x22), errno.EPERM),  # IN_OPEN | IN_MODIFY
        ("inotify_add_watch", (0xFFFFFFFF, 0, 0x02), errno.EBADF),
        ("memfd_create", (0, 0xFFFFFFFF), errno.EINVAL),  # so Chromium asks for memfds
        ("memfd_create", (0, 0x20), errno.EINVAL),
        ("memfd_create", (0, 0x4), errno.ENOMEM),  # MFD_HUGETLB: an empty pool
        ("memfd_create", (0, 0x4 | 21 << 26), errno.ENOMEM),
        ("memfd_create", (0, 0), errno.EFAULT),
        ("prctl", (35, 1), errno.EPERM),  # PR_SET_MM
        ("prctl", (0x59616D61, 1), errno.EPERM),  # PR_SET_PTRACER
        ("prctl", (9999,), errno.EINVAL),
        ("prctl", (0x53564D41, 0), errno.EINVAL),  # PR_SET_VMA
        ("socket", (2, 3, 1), errno.EPERM),  # SOCK_RAW
        ("socket", (2, 10, 0), errno.EPERM),  # SOCK_PACKET
        ("socket", (2, 1, 262), errno.EPROTONOSUPPORT),  # MPTCP
        ("socket", (10, 5, 132), errno.EPROTONOSUPPORT),  # SCTP
        ("read", (0xFFFFFFFF, 0, 1), errno.EBADF),
        ("openat", (0xFFFFFF9C, 0, 0), errno.EFAULT),
    ],
)
def test_call_is_answered_with(name: str, args: tuple[int, ...], code: int) -> None:
    if name not in NR:
        pytest.skip("no such call on this architecture")
    assert _filtered(NR[name], *args) == code


def test_unknown_number_is_enosys() -> None:
    assert _filtered(600) == errno.ENOSYS


@pytest.mark.parametrize("bit", [17, 25, 26, 27, 28, 29, 30])
def test_unshare_by_clone_is_refused(bit: int) -> None:
    def attempt() -> int:
        pid = ctypes.c_long(
            forked.LIBC.syscall(NR["clone"], (1 << bit) | signal.SIGCHLD, 0, 0, 0, 0)
        )
        if pid.value == 0:
            os._exit(0)
        return ctypes.get_errno() if pid.value < 0 else os.waitpid(pid.value, 0)[1]

    def filtered() -> int:
        seccomp.install(PROGRAM)
        return attempt()

    assert forked.answer(filtered) == errno.EPERM
    if os.geteuid() == 0:
        assert forked.answer(attempt) == 0


def test_plain_fork_works() -> None:
    def fork() -> int:
        seccomp.install(PROGRAM)
        pid = os.fork()
        if pid == 0:
            os._exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert forked.answer(fork) == 7


@pytest.mark.skipif(MACHINE != "x86_64", reason="x32 is an x86 thing")
def test_x32_number_kills() -> None:
    def call() -> int:
        seccomp.install(PROGRAM)
        return forked.call(0x40000000 | NR["getpid"])

    assert forked.run(call).signal == signal.SIGSYS


@pytest.mark.skipif(MACHINE != "x86_64", reason="int 0x80 is an x86 thing")
def test_32_bit_entry_kills() -> None:
    # mov eax, 20 (getpid); int 0x80; ret
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    enter = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    control = forked.run(lambda: enter() == os.getpid())
    if not control.answer:
        pytest.skip("this kernel has no 32-bit entry")

    def call() -> int:
        seccomp.install(PROGRAM)
        return int(enter())

    assert forked.run(call).signal == signal.SIGSYS


def test_only_listed_socket_families_and_types_open() -> None:
    protocols = (0, 1, 6, 17, 33, 132, 136, 255, 256, 262)
    asked = [(f, t, p) for f in range(64) for t in (1, 2, 3, 4, 5, 6, 10) for p in protocols]

    def opened() -> list[list[int]]:
        seccomp.install(PROGRAM)
        found = []
        for family, kind, protocol in asked:
            if forked.call(NR["socket"], family, kind | socket.SOCK_CLOEXEC, protocol) == 0:
                found.append([family, kind, protocol])
        return found

    unix = {(1, kind, 0) for kind in (1, 2, 5)}
    inet = {(f, k, p) for f in (2, 10) for k, p in ((1, 0), (1, 6), (2, 0), (2, 17))}
    got = {tuple(each) for each in forked.answer(opened)}
    assert got <= unix | inet
    assert unix | {each for each in inet if each[0] == 2} <= got


_KEY = struct.pack("=HHI120xBBHI80s", 2, 0, 0x0100007F, 0, 0, 3, 0, b"key")
"""A `tcp_md5sig` for 127.0.0.1."""


@pytest.mark.parametrize(
    ("kind", "level", "option", "value", "code"),
    [
        pytest.param(1, 6, 14, _KEY, errno.ENOPROTOOPT, id="TCP_MD5SIG"),
        pytest.param(1, 6, 32, _KEY, errno.ENOPROTOOPT, id="TCP_MD5SIG_EXT"),
        pytest.param(1, 6, 19, 1, errno.EPERM, id="TCP_REPAIR"),
        pytest.param(1, 6, 31, b"tls", errno.ENOPROTOOPT, id="TCP_ULP"),
        pytest.param(2, 17, 100, 2, errno.ENOPROTOOPT, id="UDP_ENCAP"),
    ],
)
def test_socket_is_given_no_key_and_no_tunnel(
    kind: int, level: int, option: int, value: bytes | int, code: int
) -> None:
    """The control: what the kernel itself says."""

    def ask() -> int:
        with socket.socket(socket.AF_INET, kind) as sock:
            try:
                sock.setsockopt(level, option, value)
            except OSError as error:
                return int(error.errno or 0)
        return 0

    def filtered() -> int:
        seccomp.install(PROGRAM)
        return ask()

    assert forked.answer(filtered) == code
    if forked.answer(ask) == code:
        pytest.skip("this kernel, or this user's rights, refuse it without the filter, too")


def test_cpus_seem_to_be_chosen_and_stay() -> None:
    """Within one's own mask is what honest programs ask for; the control does choose."""
    ours = os.sched_getaffinity(0)
    if len(ours) < 2:
        pytest.skip("this process may run on one processor only")

    def choose() -> list[int]:
        os.sched_setaffinity(0, {min(ours)})
        return sorted(os.sched_getaffinity(0))

    def filtered() -> list[int]:
        seccomp.install(PROGRAM)
        return choose()

    assert forked.answer(filtered) == sorted(ours)
    assert forked.answer(choose) == [min(ours)]


@pytest.mark.parametrize("command", [0x5412, 0x5412 | 1 << 32, 0x541C, 0x541C | 0xFFFFFFFF << 32])
def test_typing_into_a_terminal_is_refused_whatever_the_upper_bits(command: int) -> None:
    def attempt() -> int:
        parent, child = os.openpty()
        seccomp.install(PROGRAM)
        return forked.call(NR["ioctl"], child, command, id(parent))

    assert forked.answer(attempt) == errno.EPERM


def test_terminal_still_works() -> None:
    def attempt() -> list[object]:
        seccomp.install(PROGRAM)
        parent, child = os.openpty()
        os.set_blocking(child, False)
        return [os.isatty(child), list(os.get_terminal_size(parent)), os.ttyname(child)[:9]]

    assert forked.answer(attempt) == [True, [0, 0], "/dev/pts/"]


def test_device_node_is_refused_and_fifo_made(tmp_path: os.PathLike[str]) -> None:
    def attempt() -> list[str]:
        seccomp.install(PROGRAM)
        os.mkfifo(os.path.join(tmp_path, "fifo"))
        try:
            os.mknod(os.path.join(tmp_path, "null"), 0o020666, os.makedev(1, 3))
        except PermissionError:
            return os.listdir(tmp_path)
        return []

    assert forked.answer(attempt) == ["fifo"]


def _core_limits() -> list[object]:
    """Try every way to another RLIMIT_CORE and back; the limit, then each way's errno."""
    zero, old = ctypes.create_string_buffer(16), ctypes.create_string_buffer(16)
    # A pointer whose lower half is null, as a filter that looks at no more would take it for.
    low = mmap.mmap(-1, 1 << 33, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    start = ctypes.addressof(ctypes.c_char.from_buffer(low))
    odd = (start + 0xFFFFFFFF) & ~0xFFFFFFFF
    new = ctypes.addressof(zero)
    ways = [
        ("setrlimit", (4, new)),
        ("prlimit64", (0, 4, new, 0)),
        ("prlimit64", (0, 4, new, ctypes.addressof(old))),
        ("prlimit64", (0, 4, odd, 0)),
        ("prlimit64", (0, 4, odd, ctypes.addressof(old))),
        ("prlimit64", (os.getpid(), 4 | 1 << 32, new, 0)),
        ("prlimit64", (os.getppid(), 4, new, 0)),
    ]
    errnos = [forked.call(NR[name], *args) for name, args in ways]
    return [list(resource.getrlimit(resource.RLIMIT_CORE)), *errnos]


def test_core_limit_stays_and_setting_it_seems_to_work() -> None:
    """0 starts the host's core handler as any value does, but 1."""

    def filtered() -> list[object]:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
        seccomp.install(PROGRAM)
        return _core_limits()

    def naked() -> list[object]:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
        return _core_limits()

    refused = errno.EPERM
    assert forked.answer(filtered) == [[1, 1], 0, 0, refused, 0, refused, 0, 0]
    # In a fork of a fork: one of the ways is to the parent's limit.
    control = forked.answer(lambda: forked.answer(naked))
    assert control[0] == [0, 0]
    assert control[1:7] == [0] * 6


def test_other_limits_are_the_kernels_as_before() -> None:
    def filtered() -> list[int]:
        seccomp.install(PROGRAM)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        resource.prlimit(0, resource.RLIMIT_NPROC, (77, 77))
        return [
            resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
        ]

    assert forked.answer(filtered) == [64, 77]


def test_threads_started_later_are_under_the_filter() -> None:
    def attempt() -> list[int]:
        seccomp.install(PROGRAM)
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(forked.call(NR["unshare"], 0)))
        thread.start()
        thread.join()
        return codes

    assert forked.answer(attempt) == [errno.EPERM]
    assert forked.answer(lambda: forked.call(NR["unshare"], 0)) == 0


def test_program_may_narrow_itself_but_not_listen() -> None:
    weaker = bpf.pack([bpf.statement(bpf.RETURN, seccomp.RET_ALLOW)])

    def attempt() -> list[int]:
        code = ctypes.create_string_buffer(weaker, len(weaker))
        fprog = ctypes.create_string_buffer(struct.pack("=H6xQ", 1, ctypes.addressof(code)))
        seccomp.install(PROGRAM)
        own = [forked.call(NR["seccomp"], 1, flags, ctypes.addressof(fprog)) for flags in (0, 8)]
        return [*own, forked.call(NR["ptrace"], 0, 0, 0, 0)]

    assert forked.answer(attempt) == [0, errno.EPERM, errno.EPERM]


@pytest.mark.skipif(os.geteuid() != 0, reason="changes its user to lose CAP_SYS_ADMIN")
def test_install_says_what_is_missing_without_no_new_privs() -> None:
    # `forked.run` sets no_new_privs, which can not be taken back; so this one forks by hand.
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setuid(pwd.getpwnam("nobody").pw_uid)
        try:
            seccomp.install(PROGRAM)
        except OSError as error:
            os.write(write_end, f"{error.errno} {error}".encode())
        os._exit(0)
    os.close(write_end)
    with open(read_end) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    assert said.startswith(str(errno.EACCES))
    assert "no_new_privs" in said


def test_program_the_kernel_can_not_check_is_an_error() -> None:
    def attempt() -> int:
        try:
            seccomp.install(bpf.pack([bpf.statement(bpf.LOAD, bpf.OFFSET_NR)]))
        except OSError as error:
            return int(error.errno or 0)
        return 0

    assert forked.answer(attempt) == errno.EINVAL

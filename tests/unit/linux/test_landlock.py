"""Landlock against the real kernel: one forked child per case, its control beside it."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import stat
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from cellwall.linux.syscalls import landlock, libc, process
from kit.jail import forked

ABI = landlock.abi()
pytestmark = pytest.mark.skipif(ABI == 0, reason="this kernel offers no Landlock")
needs_abi = {
    abi: pytest.mark.skipif(abi > ABI, reason=f"needs Landlock ABI {abi}") for abi in (2, 3, 5, 6)
}
SYSTEM = ["/usr", "/lib", "/lib64", "/bin", "/etc"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three directories: one to read, one to write, one to be kept out of."""
    for name in ("read", "write", "hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    script = tmp_path / "read" / "script"
    script.write_text("#!/bin/sh\necho ran\n")
    script.chmod(0o755)
    return tmp_path


def _attempt(work: Callable[[], object]) -> int:
    try:
        work()
    except OSError as error:
        return int(error.errno or 0)
    return 0


def restrict(
    read_exec: Sequence[str],
    write: Sequence[str],
    *,
    abi: int,
    devices: Sequence[str] = (),
    listing: Sequence[str] = (),
) -> int:
    """Shut this process in the named trees now, and return the ABI applied."""
    first = os.open("/", os.O_PATH | os.O_CLOEXEC)
    free_fds = (first, process.lowest_free_fd())
    os.close(first)
    calls = landlock.prepare(
        read_exec, write, abi=abi, devices=devices, listing=listing, free_fds=free_fds
    )
    libc.do_all(calls)
    return min(abi, landlock.NEWEST_ABI) if calls else 0


def _shut(tree: Path, abi: int = ABI, **more: list[str]) -> int:
    read = [each for each in SYSTEM if os.path.exists(each)]
    return restrict([*read, str(tree / "read")], [str(tree / "write")], abi=abi, **more)


def _shut_and(tree: Path, work: Callable[[], object], abi: int = ABI) -> int:
    def both() -> int:
        _shut(tree, abi)
        return _attempt(work)

    return int(forked.answer(both))


def _code(work: Callable[[], object]) -> int:
    """Return the errno of `work` in a child that is not restricted."""
    return int(forked.answer(lambda: _attempt(work)))


def test_kernel_that_fails_is_not_one_without_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else files would be left unlocked for any reason at all, and nobody be told."""
    monkeypatch.setattr(landlock, "_CREATE_RULESET_VERSION", 1 << 31)  # no flag the kernel has
    with pytest.raises(OSError, match="probe Landlock ABI") as caught:
        landlock.abi()
    assert caught.value.errno == errno.EINVAL


ATTEMPTS: dict[str, tuple[Callable[[Path], object], int]] = {
    "read a file to read": (lambda t: (t / "read/file").read_text(), 0),
    "list a tree to read": (lambda t: os.listdir(t / "read"), 0),
    "run a file to read": (lambda t: subprocess.run([t / "read/script"], check=True), 0),
    "change a file to read": (lambda t: (t / "read/file").write_text("x"), errno.EACCES),
    "append to a file to read": (lambda t: (t / "read/file").open("a").close(), errno.EACCES),
    "make a file in a tree to read": (lambda t: (t / "read/new").touch(), errno.EACCES),
    "remove a file to read": (lambda t: (t / "read/file").unlink(), errno.EACCES),
    "change a file to write": (lambda t: (t / "write/file").write_text("x"), 0),
    "make a directory": (lambda t: (t / "write/new").mkdir(), 0),
    "make a link": (lambda t: (t / "write/link").symlink_to("file"), 0),
    "make a fifo": (lambda t: os.mkfifo(t / "write/fifo"), 0),
    "remove a file": (lambda t: (t / "write/file").unlink(), 0),
    "rename inside": (lambda t: (t / "write/file").rename(t / "write/other"), 0),
    "read what is hidden": (lambda t: (t / "hidden/file").read_text(), errno.EACCES),
    "list what is hidden": (lambda t: os.listdir(t / "hidden"), errno.EACCES),
    "change what is hidden": (lambda t: (t / "hidden/file").write_text("x"), errno.EACCES),
    "list the root": (lambda _: os.listdir("/"), errno.EACCES),
}


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_restricted_process_may_or_may_not(tree: Path, attempt: str) -> None:
    work, expected = ATTEMPTS[attempt]
    assert _shut_and(tree, lambda: work(tree)) == expected


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_control_may_do_everything(tree: Path, attempt: str) -> None:
    work, _ = ATTEMPTS[attempt]
    assert _code(lambda: work(tree)) == 0


@pytest.mark.parametrize("abi", range(1, ABI + 1))
def test_each_abi_hides_what_is_not_named(tree: Path, abi: int) -> None:
    assert _shut_and(tree, (tree / "hidden/file").read_text, abi) == errno.EACCES
    assert _shut_and(tree, lambda: (tree / "write/file").write_text("x"), abi) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="the control makes a device node")
@pytest.mark.parametrize("kind", [stat.S_IFCHR, stat.S_IFBLK])
def test_device_node_in_a_writable_tree_is_denied(tree: Path, kind: int) -> None:
    def make() -> None:
        os.mknod(tree / "write/node", kind | 0o600, os.makedev(1, 3))

    assert _shut_and(tree, make) == errno.EACCES
    assert _code(make) == 0


@needs_abi[2]
def test_moving_out_of_the_writable_tree_is_denied(tree: Path) -> None:
    def move() -> None:
        os.link(tree / "write/file", tree / "read/file2")

    assert _shut_and(tree, move) in (errno.EACCES, errno.EXDEV)
    assert _code(move) == 0


@needs_abi[2]
def test_moving_between_directories_of_a_writable_tree_works(tree: Path) -> None:
    (tree / "write/deeper").mkdir()
    move = lambda: (tree / "write/file").rename(tree / "write/deeper/file")  # noqa: E731
    assert _shut_and(tree, move) == 0


@needs_abi[3]
def test_truncating_what_may_only_be_read_is_denied(tree: Path) -> None:
    def cut() -> None:
        os.truncate(tree / "read/file", 0)

    assert _shut_and(tree, cut) == errno.EACCES
    assert _code(cut) == 0


@needs_abi[5]
def test_ioctl_on_a_device_needs_it_named(tree: Path) -> None:
    def new_terminal() -> None:
        fd = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
        fcntl.ioctl(fd, termios.TIOCGWINSZ, b"\0" * 8)

    def with_devices() -> int:
        _shut(tree, devices=["/dev/ptmx"])
        return _attempt(new_terminal)

    assert _shut_and(tree, new_terminal) == errno.EACCES
    assert forked.answer(with_devices) == 0


def test_listing_shows_names_and_opens_nothing(tree: Path) -> None:
    def with_listing() -> list[int]:
        _shut(tree, listing=["/"])
        return [
            _attempt(lambda: os.listdir("/")),
            _attempt(lambda: os.listdir(tree / "hidden")),
            _attempt((tree / "hidden/file").read_text),
            _attempt(lambda: (tree / "hidden/file").write_text("x")),
            _attempt((tree / "read/new").touch),
        ]

    assert forked.answer(with_listing) == [0, 0, errno.EACCES, errno.EACCES, errno.EACCES]


def test_single_file_may_be_named(tree: Path) -> None:
    def shut() -> list[int]:
        restrict([str(tree / "read/file")], [str(tree / "write/file")], abi=ABI)
        return [
            _attempt((tree / "read/file").read_text),
            _attempt(lambda: (tree / "write/file").write_text("x")),
            _attempt((tree / "read/script").read_text),
        ]

    assert forked.answer(shut) == [0, 0, errno.EACCES]


@needs_abi[6]
def test_abstract_socket_of_the_outside_is_denied(tree: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("")
        server.listen()

        def connect() -> None:
            socket.socket(socket.AF_UNIX).connect(server.getsockname())

        assert _shut_and(tree, connect) == errno.EPERM
        assert _code(connect) == 0


@needs_abi[6]
def test_abstract_socket_bound_after_is_reached_and_one_bound_before_is_not(tree: Path) -> None:
    def listen() -> socket.socket:
        server = socket.socket(socket.AF_UNIX)
        server.bind("")
        server.listen()
        return server

    def connect(server: socket.socket) -> None:
        socket.socket(socket.AF_UNIX).connect(server.getsockname())

    def both() -> list[int]:
        before = listen()
        _shut(tree)
        after = listen()
        return [_attempt(partial(connect, server)) for server in (before, after)]

    assert forked.answer(both) == [errno.EPERM, 0]


@needs_abi[6]
def test_signal_to_the_outside_is_denied_and_to_its_own_child_works(tree: Path) -> None:
    outside = os.getpid()

    def own_child() -> None:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    assert _shut_and(tree, lambda: os.kill(outside, 0)) == errno.EPERM
    assert _code(lambda: os.kill(outside, 0)) == 0
    assert _shut_and(tree, own_child) == 0


def test_restrict_reports_the_abi_it_used(tree: Path) -> None:
    assert forked.answer(lambda: _shut(tree)) == min(ABI, landlock.NEWEST_ABI)
    assert forked.answer(lambda: _shut(tree, 1)) == 1
    assert forked.answer(lambda: _shut(tree, 0)) == 0


def test_newer_kernel_is_used_as_the_newest_abi_known(tree: Path) -> None:
    if ABI < landlock.NEWEST_ABI:
        pytest.skip("this kernel is older than the rights listed")
    assert forked.answer(lambda: _shut(tree, 99)) == landlock.NEWEST_ABI


def test_restrict_leaves_no_descriptor_behind(tree: Path) -> None:
    def count() -> list[int]:
        # Listed through one held descriptor: /proc is not among the trees that stay open.
        listing = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
        before = len(os.listdir(listing))
        _shut(tree)
        return [before, len(os.listdir(listing))]

    before, after = forked.answer(count)
    assert before == after


def test_missing_path_is_an_error_and_restricts_nothing(tree: Path) -> None:
    def shut() -> list[int]:
        code = _attempt(lambda: restrict([str(tree / "absent")], [], abi=ABI))
        return [code, _attempt((tree / "hidden/file").read_text)]

    assert forked.answer(shut) == [errno.ENOENT, 0]


def test_handled_rights_grow_with_the_abi() -> None:
    bits = [landlock.handled_rights(abi).bit_length() for abi in range(8)]
    assert bits == [0, 13, 14, 15, 15, 16, 16, 16]


def test_eight_paths_cost_little_more_than_opening_them(tree: Path) -> None:
    """Against opening and closing the same paths in the same run: nine times, when written."""
    paths = [str(tree / name) for name in ("read", "hidden")] * 3
    writable = [str(tree / "write"), str(tree)]

    def timed(work: Callable[[], object]) -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    def opened() -> None:
        for path in (*paths, *writable):
            os.close(os.open(path, os.O_PATH))

    def restricted() -> None:
        restrict(paths, writable, abi=ABI)

    # The least of a few: the first in a forked child pays for its page faults, and the machine
    # is shared. Layers add up, so a later call is never cheaper than a first one without those.
    both = forked.answer(lambda: [(timed(opened), timed(restricted)) for _ in range(8)])
    assert min(cost for _, cost in both) < 14 * min(floor for floor, _ in both)

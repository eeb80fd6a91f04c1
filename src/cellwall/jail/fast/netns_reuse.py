"""Network namespaces for sandboxes: a new one each, or a used one that is exactly as when new.

Called by `forkserver` in a worker, which enters one for the moment of the clone and leaves it
again. A new one costs the kernel half a millisecond, and its removal as much again; together an
eighth of a small program's run, and most programs never open a socket (`design/0017`). So a worker
keeps a descriptor of each namespace that it lent, and lends it again if the kernel says both:

* its sandbox is dead: a pidfd of pid 1 is readable once no process of its pid namespace is left;
* it is as it was when it was made: no socket of any family, nothing in TIME_WAIT, no flow label,
  not one packet, and not one event counted since (`_WITNESSES`, compared byte by byte).

In doubt a namespace is destroyed: one whose state cannot be read, or differs at all, is closed.

SECURITY: such a namespace belongs to the fork-server's user namespace, so no process in a sandbox
ever has a capability over it: `lo` and its settings are as this module left them. The same holds
for the modes of its files below /proc/<pid>/net, which belong to that namespace's root: no other
user reads the files that count for the whole machine. Where there is no range of ids, a sandbox has
the same id on the host as that root and can reset the modes; there the files are a known limit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
from typing import Dict, List, Optional, Tuple

from cellwall.linux.syscalls import process
from cellwall.linux.syscalls.libc import Prepared, SyscallError, do_all

_HIGH_FD = 128
"""Lowest number for this module's descriptors: those a worker receives are low, and the same every
time."""
MOST_KEPT = 8
"""Most namespaces kept, the latest ones; each takes nine descriptors and some 100 KiB in the
kernel."""
_MOST_BYTES = 32_768
"""Most bytes read of one witness. The longest has 4,000; a longer one would be read in part."""
_COUNTED = "sockstat"
_WITNESSES = ("dev", "snmp", "netstat", "snmp6", "ip6_flowlabel")
"""Files of /proc/net that must not change, proc_pid_net(5). State without a line in them needs a
socket, which `sockstat` counts: routes and addresses need capabilities, and facts about peers need
packets."""
_OF_THE_MACHINE = ("softnet_stat", "sockstat", "protocols", "rt_acct", "stat")
"""Files of /proc/net on packets, sockets and memory of all namespaces together, some of them exact.
One sandbox could measure there what another does. `stat` is a directory."""
_DAY_MS = b"86400000"
_REPORTS = (
    "ipv4/conf/lo/igmpv3_unsolicited_report_interval",
    "ipv6/conf/lo/mldv2_unsolicited_report_interval",
)
"""Files of /proc/sys/net: milliseconds after which leaving a group is reported again. A packet
caused by the last sandbox must not be sent during the next one."""
_CONGESTION_CONTROL = ("ipv4/tcp_congestion_control", b"reno")
"""Setting of /proc/sys/net for every TCP socket of a sandbox, tcp(7). Its connections end on this
machine, at the egress proxy, at the engine or in itself; what the host chose for real networks, BBR
above all, measures and paces them, and a stream has a third of the rate. Every kernel has reno."""
_ALWAYS = frozenset({"dev", "snmp", "netstat"})
"""Witnesses that every kernel with a network has."""
_NO_SOCKET = b"sockets: used 0\n"
_NONE_WAITING = b"\nTCP: inuse 0 orphan "
_NO_TIME_WAIT = b" tw 0 "


class Network:
    """A network namespace with `lo` up, and its state before any sandbox was in it."""

    __slots__ = ("absent", "before", "counted", "enter", "namespace")

    def __init__(
        self,
        namespace: int,
        counted: int,
        before: Tuple[Tuple[int, bytes], ...],
        absent: Tuple[str, ...],
    ) -> None:
        """Own the descriptors of the namespace and of its witnesses.

        `counted` is its `sockstat`; `before` has each other witness with its text. `absent` are the
        witnesses that this kernel does not have, unless a protocol is loaded later.
        """
        self.namespace = namespace
        self.enter: Tuple[Prepared] = process.prepare_join(namespace, process.CLONE_NEWNET)
        """Prepared call that moves this process into the namespace."""
        self.counted = counted
        self.before = before
        self.absent = absent

    def is_as_new(self) -> bool:
        """Whether no sandbox left a trace in it; this process must be in it."""
        if not _is_empty(os.pread(self.counted, _MOST_BYTES, 0)):
            return False
        for fd, text in self.before:
            if os.pread(fd, _MOST_BYTES, 0) != text:
                return False
        return not (self.absent and any(os.path.exists(_path(name)) for name in self.absent))

    def close(self) -> None:
        """Close its descriptors; the kernel removes it once no process is in it."""
        for fd in (self.namespace, self.counted, *(fd for fd, _ in self.before)):
            os.close(fd)


class Networks:
    """The network namespaces of one worker, which has one thread."""

    def __init__(self, most_kept: int = MOST_KEPT) -> None:
        """Remember the namespace this process is in, which must belong to its user namespace.

        With a `most_kept` of 0 every sandbox gets a new namespace.
        """
        self._most_kept = most_kept
        self._go_home = process.prepare_join(_held("/proc/self/ns/net"), process.CLONE_NEWNET)
        self._current: Optional[Network] = None
        self._lent: Dict[int, Network] = {}
        """Namespaces in use by the pidfd of their sandbox, the oldest first."""
        self._poller = select.poll()

    def enter(self) -> None:
        """Move into a namespace for the next sandbox. On OSError this process is back at home."""
        try:
            self._current = self._unused() or self._made()
        except OSError:
            self.leave()
            raise

    def lend(self, pidfd: int) -> None:
        """Record that a sandbox with this pidfd is in it; the caller keeps the descriptor."""
        network, self._current = self._current, None
        if network is None:
            return
        mine = fcntl.fcntl(pidfd, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)
        self._lent[mine] = network
        self._poller.register(mine, select.POLLIN)
        if len(self._lent) > self._most_kept:
            self._taken_back(next(iter(self._lent))).close()

    def leave(self) -> None:
        """Go home; close a namespace that was entered and not lent. Raises SyscallError."""
        do_all(self._go_home)
        if self._current is not None:
            self._current.close()
            self._current = None

    def _taken_back(self, pidfd: int) -> Network:
        self._poller.unregister(pidfd)
        os.close(pidfd)
        return self._lent.pop(pidfd)

    def _unused(self) -> Optional[Network]:
        """Enter and return a namespace whose sandbox is dead and that is as new, or None."""
        for pidfd, _ in self._poller.poll(0):
            network = self._taken_back(pidfd)
            try:
                do_all(network.enter)
                if network.is_as_new():
                    return network
            except OSError:
                pass  # a new one is made in its place, or raises the error
            network.close()
        return None

    def _made(self) -> Optional[Network]:
        """Make a namespace and enter it; return None if its state could not be read."""
        process.unshare(process.CLONE_NEWNET)
        process.loopback_up()
        _hide()
        opened: List[int] = []
        try:
            _keep_quiet()
            with contextlib.suppress(OSError):  # the host's operator forbids it: streams are slower
                _set(*_CONGESTION_CONTROL)
            return _described(opened)
        except OSError:
            for fd in opened:
                os.close(fd)
            return None


def _hide() -> None:
    """Make files that count for the whole machine readable by root only; proc_pid_net(5).

    A mount cannot cover them because they hang below each process; a mode lasts as long as its
    namespace. Raises SyscallError.
    """
    for name in _OF_THE_MACHINE:
        try:
            os.chmod(_path(name), 0o500 if name == "stat" else 0o400)
        except FileNotFoundError:
            pass  # this kernel does not have it
        except OSError as error:
            raise SyscallError(error.errno or 0, f"hide /proc/net/{name}") from None


def allow_low_ports() -> None:
    """Let every user of this process's network namespace listen below port 1024. ip(7).

    For images, whose services expect it of root: a sandbox has no capability over its network. The
    setting ends with the namespace. Raises OSError.
    """
    _set("ipv4/ip_unprivileged_port_start", b"0")


def _keep_quiet() -> None:
    """Delay the packets of `_REPORTS`. Raises OSError; then the namespace is not lent again."""
    for name in _REPORTS:
        with contextlib.suppress(FileNotFoundError):  # no IPv6, or no multicast
            _set(name, _DAY_MS)


def _set(name: str, value: bytes) -> None:
    fd = os.open(f"/proc/sys/net/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value)
    finally:
        os.close(fd)


def _described(opened: List[int]) -> Network:
    """Describe the namespace of this process. Adds each descriptor to `opened`. Raises OSError."""

    def hold(path: str) -> int:
        opened.append(_held(path))
        return opened[-1]

    namespace, counted = hold("/proc/self/ns/net"), hold(_path(_COUNTED))
    before: List[Tuple[int, bytes]] = []
    absent = []
    for name in _WITNESSES:
        try:
            fd = hold(_path(name))
        except FileNotFoundError:
            absent.append(name)
        else:
            before.append((fd, os.pread(fd, _MOST_BYTES, 0)))
    is_whole = all(len(text) < _MOST_BYTES for _, text in before)
    is_told = is_whole and _ALWAYS.isdisjoint(absent)
    if not is_told or not _is_empty(os.pread(counted, _MOST_BYTES, 0)):
        raise SyscallError(0, "read the state of a new network namespace")
    return Network(namespace, counted, tuple(before), tuple(absent))


def _is_empty(counted: bytes) -> bool:
    """Whether a `sockstat` shows no socket; `orphan` and `mem` in it are the whole host's."""
    return counted.startswith(_NO_SOCKET) and _NONE_WAITING in counted and _NO_TIME_WAIT in counted


def _path(name: str) -> str:
    return f"/proc/self/net/{name}"


def _held(path: str) -> int:
    """Open a file for reading, at a high number. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)
    finally:
        os.close(fd)

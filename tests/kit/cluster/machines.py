"""Machines of a cluster: network namespaces with addresses of their own, on one switch.

Nothing of them is in the host's own network namespace, and they end with the processes that hold
them. Entered with nsenter(1): `ip netns exec` would also mount another /sys, in which an engine
finds no cgroups.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_NETWORK = "10.77.0"


def _namespace() -> subprocess.Popen[str]:
    """Return a process that holds a new network namespace until its input ends."""
    words = ("unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec cat")
    made = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None
    assert made.stdout.readline() == "up\n"
    return made


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


@dataclass
class Machine:
    """One machine."""

    name: str
    number: int
    held: subprocess.Popen[str]
    switch: subprocess.Popen[str]

    @property
    def address(self) -> str:
        """Its IPv4 address."""
        return f"{_NETWORK}.{self.number}"

    def entering(self) -> list[str]:
        """Return the words that run a command on it."""
        return _entering(self.held)

    def unplug(self) -> None:
        """Take its cable out."""
        _run(_entering(self.switch), "ip", "link", "set", f"port{self.number}", "down")

    def plug_in(self) -> None:
        """Put its cable in."""
        _run(_entering(self.switch), "ip", "link", "set", f"port{self.number}", "up")

    def drop(self, direction: str) -> None:
        """Drop packets of one direction, `input` or `output`, without a word to the sender."""
        hook = f"{{ type filter hook {direction} priority 0; }}"
        _run(self.entering(), "nft", "add table inet lost")
        _run(self.entering(), "nft", f"add chain inet lost packets {hook}")
        way = "oifname" if direction == "output" else "iifname"
        _run(self.entering(), "nft", f"add rule inet lost packets {way} != lo drop")

    def drop_nothing(self) -> None:
        """Let all packets pass again."""
        _run(self.entering(), "nft", "delete table inet lost")


@dataclass
class Machines:
    """All machines on one switch."""

    switch: subprocess.Popen[str]
    made: dict[str, Machine] = field(default_factory=dict)

    def of(self, name: str) -> Machine:
        """Return the machine of that name; it is made at the first time."""
        if name not in self.made:
            self.made[name] = self._plugged_in(name, len(self.made) + 1)
        return self.made[name]

    def _plugged_in(self, name: str, number: int) -> Machine:
        machine = Machine(name, number, _namespace(), self.switch)
        inside, outside = _entering(self.switch), machine.entering()
        ends = (f"port{number}", "type", "veth", "peer", "name", "eth0")
        _run(inside, "ip", "link", "add", *ends, "netns", str(machine.held.pid))
        _run(inside, "ip", "link", "set", f"port{number}", "master", "switch", "up")
        _run(outside, "ip", "address", "add", f"{machine.address}/24", "dev", "eth0")
        _run(outside, "ip", "link", "set", "eth0", "up")
        return machine


@contextlib.contextmanager
def machines() -> Iterator[Machines]:
    """Have machines for the length of a block."""
    made = Machines(_namespace())
    try:
        _run(_entering(made.switch), "ip", "link", "add", "switch", "type", "bridge")
        _run(_entering(made.switch), "ip", "link", "set", "switch", "up")
        yield made
    finally:
        for each in made.made.values():
            _end(each.held)
        _end(made.switch)


def _entering(process: subprocess.Popen[str]) -> list[str]:
    return ["nsenter", f"--net=/proc/{process.pid}/ns/net", "--"]


def _run(before: Sequence[str], *words: str) -> None:
    done = subprocess.run([*before, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)

"""Processor time of those processes of a family that have ended; `families` counts the living ones.

If a process was waited for by a process of its family, that parent's own figure contains its time.
All other processes are children of init when they end, and init notes their time here.
"""

from __future__ import annotations


class Spending:
    """Processor time of ended processes of all families of this sandbox, in µs."""

    def __init__(self) -> None:
        self._living: dict[int, int] = {}
        """Time of ended processes of a session, by its leader; only leaders that have not ended."""
        self._past_us = 0
        """Time in families whose leader has ended."""

    def lead(self, leader: int) -> None:
        """Note that a process leads a family from now on."""
        self._living[leader] = 0

    def end(self, pid: int, session: int, rusage: dict[str, int]) -> None:
        """Note the time that an ended process of a family's session used."""
        used_us = rusage["user_us"] + rusage["system_us"]
        if pid == session:
            used_us += self._living.pop(session, 0)
        if session in self._living:
            self._living[session] += used_us
        else:
            self._past_us += used_us

    def of(self, leader: int) -> int:
        """Return the time of ended processes in the family of `leader`, which has not ended."""
        return self._living.get(leader, 0)

    def of_others(self, leader: int) -> int:
        """Return the time of ended processes in all other families."""
        return self._past_us + sum(self._living.values()) - self.of(leader)

"""Processor time of families' processes that have ended; `families` counts those that live.

A process for which a process of its family waited is in that one's own figure. All others are
children of init when they end, and init notes here what they used.
"""

from __future__ import annotations


class Spending:
    """Of all families of this sandbox, in microseconds."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._living: dict[int, int] = {}
        """By leader that has not ended: of processes of its session that have."""
        self._past_us = 0
        """Of families whose leader has ended."""

    def lead(self, leader: int) -> None:
        """Note that a process leads a family from now on."""
        self._living[leader] = 0

    def end(self, pid: int, session: int, rusage: dict[str, int]) -> None:
        """Note what a process of a family's session used."""
        used_us = rusage["user_us"] + rusage["system_us"]
        if pid == session:
            used_us += self._living.pop(session, 0)
        if session in self._living:
            self._living[session] += used_us
        else:
            self._past_us += used_us

    def of(self, leader: int) -> int:
        """What ended in the family of `leader`, which has not."""
        return self._living.get(leader, 0)

    def of_others(self, leader: int) -> int:
        """What ended in all other families."""
        return self._past_us + sum(self._living.values()) - self.of(leader)

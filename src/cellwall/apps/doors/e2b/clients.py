"""Clients: the releases of the E2B SDKs that this door is tested with, told by their User-Agent.

A client outside of the range is served, and is told so in a header and once in the log. The
invariant: what a client says of itself decides nothing else.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

_log = logging.getLogger("cellwall.server")
_AGENT = re.compile(r"\be2b-(python|js)-sdk/([0-9]{1,4})\.([0-9]{1,5})\.([0-9]{1,5})")
_MOST_TOLD = 64

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Tested:
    """The tested releases of one SDK."""

    name: str
    oldest: Version
    newest: Version

    def __str__(self) -> str:
        """Return the range in words."""
        return f"{self.name} {_text(self.oldest)} to {_text(self.newest)}"


TESTED = {
    "python": Tested("e2b (Python)", (2, 8, 0), (2, 63, 0)),
    "js": Tested("e2b (JavaScript)", (2, 8, 4), (2, 51, 0)),
}


class Clients:
    """What the log was told of clients."""

    def __init__(self) -> None:
        self._told: set[tuple[str, Version]] = set()

    def headers(self, user_agent: str) -> dict[str, str]:
        """Return the header that warns a client outside of the tested range, or nothing."""
        found = _AGENT.search(user_agent[:400])
        if found is None:
            return {}
        language, version = found[1], (int(found[2]), int(found[3]), int(found[4]))
        tested = TESTED[language]
        # A newer patch of the newest release changes no request.
        if tested.oldest <= version and version[:2] <= tested.newest[:2]:
            return {}
        self._tell(language, version)
        return {"warning": f'299 cellwall "tested with {tested}, not with {_text(version)}"'}

    def _tell(self, language: str, version: Version) -> None:
        if (language, version) in self._told or len(self._told) >= _MOST_TOLD:
            return
        self._told.add((language, version))
        _log.warning(
            "e2b: a client of release %s calls; tested are %s", _text(version), TESTED[language]
        )


def _text(version: Version) -> str:
    return ".".join(map(str, version))

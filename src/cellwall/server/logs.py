"""The server's own log: one record per line, nothing in it can pretend to be another record.

Not what sandboxes print and not the audit. The invariant: control characters, line ends and
characters that turn the direction of text are escaped at the sink, whoever wrote them.
"""

from __future__ import annotations

import logging
import re
import sys

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escaped(text: str) -> str:
    """Return `text` on one line, with everything a terminal might obey spelled out."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class OneLine(logging.Formatter):
    """Formats a record, its traceback included, as one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return escaped(super().format(record))


def set_up(level: str = "info") -> None:
    """Send our log and uvicorn's warnings to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s %(message)s"))
    for name, chosen in (("cellwall", level.upper()), ("uvicorn", "CRITICAL")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(chosen)

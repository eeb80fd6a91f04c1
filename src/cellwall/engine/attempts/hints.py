"""Hints: what a program's own error text may mean, as sentences for a person, never a verdict.

The kernel does not count refusals by `limits.file_mb`: it sends SIGXFSZ, which `verdicts` knows,
and to a program that ignores the signal (Python, Node.js, Ruby, Java) an error number that only the
program sees. Its printed text is the only sign, and may be made up.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cellwall.model.outcome import Verdict

if TYPE_CHECKING:
    from cellwall.engine.attempts.recorder import Recorder
    from cellwall.model.limits import Limits

_OWN_ENDS = frozenset({Verdict.OK, Verdict.EXCEPTION, Verdict.NONZERO_EXIT})
_TOO_LARGE = re.compile(r"\bEFBIG\b|\bfile too large\b|\bfile size limit exceeded", re.IGNORECASE)
_LAST_CHARACTERS = 16 * 1024


def of_words(verdict: Verdict, recorder: Recorder, limits: Limits) -> tuple[str, ...]:
    """Return hints on a limit that may explain the text that `recorder` received."""
    if verdict not in _OWN_ENDS or not (recorder.error or recorder.stderr.kept_bytes):
        return ()
    said = "" if recorder.error is None else recorder.error.value[-_LAST_CHARACTERS:]
    if not _TOO_LARGE.search(said + "\n" + recorder.stderr.text[-_LAST_CHARACTERS:]):
        return ()
    return (
        f"it says that a file became too large: each may have {limits.file_mb:g} MiB here; "
        "raise limits.file_mb if that was too little",
    )

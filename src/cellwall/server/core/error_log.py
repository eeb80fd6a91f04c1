"""Logging of exceptions that become answers, and release of their frames.

The answer that callers get is made by `errors`. The invariant: nothing that outlives a request
holds a frame of it. Frames hold the request's body, and an exception that is kept, or whose frame
has it in a variable, holds its frames: five hundred refused programs of 5 MB would be 7 GB.
"""

from __future__ import annotations

import logging

from cellwall.model.errors import CellwallError
from cellwall.server.core.errors import HttpError, status_of

_log = logging.getLogger("cellwall.server")
_LOGGED = "_is_told"


def log_failure(error: BaseException, request_id: str) -> None:
    """Log an error that is not a refusal, once, wherever it passes; a bug with its traceback."""
    status = status_of(error)
    if status < 500 or isinstance(error, HttpError) or hasattr(error, _LOGGED):
        return
    setattr(error, _LOGGED, True)
    is_ours = isinstance(error, CellwallError)
    _log.log(
        logging.ERROR if status == 500 else logging.WARNING,
        "request %s: %s: %s",
        request_id,
        type(error).__name__,
        error,
        exc_info=None if is_ours else error,
    )


def drop_traceback(error: BaseException) -> None:
    """Remove the frames from an exception, and from all exceptions that led to it."""
    known: set[int] = set()
    found: list[BaseException | None] = [error]
    while found:
        each = found.pop()
        if each is None or id(each) in known:
            continue
        known.add(id(each))
        each.__traceback__ = None
        found += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            found += each.exceptions

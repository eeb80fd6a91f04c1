"""Why a request failed: a code from a fixed list and a sentence.

Raised anywhere below `init/main.py`, which turns it into a `fail` event. It is not for failures of
caller code, which are outcomes, and not for the loss of the host, which ends the sandbox.

The codes are part of the guest channel (design/0002); the host knows no others.
"""

from __future__ import annotations

import errno
import os

CODES = frozenset(
    (
        "not_found",
        "exists",
        "permission",
        "is_directory",
        "not_directory",
        "invalid",
        "too_large",
        "no_space",
        "unsupported",
        "no_context",
        "busy",
        "cancelled",
        "refused",
        "internal",
    )
)

_CODE_OF_ERRNO = {
    errno.ENOENT: "not_found",
    errno.ESRCH: "not_found",
    errno.EEXIST: "exists",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EROFS: "permission",
    errno.EISDIR: "is_directory",
    errno.ENOTDIR: "not_directory",
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.ENOMEM: "no_space",
    errno.EFBIG: "too_large",
    errno.E2BIG: "too_large",
    errno.ENOEXEC: "invalid",
    errno.EINVAL: "invalid",
    errno.ENAMETOOLONG: "invalid",
    errno.ELOOP: "invalid",
    errno.ENOTEMPTY: "invalid",
    errno.ENXIO: "invalid",
    errno.EXDEV: "invalid",
    errno.EIO: "invalid",  # from a kernel file, which holds no data
    errno.ECONNREFUSED: "refused",
    errno.EAGAIN: "busy",
    errno.EBUSY: "busy",
    errno.ETXTBSY: "busy",
    errno.EMFILE: "busy",
    errno.ENFILE: "busy",
    errno.ENOBUFS: "busy",
    errno.ETOOMANYREFS: "busy",
}

_REMEDY_OF_ERRNO = {
    errno.ENOTEMPTY: "remove it recursively",
    errno.EAGAIN: "the limit of processes is reached; end some or raise it",
    errno.EMFILE: "the limit of open files is reached; end commands or raise it",
    errno.ECONNREFUSED: "nobody listens there; start the server first",
    errno.EFBIG: "the limit of one file's size is reached",
    errno.ENOSPC: "the work area is full; remove files or raise the disk limit",
    errno.EXDEV: "source and target lie on different file systems",
}


class Refusal(Exception):
    """A request is answered with `fail`."""

    def __init__(self, code: str, message: str) -> None:
        """`code` is one of CODES; `message` names the step, the object and the remedy."""
        super().__init__(message)
        self.code = code
        self.message = message


def refusal_from(error: OSError, step: str) -> Refusal:
    """Return a refusal with the errno's code, and the step and the remedy in words."""
    number = error.errno or 0
    code = _CODE_OF_ERRNO.get(number, "internal")
    reason = os.strerror(number) if number else str(error)
    remedy = _REMEDY_OF_ERRNO.get(number)
    return Refusal(code, f"{step}: {reason}" + (f" ({remedy})" if remedy else ""))

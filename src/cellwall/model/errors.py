"""What can go wrong on our side of the wall.

How a program ended is never an exception; it is an `Outcome`. These are our failures and our
callers' mistakes. Every message names the step, the object and the remedy.

    CellwallError
    ├── UsageError            the caller asked for something that cannot be (HTTP 400)
    ├── NotFound              no such sandbox, context, file, template, language (404)
    ├── Conflict              the object is in a state that forbids this (409)
    ├── CapacityError         full; try again after `retry_after_s` (503)
    │   └── QuotaExceeded     your own share is full; the quota is named (429)
    ├── SandboxUnavailable    the sandbox has ended; the message says why (410)
    ├── Interrupted           it had begun, and a server's end cut it short; not run again (503)
    ├── FileError             a file operation inside the sandbox was refused by its kernel; an
    │                         `OSError` as well, and of its kind: FileNotFoundError and so on
    ├── PortError             a connection to a port inside was refused, reset or not answered
    ├── HostUnsupported       this machine cannot give what was asked for (start-up, 503)
    ├── SandboxBroken         our fault: please file a bug; the sandbox was destroyed (500)
    ├── AccessDenied          the server does not know the key, or it may not do that (401, 403)
    └── ServerUnreachable     no server answers at that address, or no longer
"""

from __future__ import annotations

import errno as numbers
import os
from typing import Any


def _with_remedy(message: str, remedy: str | None) -> str:
    return message if remedy is None else f"{message}; {remedy}"


class CellwallError(Exception):
    """Base of every error cellwall raises on purpose."""

    code = "error"
    request_id: str | None = None
    """What to quote to the operator, if it came from a server."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        """Keep the remedy apart from the message so that doors can show both."""
        super().__init__(_with_remedy(message, remedy))
        self.message = message
        self.remedy = remedy


class UsageError(CellwallError):
    """The request can never work as it is."""

    code = "usage"


class NotFound(CellwallError):
    """The named object does not exist, or is not yours."""

    code = "not_found"


class Conflict(CellwallError):
    """The object exists, and its state forbids the request."""

    code = "conflict"


class CapacityError(CellwallError):
    """No room now."""

    code = "capacity"

    position: int | None = None
    """The place in the queue it would have had, 1 for the next; None where there is no queue."""

    def __init__(self, message: str, *, retry_after_s: float, remedy: str | None = None) -> None:
        """`retry_after_s` is the caller's advice, in seconds."""
        super().__init__(message, remedy=remedy)
        self.retry_after_s = retry_after_s


class QuotaExceeded(CapacityError):
    """The caller's tenant has as much as its tier allows."""

    code = "quota"

    def __init__(
        self, quota: str, message: str, *, retry_after_s: float, remedy: str | None = None
    ) -> None:
        """`quota` is the name of the setting, as `/quota` shows it."""
        super().__init__(message, retry_after_s=retry_after_s, remedy=remedy)
        self.quota = quota


class SandboxUnavailable(CellwallError):
    """The sandbox has ended, or is not running."""

    code = "sandbox_unavailable"


class Interrupted(CellwallError):
    """It had begun when its server ended; how far it came is not known. Never run again."""

    code = "interrupted"


class FileError(CellwallError, OSError):
    """A file operation inside a sandbox failed; `reason` is the guest's code for it.

    Reasons: `not_found exists permission is_directory not_directory invalid too_large no_space`.
    What is made is of the built-in class for its reason, too, so that `except FileNotFoundError`
    (`FileExistsError`, `PermissionError`, `IsADirectoryError`, `NotADirectoryError`, else
    `OSError`) sees it as it sees a file of this machine; `errno` has the kernel's number.
    """

    code = "file"

    def __new__(cls, message: str, *, reason: str, remedy: str | None = None) -> FileError:
        """Take the class for the reason."""
        kind = _FILE_KINDS.get(reason, cls) if cls is FileError else cls
        return super().__new__(kind, _with_remedy(message, remedy))

    def __init__(self, message: str, *, reason: str, remedy: str | None = None) -> None:
        """`reason` is one word of the list above."""
        super().__init__(message, remedy=remedy)
        self.reason = reason
        self.errno = _FILE_NUMBERS.get(reason, numbers.EINVAL)
        self.strerror = os.strerror(self.errno)

    def __str__(self) -> str:
        """Return message and remedy, as every error of ours; `OSError` begins with a number."""
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        """Be pickled and copied by what the constructor wants by name."""
        return _file_error, (self.message, self.reason, self.remedy), self.__dict__


class FileMissing(FileError, FileNotFoundError):
    """There is nothing of that name."""


class FileExists(FileError, FileExistsError):
    """There is something of that name."""


class FileForbidden(FileError, PermissionError):
    """The sandbox's user may not."""


class FileIsDirectory(FileError, IsADirectoryError):
    """It is a directory."""


class FileIsNoDirectory(FileError, NotADirectoryError):
    """It is none."""


_FILE_KINDS: dict[str, type[FileError]] = {
    "not_found": FileMissing,
    "exists": FileExists,
    "permission": FileForbidden,
    "is_directory": FileIsDirectory,
    "not_directory": FileIsNoDirectory,
}
_FILE_NUMBERS = {
    "not_found": numbers.ENOENT,
    "exists": numbers.EEXIST,
    "permission": numbers.EACCES,
    "is_directory": numbers.EISDIR,
    "not_directory": numbers.ENOTDIR,
    "invalid": numbers.EINVAL,
    "too_large": numbers.EFBIG,
    "no_space": numbers.ENOSPC,
}


def _file_error(message: str, reason: str, remedy: str | None) -> FileError:
    return FileError(message, reason=reason, remedy=remedy)


class PortError(CellwallError):
    """A connection to a port inside a sandbox failed.

    Reasons: `refused` (nobody listens), `reset` (the server broke it off), `timeout` (it did not
    accept in time), `closed` (by us, before).
    """

    code = "port"

    def __init__(self, message: str, *, reason: str, remedy: str | None = None) -> None:
        """`reason` is one word of the list above."""
        super().__init__(message, remedy=remedy)
        self.reason = reason


class HostUnsupported(CellwallError):
    """The host lacks `feature`; `errno` is the kernel's answer where it gave one."""

    code = "host_unsupported"

    def __init__(
        self, feature: str, message: str, *, remedy: str, errno: int | None = None
    ) -> None:
        """`remedy` is a sentence with the command to run."""
        super().__init__(message, remedy=remedy)
        self.feature = feature
        self.errno = errno


class SandboxBroken(CellwallError):
    """We failed to build, confine or speak to a sandbox; it has been destroyed."""

    code = "sandbox_broken"


class AccessDenied(CellwallError):
    """A server refused the caller: no key, an unknown one, or one that may not do that."""

    code = "access"


class ServerUnreachable(CellwallError):
    """There is no connection to a server, or it broke and could not be made again."""

    code = "unreachable"

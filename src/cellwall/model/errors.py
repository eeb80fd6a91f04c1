"""Errors: failures of cellwall and mistakes of its callers.

The end of a program is never an exception; it is an `Outcome`. Every message names the step, the
object and the remedy.

    CellwallError
    ├── UsageError            the caller asked for something that cannot be (HTTP 400)
    ├── NotFound              no such sandbox, context, file, template, language (404)
    ├── Conflict              the object is in a state that forbids this (409)
    ├── CapacityError         full; try again after `retry_after_s` (503)
    │   ├── QuotaExceeded     the tenant's own share is full; the quota is named (429)
    │   └── ImageComing       an image is being pulled, which takes longer than the caller waits
    ├── SandboxUnavailable    the sandbox has ended; the message says why (410)
    │   └── NodeLost          the node that had it is lost, for ever; also an `Interrupted` (410)
    ├── Interrupted           the server ended during the execution, which is not run again (503)
    ├── NodeUnreachable       the node that has the object does not answer now (503)
    ├── FileError             a file operation inside the sandbox was refused by its kernel; also
    │                         an `OSError`, of its kind: FileNotFoundError and so on
    ├── PortError             a connection to a port inside was refused, reset or not answered
    ├── HostUnsupported       this machine lacks what the request needs (start-up, 503)
    ├── SandboxBroken         a defect: please file a bug; the sandbox was destroyed (500)
    ├── AccessDenied          the server does not know the key, or it lacks the right (401, 403)
    └── ServerUnreachable     no server answers at that address, or no longer

Every error goes whole through `pickle` and `copy`: between the processes of a fleet it stays of
its kind, with its remedy and what else it says.
"""

from __future__ import annotations

import errno as numbers
import os
from typing import Any


def _with_remedy(message: str, remedy: str | None) -> str:
    return message if remedy is None else f"{message}; {remedy}"


class CellwallError(Exception):
    """Base of every error that cellwall raises on purpose."""

    code = "error"
    request_id: str | None = None
    """Id to quote to the operator, if the error came from a server."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        """Keep the remedy apart from the message so that an interface can show both."""
        super().__init__(_with_remedy(message, remedy))
        self.message = message
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy by what the error has; its constructor is not called again."""
        return _remade, (type(self), *self.args), self.__dict__


def _remade(kind: type[CellwallError], *args: object) -> CellwallError:
    return kind.__new__(kind, *args)


class UsageError(CellwallError):
    """The request can never succeed unchanged."""

    code = "usage"


class NotFound(CellwallError):
    """The named object does not exist, or belongs to another owner."""

    code = "not_found"


class Conflict(CellwallError):
    """The object exists, and its state forbids the request."""

    code = "conflict"

    def __init__(
        self, message: str, *, remedy: str | None = None, is_passing: bool = False
    ) -> None:
        """`is_passing`: the state ends by itself; the same request may succeed a moment later."""
        super().__init__(message, remedy=remedy)
        self.is_passing = is_passing


class CapacityError(CellwallError):
    """There is no room now."""

    code = "capacity"

    position: int | None = None
    """Place in the queue that the request would have had, 1 for the next; None where there is no
    queue."""

    def __init__(self, message: str, *, retry_after_s: float, remedy: str | None = None) -> None:
        """`retry_after_s` is the advised wait in seconds."""
        super().__init__(message, remedy=remedy)
        self.retry_after_s = retry_after_s


class ImageComing(CapacityError):
    """An image is being pulled, which takes longer than the caller waits."""

    code = "image_coming"


class QuotaExceeded(CapacityError):
    """The caller's tenant uses as much as its tier allows."""

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
    """The server ended during the execution; its progress is unknown. It is never run again."""

    code = "interrupted"


class NodeLost(SandboxUnavailable, Interrupted):
    """The node that had the sandbox, or ran the execution, is lost with everything in it.

    The program was not the reason. How far it came is unknown, and it is never run again by
    itself. Which node an object had is in its id, so every id of that node's has this end.
    """

    code = "node_lost"


class NodeUnreachable(CellwallError):
    """The node that has the object does not answer now; it may come back with all that it has."""

    code = "node_unreachable"

    def __init__(self, message: str, *, retry_after_s: float, remedy: str | None = None) -> None:
        """`retry_after_s` is the advised wait in seconds."""
        super().__init__(message, remedy=remedy)
        self.retry_after_s = retry_after_s


class FileError(CellwallError, OSError):
    """A file operation inside a sandbox failed; `reason` is the guest's code for it.

    Reasons: `not_found exists permission is_directory not_directory invalid too_large no_space`.
    The created object is also of the built-in class for its reason, so that `except
    FileNotFoundError` (`FileExistsError`, `PermissionError`, `IsADirectoryError`,
    `NotADirectoryError`, else `OSError`) catches it like an error about a file of this machine;
    `errno` has the kernel's number.
    """

    code = "file"

    def __new__(cls, message: str, *, reason: str, remedy: str | None = None) -> FileError:
        """Choose the class for the reason."""
        kind = _FILE_KINDS.get(reason, cls) if cls is FileError else cls
        return super().__new__(kind, _with_remedy(message, remedy))

    def __init__(self, message: str, *, reason: str, remedy: str | None = None) -> None:
        """`reason` is one word of the list above."""
        super().__init__(message, remedy=remedy)
        self.reason = reason
        self.errno = _FILE_NUMBERS.get(reason, numbers.EINVAL)
        self.strerror = os.strerror(self.errno)

    def __str__(self) -> str:
        """Return message and remedy, like every cellwall error; `OSError` begins with a number."""
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy by the constructor's named arguments."""
        return _file_error, (self.message, self.reason, self.remedy), self.__dict__


class FileMissing(FileError, FileNotFoundError):
    """There is no file of that name."""


class FileExists(FileError, FileExistsError):
    """A file of that name exists."""


class FileForbidden(FileError, PermissionError):
    """The sandbox's user lacks the permission."""


class FileIsDirectory(FileError, IsADirectoryError):
    """The path is a directory."""


class FileIsNoDirectory(FileError, NotADirectoryError):
    """The path is not a directory."""


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

    Reasons: `refused` (no server listens), `reset` (the server broke it off), `timeout` (the server
    did not accept in time), `closed` (by this side, before).
    """

    code = "port"

    def __init__(self, message: str, *, reason: str, remedy: str | None = None) -> None:
        """`reason` is one word of the list above."""
        super().__init__(message, remedy=remedy)
        self.reason = reason


class HostUnsupported(CellwallError):
    """The host lacks `feature`; `errno` is the kernel's error number if there was one."""

    code = "host_unsupported"

    def __init__(
        self, feature: str, message: str, *, remedy: str, errno: int | None = None
    ) -> None:
        """`remedy` is a sentence with the command to run."""
        super().__init__(message, remedy=remedy)
        self.feature = feature
        self.errno = errno


class SandboxBroken(CellwallError):
    """Building, confining or talking to a sandbox failed; it has been destroyed."""

    code = "sandbox_broken"


class AccessDenied(CellwallError):
    """A server refused the caller: no key, an unknown one, or one without that right."""

    code = "access"


class ServerUnreachable(CellwallError):
    """There is no connection to a server, or it broke and could not be made again."""

    code = "unreachable"

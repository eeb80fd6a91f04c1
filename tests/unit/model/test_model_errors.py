"""A file error is the built-in one of its kind; every error goes whole through pickle."""

from __future__ import annotations

import copy
import errno
import pickle  # noqa: TID251 - what frameworks do to errors of ours

import pytest

import cellwall
from cellwall.model.errors import (
    AccessDenied,
    CapacityError,
    CellwallError,
    Conflict,
    FileError,
    HostUnsupported,
    ImageComing,
    Interrupted,
    NodeLost,
    NodeUnreachable,
    NotFound,
    PortError,
    QuotaExceeded,
    SandboxBroken,
    SandboxUnavailable,
    ServerUnreachable,
    UsageError,
)

REASONS: dict[str, tuple[type[OSError], int]] = {
    "not_found": (FileNotFoundError, errno.ENOENT),
    "exists": (FileExistsError, errno.EEXIST),
    "permission": (PermissionError, errno.EACCES),
    "is_directory": (IsADirectoryError, errno.EISDIR),
    "not_directory": (NotADirectoryError, errno.ENOTDIR),
    "invalid": (OSError, errno.EINVAL),
    "too_large": (OSError, errno.EFBIG),
    "no_space": (OSError, errno.ENOSPC),
}


@pytest.mark.parametrize("reason", REASONS)
def test_reason_has_its_built_in_class_and_number(reason: str) -> None:
    kind, number = REASONS[reason]
    error = FileError("read 'a': no", reason=reason, remedy="do so")
    assert isinstance(error, kind)
    assert isinstance(error, (CellwallError, FileError))
    assert (error.errno, error.reason, error.code) == (number, reason, "file")
    assert (str(error), error.message, error.remedy) == (
        "read 'a': no; do so",
        "read 'a': no",
        "do so",
    )
    others = {each for each, _ in REASONS.values()} - {kind, OSError}
    assert not isinstance(error, tuple(others))


@pytest.mark.parametrize("reason", REASONS)
def test_file_error_is_copied_and_pickled_whole(reason: str) -> None:
    error = FileError("read 'a': no", reason=reason, remedy="do so")
    error.request_id = "r1"
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(again) is type(error)
        assert (str(again), again.__dict__) == (str(error), error.__dict__)
        assert again.errno == error.errno


def _each() -> list[CellwallError]:
    plain = (
        CellwallError,
        UsageError,
        NotFound,
        SandboxUnavailable,
        NodeLost,
        Interrupted,
        SandboxBroken,
        AccessDenied,
        ServerUnreachable,
    )
    made = [kind("step: object: why", remedy="do so") for kind in plain]
    made.append(Conflict("step: no", remedy="wait", is_passing=True))
    full = CapacityError("step: full", retry_after_s=2.5, remedy="wait")
    full.position = 7
    made += [full, ImageComing("pull: comes", retry_after_s=1.5)]
    made.append(QuotaExceeded("running", "step: full", retry_after_s=3.5, remedy="wait"))
    made.append(NodeUnreachable("node a7c2: silent", retry_after_s=4.5, remedy="wait"))
    made.append(FileError("read 'a': no", reason="not_found", remedy="look"))
    made.append(PortError("port 80: no", reason="refused", remedy="listen"))
    made.append(HostUnsupported("gvisor", "no runsc", remedy="install it", errno=38))
    return made


@pytest.mark.parametrize("error", _each(), ids=lambda error: type(error).__name__)
def test_error_is_copied_and_pickled_whole(error: CellwallError) -> None:
    error.request_id = "r1"
    error.add_note("said on the way")
    for again in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(again) is type(error)
        assert (str(again), again.args, again.__dict__) == (str(error), error.args, error.__dict__)


def test_every_public_error_was_pickled() -> None:
    public = {each for name in cellwall.__all__ if _is_error(each := getattr(cellwall, name))}
    assert public <= {type(each) for each in _each()} | {FileError}


def _is_error(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, CellwallError)

"""A file error is the built-in one of its kind, and one of ours."""

from __future__ import annotations

import copy
import errno
import pickle  # noqa: TID251 - what frameworks do to errors of ours

import pytest

from cellwall.model.errors import CellwallError, FileError

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

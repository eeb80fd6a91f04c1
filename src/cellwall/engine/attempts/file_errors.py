"""Errors of file operations: what the guest's refusal of one is for the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.model.errors import FileError, SandboxBroken

if TYPE_CHECKING:
    from cellwall.runtimes.channel.replies import GuestRefused

_REASONS = frozenset(
    {
        "not_found",
        "exists",
        "permission",
        "is_directory",
        "not_directory",
        "invalid",
        "too_large",
        "no_space",
    }
)


def file_error(refusal: GuestRefused, step: str) -> FileError | SandboxBroken:
    """Translate the guest's `fail` reply to a file operation."""
    if refusal.reason in _REASONS:
        return FileError(f"{step}: {refusal}", reason=refusal.reason)
    return SandboxBroken(
        f"{step}: the guest failed with {refusal.reason}: {refusal}",
        remedy="please file a bug",
    )

"""A guard dropped: a copy of the guest bundle in which one of our modules says something else.

For controls of guards that the inside cannot be asked about. The product has no such switch: code
is appended to a module of the copy. The host's half stays as it is, so what it expects is still
computed from the real plan.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cellwall.runtimes.jail.starting import bundle
from cellwall.runtimes.shared import guest_bundle

Drop = Callable[..., None]


def _mutated(original: Path, changes: dict[str, str], target: Path) -> Path:
    """Copy a bundle, appending code to the modules named and dropping their compiled form."""
    with zipfile.ZipFile(original) as source, zipfile.ZipFile(target, "w") as copy:
        names = source.namelist()
        wanted = {_only(names, name): code for name, code in changes.items()}
        for name in names:
            if name.removesuffix("c") in wanted and name.endswith(".pyc"):
                continue
            appended = f"\n\n{wanted[name]}\n".encode() if name in wanted else b""
            copy.writestr(name, source.read(name) + appended)
    target.chmod(0o644)
    return target


def _only(names: list[str], module: str) -> str:
    """Return the path of the one module of that name which is not the guest's."""
    (path,) = (
        each
        for each in names
        if each.endswith(f"/{module}.py") and not each.startswith("cellwall/guest/")
    )
    return path


def dropping(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Drop:
    """Return `drop(module=code, …)`; fork-servers then start from the copy."""
    real = guest_bundle.build_bundle

    def apply(**changes: str) -> None:
        target = directory / "mutated.pyz"
        monkeypatch.setattr(
            bundle, "build_bundle", lambda *given: _mutated(real(*given), changes, target)
        )

    return apply

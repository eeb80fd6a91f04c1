"""The contract of runtimes has its names where authors of runtimes import them from."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from cellwall.runtimes import base, keeping, roots


def _of_the_contract(module: ModuleType) -> list[str]:
    """Return the names of the classes that a module defines."""
    found = vars(module).values()
    classes = [each for each in found if isinstance(each, type)]
    return [each.__name__ for each in classes if each.__module__ == module.__name__]


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module in (keeping, roots) for name in _of_the_contract(module)],
)
def test_the_contract_is_found_in_base(module: ModuleType, name: str) -> None:
    assert getattr(base, name) is getattr(module, name)


def test_what_is_not_of_the_contract_is_not_found() -> None:
    with pytest.raises(AttributeError, match=r"runtimes\.base' has no attribute 'Nothing'"):
        base.Nothing  # noqa: B018 - the access is the test


def test_base_imports_the_rest_only_when_it_is_asked_for() -> None:
    code = (
        "import sys; from cellwall.runtimes import base; rest = 'cellwall.runtimes.roots'\n"
        "print(rest in sys.modules); base.ImageRoot; print(rest in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True"]

"""The house stands as drawn: import contracts, the standard-library-only half, the papers.

Not style (ruff) nor types (mypy). What travels into a sandbox or runs with privileges is checked
by reading its imports, because a forgotten third-party import works on every developer's machine.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.places import ROOT

Require = Callable[[str, bool, str], None]

SOURCE = ROOT / "src/cellwall"
TOP_PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))

_TEMPLATE_PACKAGES = {"IPython", "matplotlib", "numpy", "pandas", "traitlets"}
"""May be imported by guest code on use, where the template has them; never at the top."""


def imports(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Yield (absolute module, whether at the top of the file) of every import statement."""
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or "", id(node) in top


def foreign(path: Path, allowed: tuple[str, ...]) -> list[str]:
    """Return the imports of `path` that are neither standard library nor `allowed`."""
    found = []
    for module, at_top in imports(ast.parse(path.read_text(encoding="utf-8"))):
        name = module.partition(".")[0]
        fine = name in sys.stdlib_module_names or any(
            module == each or module.startswith(each + ".") for each in allowed
        )
        if not fine and (at_top or name not in _TEMPLATE_PACKAGES):
            found.append(module)
    return found


def modules_of(package: str) -> list[Path]:
    """Return the modules of a package of ours; an empty one would make a test say nothing."""
    found = sorted((SOURCE / package).rglob("*.py"))
    assert found, package
    return found


@pytest.mark.parametrize("path", modules_of("guest"), ids=lambda p: str(p.relative_to(SOURCE)))
def test_guest_imports_only_the_standard_library_and_itself(path: Path) -> None:
    assert foreign(path, ("cellwall.guest", "guest")) == []


@pytest.mark.parametrize("path", modules_of("jail"), ids=lambda p: str(p.relative_to(SOURCE)))
def test_jail_imports_no_third_party(path: Path) -> None:
    ours = ("cellwall.jail", "cellwall.linux", "cellwall.guest", "cellwall.model")
    assert foreign(path, ours) == []


@pytest.mark.parametrize("path", modules_of("linux"), ids=lambda p: str(p.relative_to(SOURCE)))
def test_linux_imports_no_third_party(path: Path) -> None:
    assert foreign(path, ("cellwall.linux", "cellwall.model")) == []


@pytest.mark.parametrize("path", modules_of("linux/syscalls"), ids=lambda p: p.stem)
def test_what_travels_of_linux_imports_nothing_else_of_ours(path: Path) -> None:
    assert foreign(path, ("cellwall.linux.syscalls",)) == []


@pytest.mark.parametrize("path", modules_of("model"), ids=lambda p: str(p.relative_to(SOURCE)))
def test_model_imports_only_the_standard_library_and_itself(path: Path) -> None:
    assert foreign(path, ("cellwall.model",)) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import numpy", ["numpy"]),
        ("def f():\n    import numpy", []),
        ("def f():\n    import httpx", ["httpx"]),
        ("from cellwall.engine import pool", ["cellwall.engine"]),
        ("from cellwall.guestbook import x", ["cellwall.guestbook"]),
        ("import os.path, json", []),
    ],
)
def test_the_import_reader_itself(source: str, expected: list[str], tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(source)
    assert foreign(file, ("cellwall.guest",)) == expected


def test_import_contracts_hold() -> None:
    program = Path(sysconfig.get_path("scripts")) / "lint-imports"
    run = subprocess.run(
        [program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("package", TOP_PACKAGES)
def test_package_says_its_duty(package: str) -> None:
    tree = ast.parse((SOURCE / package / "__init__.py").read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)


@pytest.mark.parametrize("package", TOP_PACKAGES)
def test_package_has_a_paragraph_in_architecture(package: str, require: Require) -> None:
    require("ARCHITECTURE.md", (ROOT / "ARCHITECTURE.md").exists(), "write it")
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    paragraphs = [
        part for part in re.split(r"\n\s*\n|\n(?=[-|*#] ?)", text) if f"`{package}" in part
    ]
    assert any(len(part.split()) >= 8 for part in paragraphs), f"describe `{package}`"


def test_no_file_is_named_after_nothing() -> None:
    names = {"utils", "helpers", "common", "manager"}
    assert [p for p in SOURCE.rglob("*.py") if p.stem in names] == []


def test_every_module_has_a_docstring() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in SOURCE.rglob("*.py")
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_changelog_has_the_version_of_the_project() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {project['version']}" in changelog


def test_every_make_goal_named_in_the_readme_exists() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"\bmake (run|test|check|bench|clean|[a-z]+)\b(?=`|\s*(?:#|$))", readme))
    defined = set(re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE))
    assert {"run", "test"} <= named
    assert named <= defined

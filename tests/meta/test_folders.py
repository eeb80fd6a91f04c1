"""Folders are small enough to be read as a list, and no two of them import each other.

Imports inside functions count, those for type checkers do not. `test_architecture` holds the
layers of the packages; here is what is true within them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kit.places import ROOT, TESTS

SOURCE = ROOT / "src" / "cellwall"

MOST_MODULES = 15
LARGER = {
    "apps/cli": "one module for each command",
    "languages/entries": "one module for each language",
    "model": "the nouns that every package shares",
    "server/routes": "one module for each noun of the API",
}
"""Folders that may have more, and why."""
MOST_OF_ALL = 30

Graph = dict[str, set[str]]


def _modules() -> dict[str, Path]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those below `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(tree):
        if not _is_for_types(child):
            yield child
            yield from _nodes(child)


def _imported(tree: ast.Module, modules: Mapping[str, Path]) -> Iterator[str]:
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in modules else node.module


def folders(modules: Mapping[str, Path]) -> Graph:
    """Return which folder imports which other ones."""
    graph: Graph = {}
    for path in modules.values():
        folder = str(path.parent.relative_to(SOURCE))
        wanted = graph.setdefault(folder, set())
        if path == SOURCE / "__init__.py":
            continue  # the front page names what lies in every package, and imports it on use
        for name in _imported(ast.parse(path.read_text(encoding="utf-8")), modules):
            if name in modules:
                wanted.add(str(modules[name].parent.relative_to(SOURCE)))
        wanted.discard(folder)
    return graph


def cycles(graph: Graph) -> list[set[str]]:
    """Return groups of folders in which each imports each other one, directly or not."""
    reached: Graph = {}
    for start in graph:
        found, new = set(), {start}
        while new:
            found |= new
            new = {each for one in new for each in graph.get(one, ())} - found
        reached[start] = found
    groups = [{b for b in reached[a] if a in reached.get(b, ())} for a in graph]
    return [each for i, each in enumerate(groups) if len(each) > 1 and each not in groups[:i]]


def test_no_two_folders_import_each_other() -> None:
    graph = folders(_modules())
    assert len(graph) > 50, "the folders were read"
    assert cycles(graph) == []


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}}, [{"a", "b"}]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, [{"a", "b", "c"}]),
    ],
)
def test_the_search_for_cycles_itself(graph: Graph, expected: list[set[str]]) -> None:
    assert cycles(graph) == expected


def test_an_import_in_a_function_counts_and_one_for_types_does_not(tmp_path: Path) -> None:
    tree = ast.parse(
        "if TYPE_CHECKING:\n    from cellwall.a import x\ndef f():\n    from cellwall import b\n"
    )
    assert list(_imported(tree, {"cellwall.b": tmp_path})) == ["cellwall.b"]


@pytest.mark.parametrize(
    "folder", sorted({path.parent for path in SOURCE.rglob("*.py")}), ids=lambda p: p.name
)
def test_folder_can_be_read_as_a_list(folder: Path) -> None:
    count = sum(path.name != "__init__.py" for path in folder.glob("*.py"))
    is_listed = str(folder.relative_to(SOURCE)) in LARGER
    assert count <= (MOST_OF_ALL if is_listed else MOST_MODULES)
    assert count > MOST_MODULES or not is_listed, "it needs no exception"


@pytest.mark.parametrize(
    "folder", sorted({path.parent for path in TESTS.rglob("*.py")}), ids=lambda p: p.name
)
def test_folder_of_tests_can_be_read_as_a_list(folder: Path) -> None:
    assert sum(path.name != "__init__.py" for path in folder.glob("*.py")) <= MOST_MODULES


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("__init__.py")), ids=lambda p: p.parent.name)
def test_folder_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))

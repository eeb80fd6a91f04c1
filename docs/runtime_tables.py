"""The tables of docs/runtimes.md: what each runtime passes, read from the suites and their lists.

Not a runner: CI runs the suites, in which every deviation named here is a strict xfail. Called by
`generate`. The invariant: a row is a test that exists, a note is the reason in the suite's list.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1] / "tests"


def _see_tests() -> None:
    """As pytest does, so that test modules can be imported by their bare names."""
    for folder in (_TESTS, _TESTS / "contract" / "runtimes"):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def contract() -> str:
    """Return a row for each test of the contract, a column for each runtime."""
    _see_tests()
    import test_docker
    import test_gvisor
    import test_jail
    import test_process

    from cellwall.testing.contract import RuntimeContract

    suites = (
        test_jail.TestJailRuntime,
        test_docker.TestDockerRuntime,
        test_gvisor.TestGvisorRuntime,
        test_docker.TestDockerRunscRuntime,
        test_process.TestProcessRuntime,
    )
    tests = [
        name for kind in RuntimeContract.__mro__ for name in vars(kind) if name.startswith("test_")
    ]
    columns = {suite.runtime_name: suite.deviations for suite in suites}
    _check(columns, tests)
    return _table(tests, columns)


def corpus() -> str:
    """Return a row for each test of the attack corpus, a column for each runtime but the jail."""
    _see_tests()
    from attack.walls import test_attack_corpus

    tests = [name for named in test_attack_corpus.CORPUS.values() for name in named]
    _check(test_attack_corpus.DEVIATIONS, tests)
    return _table(tests, test_attack_corpus.DEVIATIONS, test_attack_corpus.runtimes_of)


def image_corpus() -> str:
    """Return a row for each test of the corpus, a column for each runtime and user of an image."""
    _see_tests()
    from attack.images import image_corpus as on_images

    columns = {
        f"{wall} {user}": {
            name: why for name, why in reasons.items() if name.partition("[")[0] in _run(wall)
        }
        for wall, users in on_images.DEVIATIONS.items()
        for user, reasons in users.items()
    }
    return _table(_run("jail"), columns, on_images.places_of)


def _run(wall: str) -> list[str]:
    from attack.images import image_corpus as on_images

    return [name for named in on_images.corpus_of(wall).values() for name in named]


def not_on_images() -> str:
    """Return the modules of attacks that do not run on images, by the reason."""
    _see_tests()
    from attack.images import image_corpus as on_images

    by_reason: dict[str, list[str]] = {}
    for name, why in on_images.NOT_AGAIN.items():
        by_reason.setdefault(why, []).append(f"`{name}`")
    rows = ["| Why | What does not run on images once more |", "|---|---|"]
    rows += [f"| {why} | {'; '.join(names)} |" for why, names in by_reason.items()]
    return "\n".join(rows)


def jail_only() -> str:
    """Return the tests of the jail that have no row in the corpus, by the reason."""
    _see_tests()
    from kit.attack import jail_only as only

    by_reason: dict[str, list[str]] = {}
    for name, why in {**only.MODULES, **only.TESTS}.items():
        words = f"`{name}`" if name in only.MODULES else _words(name)
        by_reason.setdefault(why, []).append(words)
    rows = ["| Why | What runs in the jail only |", "|---|---|"]
    rows += [f"| {why} | {'; '.join(names)} |" for why, names in by_reason.items()]
    return "\n".join(rows)


def _words(test: str) -> str:
    return test.removeprefix("test_").replace("_", " ")


def _check(columns: Mapping[str, Mapping[str, str]], tests: Iterable[str]) -> None:
    known = set(tests)
    for runtime, reasons in columns.items():
        odd = sorted(name for name in reasons if name.partition("[")[0] not in known)
        if odd:
            raise SystemExit(f"{runtime}: there is no {odd[0]} to deviate from")


def _table(
    tests: Iterable[str],
    columns: Mapping[str, Mapping[str, str]],
    runs_on: Callable[[str], Iterable[str]] | None = None,
) -> str:
    notes: list[str] = []
    rows = ["| | " + " | ".join(f"`{name}`" for name in columns) + " |"]
    rows.append("|---|" + "---|" * len(columns))
    for test in tests:
        where = set(columns if runs_on is None else runs_on(test))
        cells = [
            _cell(test, reasons, notes) if name in where else ""
            for name, reasons in columns.items()
        ]
        rows.append(f"| {_words(test)} | " + " | ".join(cells) + " |")
    listed = [f"{number}. {note}" for number, note in enumerate(notes, 1)]
    return "\n".join([*rows, "", *listed])


def _cell(test: str, reasons: Mapping[str, str], notes: list[str]) -> str:
    """Return `yes`, or the numbers of the notes that say what is different."""
    found = [
        f"{case[len(test) + 1 : -1]}: {why}" if case != test else why
        for case, why in reasons.items()
        if case.partition("[")[0] == test
    ]
    for note in found:
        if note not in notes:
            notes.append(note)
    numbers = ", ".join(str(notes.index(note) + 1) for note in found)
    if not found:
        return "yes"
    return f"no ({numbers})" if test in reasons else f"but ({numbers})"

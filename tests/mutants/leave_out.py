"""`make mutants`: leave out one guard after the other and see that its tests fail.

    PYTHONPATH=tests python -m mutants.leave_out [--quick] [--share N] [WORD ...]

`--quick`: only tests that take no sandbox, as CI does. `--share`: one row in N, others with each
commit. WORDs choose rows by finding (`F3`), or by a
part of the guard's words or the file's name. All of it happens in a copy of this clone with an
environment of its own; the copy's source changes, so that every process of a test has the mutation.

The invariant: a row counts as noticed only if each of its tests passed in the same copy without the
mutation, ran, and then failed; a mutation that hangs, cannot be imported or is skipped is none.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from kit.ci.share import without_shares
from mutants.tables import ROOT, Mutant, is_there, load, path_of

_LEFT_OUT = (".venv", ".git", "__pycache__", ".*_cache", ".hypothesis", "dist", "build")
_MOST_S = 590
"""For the tests of one mutation, which end by their own limits before."""
_TOO_LONG = "Failed: Timeout"
"""How pytest-timeout begins."""
_NEEDS_ALL = bool(os.environ.get("CELLWALL_REQUIRE_CAPABILITIES"))


class Copy:
    """The clone in which guards are left out."""

    def __init__(self, root: Path) -> None:
        """Fill `root`, and make its environment."""
        shutil.copytree(
            ROOT, root, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT), dirs_exist_ok=True
        )
        self._root = root
        subprocess.run([root / "scripts/bootstrap", "--dev"], check=True, stdout=subprocess.DEVNULL)

    @contextmanager
    def without(self, mutant: Mutant) -> Iterator[None]:
        """Leave the guard out meanwhile."""
        path = self._root / mutant.file
        text, times = path.read_text(encoding="utf-8"), path.stat()
        path.write_text(mutant.apply(text), encoding="utf-8")
        # Whole seconds decide whether bytecode is still that of a source of the same length.
        os.utime(path, (times.st_atime, times.st_mtime - 10))
        try:
            yield
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, (times.st_atime, times.st_mtime))

    def run(self, tests: Iterable[str]) -> dict[str, str]:
        """Return `passed`, `failed: why`, `skipped` or another word for each of `tests`."""
        wanted = sorted(set(tests))
        report = self._root / "report.xml"
        report.unlink(missing_ok=True)
        words = [".venv/bin/pytest", "-q", "-p", "no:cacheprovider", "-m", "slow or not slow"]
        words += [f"--junitxml={report}", *map(_node, wanted)]
        with subprocess.Popen(
            words,
            cwd=self._root,
            env=without_shares(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                process.wait(_MOST_S)
            except subprocess.TimeoutExpired:
                # A test that hangs may hang in pytest's own end as well; sandboxes end with it.
                os.killpg(process.pid, signal.SIGKILL)
                return dict.fromkeys(wanted, "hung")
        found = _cases(report) if report.exists() else []
        return {test: _verdict(test, found) for test in wanted}


def _node(test: str) -> str:
    module, _, name = test.partition("::")
    return f"{path_of(module)}::{name}"


def _cases(report: Path) -> list[tuple[str, str]]:
    """Return (name as in the tables, result) of each case of a report that pytest wrote."""
    found = []
    for case in ET.parse(report).getroot().iter("testcase"):
        parts = case.get("classname", "").split(".")
        at = next((i for i, part in enumerate(parts) if part.startswith("test_")), len(parts) - 1)
        module = "/".join([*parts[1:at][:1], parts[at]])
        name = "::".join([module, *parts[at + 1 :], case.get("name", "")])
        found.append((name, _result(case)))
    return found


def _result(case: ET.Element) -> str:
    for kind in ("failure", "error", "skipped"):
        for child in case.iter(kind):
            why = child.get("message", "").partition("\n")[0]
            if why.startswith(_TOO_LONG):
                return "hung"
            return f"failed: {why[:100]}" if kind == "failure" else kind
    return "passed"


def _verdict(test: str, found: Sequence[tuple[str, str]]) -> str:
    """Return what became of a test, whatever its cases: `failed: why`, if one has."""
    results = [result for name, result in found if name == test or name.partition("[")[0] == test]
    order = ("failed", "error", "hung", "passed", "skipped")
    return min(results, key=lambda each: order.index(each.partition(":")[0]), default="did not run")


def _chosen(words: Sequence[str]) -> list[Mutant]:
    def is_meant(mutant: Mutant) -> bool:
        return any(
            word == mutant.finding or word in mutant.guard or word in mutant.file for word in words
        )

    return [mutant for mutant in load() if not words or is_meant(mutant)]


def _turn() -> int:
    """Return a number that another commit has another of."""
    said = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return int(said.stdout[:8], 16)


class _Count:
    """What has come of the rows."""

    def __init__(self) -> None:
        """Nothing has come yet."""
        self.noticed = self.wrong = self.untried = 0

    def judge(self, found: Mapping[str, str], before: Mapping[str, str]) -> str:
        """Take down one row; a test that this machine cannot run counts where all is required."""
        lacking = {test for test in found if before[test] == "skipped" and not _NEEDS_ALL}
        tried = [result for test, result in found.items() if test not in lacking]
        if not tried:
            self.untried += 1
            return "not tried"
        if all(result.startswith("failed") for result in tried):
            self.noticed += 1
            return "noticed"
        self.wrong += 1
        return "NOT NOTICED"


def _try_each(copy: Copy, mutants: Sequence[Mutant], *, is_quick: bool) -> _Count:
    count = _Count()
    tests = {each: each.quick() if is_quick else each.tests for each in mutants}
    before = copy.run(test for each in mutants for test in tests[each])
    for mutant in mutants:
        began = time.monotonic()
        runs = [test for test in tests[mutant] if before[test] == "passed"]
        found = {test: f"without the mutation: {before[test]}" for test in tests[mutant]}
        if runs:
            with copy.without(mutant):
                found |= copy.run(runs)
        word = count.judge(found, before)
        print(f"{word:12} {time.monotonic() - began:6.1f} s  {mutant.name}")
        for test, result in found.items():
            print(f"{'':24}{test}: {result}", flush=True)
    return count


def main(arguments: Sequence[str]) -> int:
    """Return 0 if every chosen guard was missed."""
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--share", type=int, default=1)
    parser.add_argument("words", nargs="*")
    asked = parser.parse_args(arguments)
    mutants = [each for each in _chosen(asked.words) if each.quick() or not asked.quick]
    mutants = mutants[_turn() % asked.share :: asked.share]
    if missing := [test for each in mutants for test in each.tests if not is_there(test)]:
        parser.error(f"tests that are not there: {', '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        os.chmod(name, 0o755)
        count = _try_each(Copy(Path(name, "clone")), mutants, is_quick=asked.quick)
    print(
        f"{count.noticed} of {len(mutants)} guards are missed by their tests, {count.wrong} are "
        f"not, {count.untried} could not be tried on this machine"
    )
    return 1 if count.wrong or not mutants else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The four suites: how each is installed and run, and which of its tests passed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

_HERE = Path(__file__).parents[2]
_TOOLS = _HERE / ".tools"
_PYTEST = ("pytest<10", "pytest-asyncio", "pytest-dotenv", "pytest-timeout", "pytest-xdist")
_NODE_MODULES = ("vitest", "@types/node", "dotenv", "error-stack-parser-es", "msw")
"""What suites in JavaScript need of their development dependencies."""
_VITEST = """
import { defineConfig } from 'vitest/config'
export default defineConfig({ test: {
  maxWorkers: 2, testTimeout: 180000, hookTimeout: 60000, environment: 'node', isolate: true,
  include: %s, env: { ...(process.env as Record<string, string>) },
} })
"""
_MOCKS = ("from 'msw'", "mockVolumeContent", "vi.mock(", "vi.doMock(", "vi.stubGlobal(")
_TEST_S = 120


class Suite(Protocol):
    """One suite."""

    @property
    def name(self) -> str:
        """Its name in `left.toml`."""

    def install(self) -> None:
        """Install what it needs."""

    def run(self, variables: Mapping[str, str], words: str) -> dict[str, bool]:
        """Run it with these variables; return which tests passed."""


def found(sdks: Path | None, interpreter: Path | None) -> list[Suite]:
    """Return the suites of the checkouts."""
    made: list[Suite] = []
    if sdks is not None:
        made.append(PythonSuite("python", sdks / "packages/python-sdk", ("sync", "async")))
        made.append(JavaScriptSuite("javascript", sdks / "packages/js-sdk"))
    if interpreter is not None:
        beside = () if sdks is None else (sdks / "packages/python-sdk",)
        made.append(PythonSuite("interpreter-python", interpreter / "python", ("",), beside))
        made.append(JavaScriptSuite("interpreter-javascript", interpreter / "js"))
    return made


@dataclass(frozen=True)
class PythonSuite:
    """Tests for pytest, in an environment of their own."""

    name: str
    folder: Path
    parts: tuple[str, ...]
    beside: tuple[Path, ...] = ()
    """Further packages of checkouts, of the same time, that it needs."""

    @property
    def _environment(self) -> Path:
        return _TOOLS / "upstream" / self.name

    def install(self) -> None:
        """Make the environment, with the SDK of the checkout in it."""
        uv = str(_TOOLS / "uv")
        python = self._environment / "bin/python"
        called([uv, "venv", "--quiet", "--clear", "--python", sys.executable, self._environment])
        called(
            [
                uv,
                "pip",
                "install",
                "--quiet",
                "--python",
                python,
                self.folder,
                *self.beside,
                *_PYTEST,
            ]
        )

    def run(self, variables: Mapping[str, str], words: str) -> dict[str, bool]:
        """Run it with these variables; return which tests passed."""
        report = self._environment / "report.xml"
        report.unlink(missing_ok=True)
        asked = [self._environment / "bin/pytest", "-q", "-n", "2", "-p", "no:cacheprovider"]
        asked += ["--timeout", _TEST_S, "-o", "asyncio_mode=auto", f"--junitxml={report}"]
        asked += ["-k", words] if words else []
        asked += [self.folder / "tests" / part for part in self.parts]
        done = subprocess.run(
            list(map(str, asked)), cwd=self.folder, env=environment(variables), check=False
        )
        assert done.returncode in {0, 1}, f"pytest ended with {done.returncode}"
        return dict(_of_report(report))


def _of_report(report: Path) -> Iterator[tuple[str, bool]]:
    """Yield each test of a JUnit report that was not skipped."""
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            bad = case.find("failure") is not None or case.find("error") is not None
            yield f"{case.get('classname')}::{case.get('name')}", not bad


@dataclass(frozen=True)
class JavaScriptSuite:
    """Tests for vitest, in a copy of their folder."""

    name: str
    folder: Path

    @property
    def _copy(self) -> Path:
        return _TOOLS / "upstream" / self.name

    def install(self) -> None:
        """Copy the folder, and install the SDK's dependencies and a test runner into it."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.folder, self._copy, ignore=shutil.ignore_patterns("node_modules"))
        described = json.loads((self._copy / "package.json").read_text(encoding="utf-8"))
        wanted: dict[str, Any] = described.get("devDependencies", {})
        described["devDependencies"] = {
            name: wanted.get(name, "*") for name in _NODE_MODULES if name in wanted
        } | {"vitest": wanted.get("vitest", "*")}
        described.pop("scripts", None)
        (self._copy / "package.json").write_text(json.dumps(described), encoding="utf-8")
        for old in self._copy.glob("vitest.config.*"):
            old.unlink()
        config = _VITEST % json.dumps(self._live())
        (self._copy / "vitest.config.mts").write_text(config, encoding="utf-8")
        called(
            ["npm", "install", "--silent", "--no-audit", "--no-fund", "--legacy-peer-deps"],
            cwd=self._copy,
        )

    def _live(self) -> list[str]:
        """Return the tests that ask a server: those that mock one would miss it elsewhere."""
        tests = self._copy / "tests"
        return [
            str(path.relative_to(self._copy))
            for path in sorted(tests.rglob("*.test.ts"))
            if "runtimes" not in path.parts and "bundle" not in path.parts
            if not any(mock in path.read_text(encoding="utf-8") for mock in _MOCKS)
        ]

    def run(self, variables: Mapping[str, str], words: str) -> dict[str, bool]:
        """Run it with these variables; return which tests passed."""
        report = self._copy / "report.json"
        asked = ["npx", "vitest", "run", "--reporter=json", f"--outputFile={report}"]
        asked += ["-t", words] if words else []
        subprocess.run(asked, cwd=self._copy, env=environment(variables), check=False)
        results = json.loads(report.read_text(encoding="utf-8"))["testResults"]
        return {
            f"{Path(file['name']).relative_to(self._copy / 'tests')}::{test['title']}": (
                test["status"] == "passed"
            )
            for file in results
            for test in file["assertionResults"]
            if test["status"] in {"passed", "failed"}
        }


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a client that these variables point to a server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
    for name in ("PYTHONPATH", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        kept.pop(name, None)
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", **variables}


def called(command: list[Any], cwd: Path | None = None) -> None:
    """Run a command that has to succeed."""
    subprocess.run(list(map(str, command)), cwd=cwd, check=True)

"""A fleet costs nothing until it is asked for, and says what it misses."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from cellwall.fleet import Fleet
from cellwall.fleet.wire import items
from cellwall.model.errors import HostUnsupported, UsageError


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_library_imports_no_fleet() -> None:
    code = "import sys, cellwall; cellwall.run; print(any('fleet' in name for name in sys.modules))"
    assert python(code) == "False\n"


def test_a_fleet_is_imported_without_ray_and_without_an_engine() -> None:
    code = """
import sys
import cellwall.fleet
print([name for name in sys.modules if name in ("ray", "cellwall.engine.engine")])
"""
    assert python(code) == "[]\n"


def test_ray_that_is_missing_is_named_with_its_extra() -> None:
    code = """
import asyncio, sys
sys.modules["ray"] = None
from cellwall.fleet import Fleet
from cellwall.model.errors import HostUnsupported
async def main():
    await Fleet.connect()
try:
    asyncio.run(main())
except HostUnsupported as error:
    print(error.remedy)
"""
    assert python(code) == "run: pip install 'cellwall[ray]'\n"


@pytest.mark.parametrize("given", [{"fence_s": 1}, {"at_once": 0}])
def test_numbers_that_cannot_be_are_refused_at_once(given: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        Fleet.connect(**given)  # type: ignore[arg-type]


def test_the_blocking_face_tells_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(HostUnsupported, match="not installed"):
        Fleet.blocking()


@pytest.mark.parametrize("name", ["tools", "secrets", "volumes", "on_event", "on_stdout"])
def test_what_stays_on_its_machine_is_refused_with_a_remedy(name: str) -> None:
    asked: dict[str, Any] = {name: [1]}
    with pytest.raises(UsageError) as caught:
        items.program("1", **asked)
    assert caught.value.remedy


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(UsageError, match="colour"):
        items.program("1", colour=3)
    with pytest.raises(UsageError, match="colour"):
        items.sandbox(colour=3)


def test_a_program_goes_to_json_and_back() -> None:
    body = items.program(
        "1", stdin=b"\xff", files={"a": "text", "b": b"\x00"}, timeout=3, args=["x"], env={"A": "b"}
    )
    again = items.options_of(_over(body))
    assert again == {
        "code": "1",
        "stdin": b"\xff",
        "files": {"a": "text", "b": b"\x00"},
        "timeout": 3,
        "args": ["x"],
        "env": {"A": "b"},
    }


def _over(body: items.Json) -> items.Json:
    found: items.Json = json.loads(items.item("t", "program", body))["body"]
    return found

"""FI-13: descriptors or processes of the host run out: refused by name, nothing half made.

The shortage is real: an engine in a process of its own with a small RLIMIT_NOFILE, or in a pids
cgroup that the test makes. Each program opens sandboxes until it may not, counts what it has,
closes them and runs once more; the control is the number that it did open.
"""

from __future__ import annotations

import os
import resource
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall.linux.cgroups import hierarchies
from conftest import Require
from kit.faults.entries import embedded
from kit.places import TESTS

pytestmark = [pytest.mark.attack]

_FILL = """
import resource
from kit.arena import Traces

async def main():
    engine = bare()
    say("first", await tried(engine.run("print(1)")))
    await engine.wait_settled()
    before = Traces.now()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if len(arguments) > 1:
        most = len(os.listdir("/proc/self/fd")) + int(arguments[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
    opened = []
    try:
        while len(opened) < 60:
            opened.append(await engine.create_sandbox(limits={"processes": 10, "memory_mb": 64}))
        say("refused", None)
    except CellwallError as error:
        say("refused", {"code": error.code, "words": str(error), "remedy": error.remedy})
    say("opened", len(opened))
    with contextlib.suppress(CellwallError):
        said = [(await sandbox.run("print('well')")).stdout for sandbox in opened]
        say("still well", said == ["well\\n"] * len(opened))
    for sandbox in opened:
        await sandbox.close()
    await engine.wait_settled()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    after = Traces.now()
    say("left", [str(before), str(after)] if before != after else None)
    say("again", await tried(engine.run("print(2)")))
    await engine.aclose()

asyncio.run(main())
"""


def _fill(*arguments: str, **options: Any) -> dict[str, Any]:
    program = "sys.path.insert(0, arguments[0])\n" + _FILL
    return embedded(program, str(TESTS), *arguments, **options)


def _check(said: dict[str, Any]) -> None:
    assert said["first"] == {"stdout": "1\n"}
    assert said["opened"] > 0
    assert said["still well"] is True
    assert said["left"] is None
    assert said["again"] == {"stdout": "2\n"}
    assert "Traceback" not in said["stderr"], said["stderr"]


@pytest.mark.parametrize("room", [16, 17, 18, 19, 20, 21])
def test_full_table_of_descriptors_is_a_refusal_with_a_remedy(room: int) -> None:
    """Several limits: each ends the start of the last sandbox at another step."""
    said = _fill(str(room))
    assert said["refused"]["code"] in {"capacity", "sandbox_broken"}, said
    assert "descriptor" in said["refused"]["words"]
    _check(said)


@pytest.mark.parametrize(
    ("hard", "wanted", "words"),
    [
        (64, 64, "open files: 64: a sandbox takes 256"),
        (255, 256, "open files: 255: a sandbox takes 256"),
        (300, 301, "start a sandbox with 301 open files: the hard limit on them"),
        (300, 300, ""),
    ],
)
def test_small_hard_limit_on_descriptors_is_named(hard: int, wanted: int, words: str) -> None:
    limits = f"limits={{'open_files': {wanted}}}"
    program = f"async def main():\n    say('said', await tried(bare().run('print(1)', {limits})))\n"

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    said = embedded(f"{program}asyncio.run(main())", before=lower)["said"]
    if not words:
        assert said == {"stdout": "1\n"}
        return
    assert said["code"] == "host_unsupported"
    assert words in said["error"]
    assert "LimitNOFILE=65536" in said["error"]


@pytest.fixture
def narrow(require: Require) -> Iterator[Path]:
    """A pids cgroup of 40 processes, beside ours; removed once it is empty."""
    hierarchy = hierarchies.discover().having("pids")
    require("a pids cgroup", hierarchy is not None, "run `cellwall doctor`")
    assert hierarchy is not None
    path = hierarchy.base / f"faults-{secrets.token_hex(4)}"
    path.mkdir()
    (path / "pids.max").write_text("40")
    yield path
    for left in sorted(path.rglob("*"), reverse=True):
        if left.is_dir():
            left.rmdir()
    path.rmdir()


def test_no_further_process_is_a_refusal_with_a_remedy(narrow: Path) -> None:
    def enter() -> None:
        (narrow / "cgroup.procs").write_text(str(os.getpid()))

    said = _fill(before=enter)
    assert said["refused"]["code"] in {"capacity", "sandbox_broken"}, said
    _check(said)


def test_sixty_sandboxes_are_no_shortage_of_their_own() -> None:
    """The control: without the obstacle all of them start."""
    said = _fill()
    assert (said["refused"], said["opened"]) == (None, 60)
    _check(said)

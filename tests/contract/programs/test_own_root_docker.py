"""The root of a container as its user meets it: the directories that programs expect, and names.

No engine gives a container a top of its own that has a size, so what can be made there is a list
(`inside.TOP_NAMES`); each is in the work area, and counts in it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cellwall import AsyncSandbox, Engine, Execution, Verdict
from cellwall.runtimes.docker.inside import TOP_NAMES
from cellwall.testing.bare import BareTemplates
from conftest import Require

pytestmark = pytest.mark.root
T = TypeVar("T")
RUNTIMES = {"docker": "namespace", "docker+runsc": "kernel"}


class Ground:
    """One engine and its loop."""

    def __init__(self, state: Path, templates: BareTemplates, runtime: str) -> None:
        self._runner = asyncio.Runner()
        self.chosen: dict[str, Any] = {"runtime": runtime, "isolation": RUNTIMES[runtime]}

        async def make() -> Engine:
            return Engine(state, templates=templates)

        self.engine = self._runner.run(make())

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def run(self, code: str, **options: Any) -> Execution:
        return self.do(self.engine.run(code, **self.chosen, **options))

    def close(self) -> None:
        self.do(self.engine.aclose())
        self._runner.close()


@pytest.fixture(scope="module", params=RUNTIMES)
def ground(
    request: pytest.FixtureRequest, docker_ground: tuple[Path, BareTemplates]
) -> Iterator[Ground]:
    if request.param == "docker+runsc":
        request.getfixturevalue("runsc_inside")
    made = Ground(*docker_ground, request.param)
    yield made
    made.close()


@pytest.fixture(scope="session")
def runsc_inside(require: Require) -> None:
    require("gvisor", shutil.which("runsc") is not None, "run: apt-get install runsc")


_MADE = """
import os, subprocess
paths = ["/workspace", "/mnt/data/deep", "/app/src", "/data", "/large_tool_results/today"]
for path in paths:
    os.makedirs(path, exist_ok=True)
    assert subprocess.run(["mkdir", "-p", path + "/more"]).returncode == 0
    with open(path + "/notes.txt", "w") as file: file.write("kept")
    assert open(path + "/notes.txt").read() == "kept"
    os.chdir(path)
    os.rename(path + "/notes.txt", os.path.expanduser("~/moved"))
print("made")
"""


def test_expected_directories_are_there_and_can_be_filled(ground: Ground) -> None:
    done = ground.run(_MADE)
    assert (done.verdict, done.stdout) == (Verdict.OK, "made\n"), done


def test_every_name_of_the_list_is_a_directory_and_of_the_user(ground: Ground) -> None:
    code = f"""
import os, stat
found = [os.stat("/" + name) for name in {TOP_NAMES!r}]
print(all(stat.S_ISDIR(each.st_mode) and each.st_uid == os.getuid() for each in found))
"""
    assert ground.run(code).stdout == "True\n"


def test_files_come_and_go_there(ground: Ground) -> None:
    async def use(sandbox: AsyncSandbox) -> str:
        async with sandbox:
            await sandbox.files.write("/workspace/in/notes.txt", "kept")
            return str(await sandbox.files.read("/workspace/in/notes.txt"))

    async def work() -> str:
        return await use(await ground.engine.create_sandbox(**ground.chosen))

    assert ground.do(work()) == "kept"


def test_top_itself_and_the_system_stay_as_they_are(ground: Ground) -> None:
    code = """
import errno, os
refused = {errno.EACCES, errno.EPERM, errno.EROFS}
for path in ("/invented", "/usr/x", "/etc/x", "/opt/x"):
    try: os.mkdir(path)
    except OSError as error: assert error.errno in refused, error
    else: print("made", path)
for path in ("/workspace", "/bin"):
    try: os.rename(path, "/moved")
    except OSError as error: assert error.errno in refused, error
    else: print("moved", path)
print("tried")
"""
    assert ground.run(code).stdout == "tried\n"


@pytest.mark.parametrize("path", ["/workspace", "/mnt/data"])
def test_what_lies_there_counts_in_the_work_area(ground: Ground, path: str) -> None:
    code = f"""
import os
os.makedirs({path!r}, exist_ok=True)
with open({path!r} + "/fill", "wb") as file:
    for _ in range(48): file.write(bytes(1 << 20))
print("reached")
"""
    full = ground.run(code, limits={"disk_mb": 32})
    assert full.stdout == ""
    if ground.chosen["runtime"] == "docker":
        assert full.verdict == Verdict.DISK
    assert ground.run(code, limits={"disk_mb": 128}).stdout == "reached\n"


_WHO = """
import getpass, grp, os, pwd, subprocess
def said(*words): return subprocess.run(words, capture_output=True, text=True).stdout.strip()
entry = pwd.getpwuid(os.getuid())
assert entry.pw_name == getpass.getuser() == said("whoami") == said("id", "-un") == "user"
assert entry.pw_dir == os.path.expanduser("~") == os.path.expanduser("~user") == "/home/user"
assert grp.getgrgid(os.getgid()).gr_name == said("id", "-gn") == "user"
assert said("id", "-u") == str(os.getuid())
from pathlib import Path
assert (Path("/home/user").owner(), Path("/home/user").group()) == ("user", "user")
assert (Path("/etc").owner(), Path("/etc").group()) == ("root", "root")
try: assert os.getlogin() == "user"
except OSError: pass  # as everywhere without a terminal
for number in (os.setuid, os.setgid):
    try: number(0)
    except PermissionError: continue
    raise AssertionError(number)
print("user")
"""


def test_whoever_asks_is_told_user(ground: Ground) -> None:
    done = ground.run(_WHO)
    assert (done.stdout, done.stderr) == ("user\n", "")

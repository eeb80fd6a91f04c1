"""F10, F11: hostile environments, arguments and directories through the API.

Caller-chosen bytes may reach a program only once everything is locked down; so each variable that
makes some program run code is given a library or a script that says under which filter it runs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cellwall import CellwallError, UsageError
from cellwall.jail.plan import image_plan
from conftest import require_command
from kit.arena import Arena

pytestmark = pytest.mark.attack

TELL = """
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
__attribute__((constructor)) static void tell(void) {
    static char text[8192];
    int fd = open("/proc/self/status", O_RDONLY);
    if (fd < 0) return;
    int size = read(fd, text, sizeof text - 1);
    close(fd);
    char *mode = size > 0 ? strstr(text, "\\nSeccomp:\\t") : 0;
    char *caps = size > 0 ? strstr(text, "\\nCapEff:\\t") : 0;
    if (mode && caps) fprintf(stderr, "TOLD %c %.16s\\n", mode[10], caps + 9);
}
unsigned int la_version(unsigned int version) { return version; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    directory = tmp_path_factory.mktemp("tell")
    (directory / "tell.c").write_text(TELL)
    command = [require_command("gcc"), "-shared", "-fPIC", "-o", "tell.so", "tell.c"]
    subprocess.run(command, check=True, timeout=60, cwd=directory)
    return (directory / "tell.so").read_bytes()


VARIABLES = {
    "LD_PRELOAD": "HOME/tell.so",
    "LD_AUDIT": "HOME/tell.so",
    "BASH_ENV": "HOME/tell.sh",
    "ENV": "HOME/tell.sh",
    "PYTHONSTARTUP": "HOME/tell.py",
    "PYTHONPATH": "HOME",
    "PYTHONHOME": "HOME",
    "NODE_OPTIONS": "--require HOME/tell.js",
    "GCONV_PATH": "HOME",
    "LD_LIBRARY_PATH": "HOME",
    "PERL5OPT": "-IHOME -Mtell",
    "GLIBC_TUNABLES": "glibc.malloc.check=3",
}
_IN_SHELL = f"TOLD 2 {0:016x}"
"""What the start-up file of a shell says, which has no capabilities to tell of."""
FILES = {
    "tell.sh": 'echo "TOLD $(grep Seccomp: /proc/$$/status | cut -f2) 0000000000000000" >&2\n',
    "tell.py": "raise SystemExit('start-up file')\n",
    "sitecustomize.py": "import sys; sys.stderr.write('CUSTOMISED')\n",
}


def _confined(arena: Arena) -> str:
    """What the library says behind the filter: root of an image has a container's capabilities."""
    is_root = "image" in arena.choice and arena.uid == 0
    return f"TOLD 2 {image_plan.ROOT_CAPABILITIES if is_root else 0:016x}"


def _value(arena: Arena, name: str) -> str:
    return VARIABLES[name].replace("HOME", arena.home)


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("language", ["python", "bash"])
def test_hostile_variable_is_powerless(
    arena: Arena, library: bytes, language: str, name: str
) -> None:
    """F10: whatever a variable makes run, runs behind the filter and without capabilities."""
    code = {"python": "print('ran')", "bash": "echo ran; /bin/true"}[language]
    files: dict[str, str | bytes] = {**FILES, "tell.so": library}
    run = arena.run(code, language, env={name: _value(arena, name)}, files=files)
    assert run.stdout.splitlines()[1:] == ["ran"], run
    told = [line for line in run.stderr.splitlines() if "TOLD" in line]
    assert set(told) <= {_confined(arena), _IN_SHELL}
    if language == "python":
        assert "CUSTOMISED" not in run.stderr  # the warm context never starts anew


def test_preloaded_library_speaks_behind_the_filter(arena: Arena, library: bytes) -> None:
    """The control: the library does run where it may, and outside it says another word."""
    env = {"LD_PRELOAD": _value(arena, "LD_PRELOAD")}
    run = arena.run("/bin/true", "bash", env=env, files={"tell.so": library})
    assert _confined(arena) in run.stderr


def test_library_tells_another_story_outside(library: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tell.so"
    path.write_bytes(library)
    true = shutil.which("true") or "/bin/true"
    done = subprocess.run(
        [true], env={"LD_PRELOAD": str(path)}, capture_output=True, text=True, check=True
    )
    assert "TOLD" in done.stderr
    assert "TOLD 0 " in done.stderr


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "PYTHONHOME"])
def test_fresh_interpreter_ignores_what_the_caller_names(arena: Arena, name: str) -> None:
    """F10 for `start="exec"`: the guest itself is started by exec, with the caller's variables."""
    execution = arena.run("print('ran')", env={name: "/usr/lib/nothing-here"}, start="exec")
    assert execution.stdout.splitlines()[1:] == ["ran"]


@pytest.mark.parametrize(
    "cwd", ["/proc/self/fd/7", "/proc/self/fd/0", "/proc/self/exe", "/nowhere", "a\0b"]
)
def test_hostile_directory_is_refused(arena: Arena, cwd: str) -> None:
    """F11"""

    async def attempt() -> str:
        async with arena.sandbox() as sandbox:
            with pytest.raises(CellwallError) as caught:
                await sandbox.commands.run(["/bin/pwd"], cwd=cwd)
            return str(caught.value)

    assert os.getcwd() not in arena.do(attempt())


@pytest.mark.parametrize(
    "cwd", ["/proc/1/cwd", "/proc/self/root", "/root/..//../proc/1/root", "/.." * 50]
)
def test_detour_through_proc_ends_in_the_own_root(arena: Arena, cwd: str) -> None:
    """F11: a link of /proc leads to a directory of the sandbox or nowhere."""
    words = ["/usr/bin/stat", "-L", "-c", "%d:%i"]

    async def both() -> tuple[str, str]:
        async with arena.sandbox() as sandbox:
            there = await sandbox.commands.run([*words, "."], cwd=cwd)
            root = await sandbox.commands.run([*words, "/"])
            return there.stdout, root.stdout

    there, root = arena.do(both())
    assert there == root
    status = os.stat("/")
    assert root != f"{status.st_dev}:{status.st_ino}\n"


@pytest.mark.parametrize(
    "options",
    [
        {"env": {"A=B": "x"}},
        {"env": {"": "x"}},
        {"env": {"A\0B": "x"}},
        {"env": {"A": "x\0y"}},
        {"args": ["a\0b"]},
        {"args": "not a list"},
        {"files": {"../up": "x"}},
        {"files": {"/etc/passwd": "x"}},
        {"collect": ["../../etc/passwd"]},
    ],
    ids=str,
)
def test_hostile_request_is_refused_before_a_start(arena: Arena, options: dict[str, Any]) -> None:
    """F11"""
    with pytest.raises(UsageError) as caught:
        arena.run("print(1)", **options)
    assert caught.value.remedy


@pytest.mark.parametrize("word", ["$(id)", "`id`", "a\nb", "--help", "'\"", "\x1b[2J", "é\u202e"])
def test_hostile_argument_arrives_unchanged(arena: Arena, word: str) -> None:
    run = arena.run("import sys, json\nprint(); print(json.dumps(sys.argv[1:]))", args=[word])
    assert json.loads(run.stdout.split("\n\n", 1)[1]) == [word]


def test_locale_and_umask_of_the_caller_do_not_matter(arena: Arena) -> None:
    """F11: a wild locale is only a word; the umask inside is ours."""
    run = arena.run(
        "import os\nprint(); print(oct(os.umask(0)))", env={"LC_ALL": "../../../etc", "LANG": "%n"}
    )
    assert run.stdout.split("\n\n", 1)[1] == "0o22\n"

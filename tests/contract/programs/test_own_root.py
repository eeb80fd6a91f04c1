"""The root of a jail, and of gVisor, as its user meets it: whatever directory is named can be made,
the system is root's and stays as it is, and a refusal is what an ordinary user of a box gets.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest

import cellwall
from cellwall.model.errors import HostUnsupported
from conftest import Require

DIRECTORIES = ("/workspace", "/mnt/data", "/app/src", "/data", "/large_tool_results/today")


RUNTIMES = {"jail": "namespace", "gvisor": "kernel"}


@pytest.fixture(scope="module", params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def sandbox(runtime: str, require: Require) -> Iterator[cellwall.Sandbox]:
    try:
        made = cellwall.Sandbox(runtime=runtime, isolation=RUNTIMES[runtime])
    except HostUnsupported as error:
        require(runtime, False, f"{error}; {error.remedy}")
        raise
    with made:
        yield made


@pytest.fixture
def root_inside(runtime: str, require: Require) -> None:
    if runtime == "gvisor":
        return  # its kernel has every id
    is_mapped = cellwall.run("print(open('/proc/self/uid_map').read())").stdout.split()[3:]
    require("a second id to map", bool(is_mapped), "run as root, or with ids in /etc/subuid")


_ERRNO = """
try: {call}
except OSError as error: print(error.errno)
else: print("done")
"""


def _answer(sandbox: cellwall.Sandbox, call: str) -> str:
    return sandbox.run("import os, subprocess" + _ERRNO.format(call=call)).stdout.strip()


@pytest.mark.parametrize("path", DIRECTORIES)
def test_whatever_directory_is_named_can_be_made(sandbox: cellwall.Sandbox, path: str) -> None:
    made = sandbox.commands.run(["mkdir", "-p", path])
    assert made.exit_code == 0, made.stderr
    sandbox.files.write(f"{path}/notes.txt", "kept")
    assert sandbox.run(f"print(open('{path}/notes.txt').read())").stdout == "kept\n"
    program = f"#!/bin/sh\necho from {path}\n"
    sandbox.files.write(f"{path}/program", program)
    done = sandbox.commands.run(["sh", "-c", f"chmod +x {path}/program && {path}/program"])
    assert done.stdout == f"from {path}\n"


def test_what_one_makes_no_other_sees(sandbox: cellwall.Sandbox, runtime: str) -> None:
    assert _answer(sandbox, "os.makedirs('/only/here')") == "done"
    code = "import os; print(os.path.exists('/only'))"
    other = cellwall.run(code, runtime=runtime, isolation=RUNTIMES[runtime])
    assert other.stdout == "False\n"


@pytest.mark.parametrize(
    "path", ["/usr/x", "/usr/lib/x", "/etc/x", "/etc/passwd", "/opt/env/x", "/bin/x", "/dev/x"]
)
def test_the_system_stays_as_it_is(sandbox: cellwall.Sandbox, path: str) -> None:
    refused = {str(number) for number in (errno.EACCES, errno.EPERM, errno.EROFS)}
    assert _answer(sandbox, f"open('{path}', 'w')") in refused


@pytest.mark.usefixtures("root_inside")
@pytest.mark.parametrize("path", ["/bin", "/usr", "/etc", "/home", "/tmp", "/proc", "/dev"])
def test_the_system_s_directories_cannot_be_moved(sandbox: cellwall.Sandbox, path: str) -> None:
    refused = {str(number) for number in (errno.EACCES, errno.EPERM, errno.EBUSY)}
    assert _answer(sandbox, f"os.rename('{path}', '/moved')") in refused


_ROOTS = ("/", "/bin", "/dev", "/etc", "/etc/passwd", "/etc/ssl", "/home", "/opt", "/tmp", "/var")


@pytest.mark.usefixtures("root_inside")
@pytest.mark.parametrize("path", _ROOTS)
def test_the_system_is_root_s(sandbox: cellwall.Sandbox, path: str) -> None:
    owners = sandbox.run(f"import os; s = os.lstat('{path}'); print(s.st_uid, s.st_gid)").stdout
    assert owners == "0 0\n"
    assert sandbox.run("import os; print(os.getuid())").stdout == "1000\n"


@pytest.mark.usefixtures("root_inside")
@pytest.mark.parametrize(
    "call",
    [
        "os.setuid(0)",
        "os.setgid(0)",
        "os.setresuid(0, 0, 0)",
        "os.seteuid(0)",
        "os.setgroups([0])",
        "os.chown('/tmp', 0, 0)",
        "os.chown(os.path.expanduser('~'), 0, 0)",
        "subprocess.run(['id'], user=0)",
        "subprocess.run(['id'], group=0)",
        "subprocess.run(['id'], extra_groups=[0])",
    ],
)
def test_what_only_root_may_is_not_permitted(sandbox: cellwall.Sandbox, call: str) -> None:
    assert _answer(sandbox, call) == str(errno.EPERM)


@pytest.mark.usefixtures("root_inside")
def test_owners_of_an_archive_that_cannot_be_had_are_not_permitted(
    sandbox: cellwall.Sandbox,
) -> None:
    words = "cd && echo x > a && install -o root a b"
    done = sandbox.commands.run(["sh", "-c", words])
    assert done.exit_code == 1
    assert os.strerror(errno.EPERM) in done.stderr


def test_identity_and_mapping_of_shared_files_are_as_usual(sandbox: cellwall.Sandbox) -> None:
    code = """
import mmap, os, subprocess, sys
paths = [os.__file__, "/usr/bin/env", "/etc/passwd", sys.executable]
for path in paths:
    first, second = os.stat(path), os.stat(path)
    assert os.path.samestat(first, second) and os.path.samefile(path, os.path.realpath(path))
    with open(path, "rb") as file:
        assert os.path.samestat(os.fstat(file.fileno()), first)
        assert mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[:8] == open(path, "rb").read(8)
assert subprocess.run(["/usr/bin/env", "true"]).returncode == 0
assert not os.path.samefile("/usr/bin/env", "/etc/passwd")
print("as usual")
"""
    done = sandbox.run(code)
    assert done.stdout == "as usual\n", done

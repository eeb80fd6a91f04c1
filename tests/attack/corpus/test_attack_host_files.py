"""Groups A and B: the host's files can not be read, and nothing but the work area written."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.engine.templates.store import state_dir
from cellwall.jail.inspect import host_facts
from cellwall.jail.plan import plan
from conftest import require_command
from kit import controls
from kit.arena import CONTROL_UID, Arena, compiled
from kit.places import ROOT

pytestmark = pytest.mark.attack
DENIED = "ENOENT EACCES EPERM EROFS"


class Bait:
    """What the test plants on the host: a canary and directories a throw-away user may use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.token = secrets.token_hex(16)
        path.chmod(0o777)
        self.canary = path / "canary"
        self.canary.write_text(self.token)
        self.home = path / "home"
        for name in (".ssh/id_rsa", ".aws/credentials", ".docker/config.json", ".kube/config"):
            self._secret(name)
        self._secret(".netrc")
        for name in ("work", "system", "packages", "devices", "state"):
            (path / name).mkdir()
            (path / name).chmod(0o777)

    def _secret(self, name: str) -> None:
        target = self.home / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(self.token)

    def untouched(self) -> bool:
        return self.canary.read_text() == self.token and self.canary.stat().st_uid == os.geteuid()


@pytest.fixture(scope="module")
def bait(arena: Arena) -> Iterator[Bait]:
    """One for each arena: its controls leave their marks."""
    del arena
    # Not pytest's own directory: that one is closed to the throw-away user.
    path = Path(tempfile.mkdtemp(prefix="bait-"))
    yield Bait(path)
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def tried(arena: Arena, bait: Bait) -> controls.Both:
    state = state_dir()
    common = {
        "canary": str(bait.canary),
        "state": f"{state}:{state}/templates:{state}/guest",
        "installation": ":".join((sys.prefix, str(ROOT))),
        "linked": "/usr/bin/env",
        "host": f"{state}:{bait.path}:{ROOT}",
    }
    library = f"{plan.TEMPLATE_ROOT}/lib"
    inside = {
        **common,
        "work": "/tmp",
        "pid": "1",
        "system": "/:/usr:/etc:/lib:/opt:/usr/bin:/opt/env:/opt/env/bin:/sys:/run:/root:/var",
        "packages": f"{library}:{library}/python3.11/site-packages:/usr/lib/python3",
        "agent": plan.GUEST_PATH,
        "devices": "/dev",
        "mapped": f"{plan.TEMPLATE_ROOT}/pyvenv.cfg",  # lies in the host's state directory
    }
    outside = {
        **common,
        "work": str(bait.path / "work"),
        "pid": str(os.getpid()),
        "system": str(bait.path / "system"),
        "packages": str(bait.path / "packages"),
        "agent": str(next((state / "guest").glob("*.pyz"))),
        "devices": str(bait.path / "devices"),
        "linked": str(bait.canary),
        "mapped": str(bait.canary),
    }
    held = os.open(bait.path / "work", os.O_RDONLY | os.O_DIRECTORY)
    try:
        return controls.both(
            arena,
            "probe_files",
            {"inside": inside, "outside": outside},
            fds=(held,),
            env={"HOME": str(bait.home)},
            # Not what this is about: with gVisor's own memory it came up to 128 MiB now and then.
            limits={"memory_mb": 256},
        )
    finally:
        os.close(held)


@pytest.mark.root
@pytest.mark.parametrize(
    ("case", "words"),
    [
        pytest.param("A01", DENIED, id="A01-canary-and-shadow"),
        pytest.param("A03", DENIED, id="A03-climbing"),
        pytest.param("A04", DENIED, id="A04-roots-in-proc"),
        pytest.param("A05", "EBADF", id="A05-descriptors"),
        pytest.param("A06", "EPERM", id="A06-file-handles"),
        pytest.param("A07", DENIED, id="A07-state-directory"),
        pytest.param("A08", DENIED, id="A08-installation"),
        pytest.param("A09", "ENOENT", id="A09-secrets-at-home"),
        pytest.param("A12", DENIED, id="A12-links-to-mapped-files"),
        pytest.param("A14", DENIED, id="A14-planted-link"),
    ],
)
def test_host_file_is_denied(tried: controls.Both, case: str, words: str) -> None:
    tried.denied(case, words)


def test_canary_never_came_out(tried: controls.Both, bait: Bait) -> None:
    assert bait.token not in tried.said_inside
    assert any(bait.token in control.detail for control in tried.outside.values())
    assert bait.untouched()


@pytest.mark.root
def test_host_devices_are_absent(tried: controls.Both) -> None:
    """A11"""
    names = [what for case, what in tried.inside if case == "A11"]
    assert {tried.inside["A11", name].word for name in names} == {"ENOENT"}
    assert sum(tried.outside["A11", name].reached for name in names) >= 2


@pytest.mark.root
@pytest.mark.parametrize(
    ("case", "words"),
    [
        pytest.param("B03", DENIED, id="B03-agent"),
        pytest.param("B04", DENIED, id="B04-device-nodes"),
        pytest.param("B06", "ENOTSUP", id="B06-file-capabilities"),
        pytest.param("B09", "EPERM", id="B09-bind-over-system-files"),
        pytest.param("B10", "EPERM EXDEV EACCES", id="B10-hard-link"),
        pytest.param("B13", "EFBIG", id="B13-sparse-pebibyte"),
        pytest.param("B14", "EPERM ENOTTY", id="B14-inode-flags"),
        pytest.param("B18", "EPERM", id="B18-mounts"),
        pytest.param("B19", "ENOTSUP", id="B19-extended-attributes"),
    ],
)
def test_special_write_is_denied(tried: controls.Both, case: str, words: str) -> None:
    tried.denied(case, words, poisoned=case in {"B03", "B18"})


def test_system_directories_are_denied_to_writers(tried: controls.Both) -> None:
    """B01, B08: many directories inside, one writable stand-in for them outside.

    Not the top of the root: where it can be added to, it is in the work area (`test_own_root`).
    """
    for case in ("B01", "B08"):
        inside = [t for (name, what), t in tried.inside.items() if name == case and what != "/"]
        assert len(inside) >= 3
        assert {t.word for t in inside} <= set(DENIED.split()), inside
        assert all(t.reached for (name, _), t in tried.outside.items() if name == case)
        assert any(name == case for name, _ in tried.outside)


@pytest.mark.root
def test_own_interpreter_is_denied_to_writers(tried: controls.Both) -> None:
    """B02: outside, the kernel objects only because it is being executed."""
    for what in ("interpreter", "own exe"):
        assert tried.inside["B02", what].word in {"EROFS", "EACCES"}
        assert tried.outside["B02", what].word == "ETXTBSY"


def test_crypto_socket_is_denied(tried: controls.Both) -> None:
    """B20"""
    assert tried.inside["B20", "crypto_socket"].word == "EAFNOSUPPORT"
    assert tried.inside["B20", "splice_needs_a_pipe"].word == "EBADF"


WALK = """
import json, os
found, errors = [], []
for base, directories, files in os.walk("/", onerror=lambda e: errors.append(e.filename)):
    if base == "/":
        directories[:] = [d for d in directories if d not in ("usr", "proc", "lib", "lib64", "bin")]
    if base in %r:
        directories[:] = []
        continue
    found += [os.path.join(base, name) for name in directories + files]
print()
print(json.dumps([found, errors]))
"""


def _planned() -> set[str]:
    steps = plan.root_plan(host_facts.collect(), plan.Root("/template", (), "/guest"))
    shape = plan.Shape(1, 128, 64, 1000, 30, 16, 64)
    inner = plan.sandbox_plan(host_facts.collect(), shape).steps
    named = {str(getattr(step, "path", getattr(step, "target", ""))) for step in (*steps, *inner)}
    named |= {f"/dev/{name}" for name, _, _ in plan._DEVICES}
    return named | {str(parent) for name in named for parent in Path(name).parents}


_SHOWN_AT = (("/opt/cellwall/etc/", "/etc/"), ("/opt/cellwall/var/", "/opt/var/"))
"""Where copies of a template's lie, and where the plan has them."""


def _shown(name: str) -> str:
    for where, shown in _SHOWN_AT:
        if name.startswith(where):
            return shown + name.removeprefix(where)
    return name


def test_tree_holds_only_what_the_plan_names(arena: Arena, bait: Bait) -> None:
    """A02: everything else is reported, and the same walk outside finds the canary."""
    planned = _planned()
    bound = [name for name in planned if name.startswith(("/etc/", "/opt/var/"))]
    bound += [where + name.removeprefix(shown) for name in bound for where, shown in _SHOWN_AT
              if name.startswith(shown)]  # fmt: skip
    bound += ["/opt/env", "/sys"]
    code = WALK % [*bound, "/opt/cellwall/views"]
    found, errors = json.loads(arena.run(code).stdout.splitlines()[-1])
    made_by_kernel = {"/dev/pts/ptmx"}
    work = ("/tmp", "/var/tmp", "/home/user", "/dev/shm")
    extra = {
        name
        for name in found
        if _shown(name) not in planned and name not in made_by_kernel and not name.startswith(work)
    }
    assert extra == set()
    assert errors == []
    assert {"/etc/passwd", "/dev/null", "/home", "/opt/cellwall/guest.pyz"} <= set(found)
    # The work area starts empty but for what every sandbox has, and the program itself.
    own = [name for name in found if name.startswith(work) and name not in planned]
    assert own == ["/home/user/main.py"]
    # The same walk where nothing hides: limited to the bait's parent, or it would take minutes.
    outside = controls.run_in("user", code.replace('os.walk("/"', f"os.walk({str(bait.path)!r}"))
    assert str(bait.canary) in json.loads(outside.splitlines()[-1])[0]


IDENTITY = """
#include <stdio.h>
#include <unistd.h>
int main(void) { printf("%d %d\\n", (int)getuid(), (int)geteuid()); return 0; }
"""


@pytest.mark.root
def test_set_uid_copy_is_powerless(arena: Arena, bait: Bait, tmp_path: Path) -> None:
    """B05: outside the bit works, inside it is only a bit."""
    program = compiled(IDENTITY, tmp_path)
    outside = bait.path / "identity"
    outside.write_bytes(program)
    outside.chmod(0o4755)
    code = f"import subprocess; print(subprocess.check_output([{str(outside)!r}], text=True))"
    assert f"{CONTROL_UID} 0" in controls.run_in("user", code)
    inside = arena.run(
        "id -u && cp identity copy && chmod 6755 copy && [[ -u copy && -g copy ]] && echo set"
        " && ./copy && chmod 6755 identity && ./identity",
        "bash",
        files={"identity": program},
    )
    _, user, *said = inside.stdout.splitlines()
    assert user != "0"
    assert said == ["set", f"{user} {user}", f"{user} {user}"], inside.stderr


CONSTRUCTOR = """
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void say(void) {
    fprintf(stderr, "EUID %d\\n", (int)geteuid());
    _exit(0);
}
"""


def shared_library(source: str, directory: Path) -> bytes:
    """Compile a library on the host; it is sent in as a file."""
    (directory / "lib.c").write_text(source)
    compiler, library = require_command("gcc"), directory / "lib.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(directory / "lib.c")]
    subprocess.run(command, check=True, timeout=60)
    return library.read_bytes()


SET_UID_FILES = r"""
for file in $(find /usr /opt/env -xdev -perm /6000 -type f 2>/dev/null); do
    echo "$file $(LD_PRELOAD=$PWD/lib.so $file </dev/null 2>&1 | grep EUID)"
done
"""


def test_set_uid_files_of_the_image_are_powerless(arena: Arena, tmp_path: Path) -> None:
    """D09: the loader obeys LD_PRELOAD, which it never does where a set-uid bit counts."""
    library = shared_library(CONSTRUCTOR, tmp_path)
    inside = arena.run(SET_UID_FILES, "bash", files={"lib.so": library}, timeout=40)
    lines = inside.stdout.splitlines()[1:]
    assert lines, "this image has no set-uid file: give the test one"
    # Files we may not even read are no danger, and the loader says nothing for them.
    said = [line.split(" ", 1)[1] for line in lines]
    assert set(said) <= {f"EUID {arena.uid}", ""}
    assert f"EUID {arena.uid}" in said


PLANT = """
import os, subprocess
home = os.environ["HOME"]
mark = "import sys; sys.stderr.write('PLANTED')\\n"
words = ["/usr/bin/python3", "-m", "site", "--user-site"]
folder = subprocess.run(words, capture_output=True, text=True).stdout.strip()
os.makedirs(folder, exist_ok=True)
for name in ("sitecustomize.py", "usercustomize.py"):
    open(os.path.join(folder, name), "w").write(mark)
open(os.path.join(folder, "planted.pth"), "w").write(mark)
for name in (".bashrc", ".profile", ".bash_profile"):
    open(os.path.join(home, name), "w").write("echo PLANTED >&2\\n")
"""
TRIGGER = """
import subprocess
for words in (["/usr/bin/python3", "-c", "1"], ["bash", "-ic", "true"], ["bash", "-lc", "true"]):
    print(subprocess.run(words, capture_output=True, text=True).stderr.count("PLANTED"))
"""


def test_planted_start_up_files_are_gone_in_the_next_run(arena: Arena) -> None:
    """B07: they work in the sandbox that planted them, and only there."""
    same = arena.run(PLANT + TRIGGER).stdout.splitlines()[1:]
    assert all(int(count) > 0 for count in same), same
    assert arena.run(TRIGGER).stdout.splitlines()[1:] == ["0", "0", "0"]


ODD_TREES = {
    "B15-no-permissions": """
import os
for n in range(20):
    os.makedirs(f"d{n}/e"); os.chmod(f"d{n}", 0)""",
    "B16-odd-names": """
import os
for name in (b"a\\nb", b"n" * 255, b"\\xff\\xfe", b"-rf", "a\\u202eb".encode(), b" ", b"*"):
    open(name, "w").close()
print(len(os.listdir()))""",
    "B17-deep": """
import os
for _ in range(1000):
    os.mkdir("deeper"); os.chdir("deeper")
""",
}


@pytest.mark.parametrize("case", ODD_TREES)
def test_odd_tree_leaves_nothing(arena: Arena, case: str) -> None:
    with arena.leaving_nothing():
        execution = arena.run(ODD_TREES[case])
    assert execution.exit_code == 0, execution.stderr


CRASH = """
import os, resource, signal, subprocess
secret = "CORE-" + os.urandom(8).hex()
for words in (["sh", "-c", "kill -SEGV $$"], ["sh", "-c", "ulimit -c unlimited; kill -ABRT $$"]):
    print(subprocess.run(words, env={"SECRET": secret}, cwd=%r).returncode)
print([n for n in os.listdir(%r) if "core" in n])
"""


def test_crash_leaves_no_core(arena: Arena, bait: Bait) -> None:
    """A16: neither in the sandbox nor beside our own process; outside there is one."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    before = set(os.listdir("."))
    inside = arena.run(CRASH % ("/tmp", "/tmp")).stdout.splitlines()[1:]
    assert inside == ["-11", "-6", "[]"]
    assert set(os.listdir(".")) == before
    if pattern.startswith(("|", "/")):
        pytest.skip("the control can not tell whose handler took its core")
    work = str(bait.path / "work")
    assert controls.run_in("user", CRASH % (work, work)).splitlines()[-1] != "[]"


CORE_LIMIT = """
import resource, subprocess, sys
print()
for code in (
    "pass",
    "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
):
    tell = "\\nprint([l.split()[4:6] for l in open('/proc/self/limits') if 'core' in l])"
    done = subprocess.run([sys.executable, "-c", code + tell], capture_output=True, text=True)
    print(done.stdout)
"""


def _told_limits(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith("[[")]


def test_core_limit_also_stops_the_host_s_handler(arena: Arena) -> None:
    """A16: where core_pattern is a pipe, 0 would hand the crash to a handler of the host's."""
    assert _told_limits(arena.run(CORE_LIMIT).stdout) == ["[['1', '1']]"] * 2
    outside = _told_limits(controls.run_in("user", CORE_LIMIT))
    assert outside[1] == "[['0', '0']]"

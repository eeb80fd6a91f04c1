"""The process that parses a template's sources on the host: it has given up what it had, or ends.

No hostile source is here that breaks a parser: what one would find is looked at instead.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.engine.templates import bytecode, bytecode_worker
from cellwall.engine.templates.base_interpreter import BaseInterpreter, base_interpreter
from cellwall.engine.templates.bytecode_worker import HEADER, READY
from cellwall.model.errors import HostUnsupported
from cellwall.model.template import Template
from conftest import Require
from kit.jail import forked

_WORKER = str(Path(bytecode_worker.__file__))


@pytest.fixture
def base() -> BaseInterpreter:
    return base_interpreter(Template("any"))


def _refusals(before: Callable[[], object]) -> dict[str, int]:
    """The errors of what a parser that does its source's bidding could try."""
    with open("/dev/null", "rb") as null, open("/proc/self/cmdline", "rb"):
        tries: dict[str, Callable[[], object]] = {
            "open": lambda: os.open("/etc/passwd", os.O_RDONLY),
            "pipe": os.pipe,
            "socket": lambda: socket.socket(socket.AF_UNIX),
            "copy": lambda: os.dup(null.fileno()),
            "program": lambda: subprocess.run(["/bin/true"], check=True),
        }
        place = os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o600)
        tries["write"] = lambda: os.write(place, b"x")
        before()
        found = {}
        for name, attempt in tries.items():
            try:
                attempt()
                found[name] = 0
            except OSError as error:
                found[name] = error.errno or -1
        return found


def test_parser_of_sources_can_open_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: before it has given that up it can do all of it."""
    monkeypatch.chdir(tmp_path)
    assert set(forked.answer(lambda: _refusals(lambda: None)).values()) == {0}
    starved = forked.answer(lambda: _refusals(bytecode_worker._starve))
    assert starved.pop("write") == errno.EFBIG
    # EINVAL is fcntl(2)'s word; since Python 3.13 a program fails at the pipe that it never got.
    assert starved.pop("program") in {errno.EMFILE, errno.EBADF}
    assert set(starved.values()) == {errno.EMFILE, errno.EINVAL}


@pytest.mark.root
def test_parser_of_sources_is_nobody() -> None:
    def ids() -> list[object]:
        bytecode_worker._starve()
        return [os.getresuid(), os.getresgid(), os.getgroups()]

    assert forked.answer(ids) == [[65534] * 3, [65534] * 3, []]


def _interpreter(folder: Path, base: BaseInterpreter, before: str) -> BaseInterpreter:
    """The base interpreter, started as something else starts it."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec {before} {base.executable} "$@"\n')
    path.chmod(0o755)
    return replace(base, executable=str(path))


def _tree(folder: Path) -> Path:
    packages = folder / "packages"
    packages.mkdir()
    (packages / "module.py").write_text("value = 1\n")
    return packages


@pytest.mark.root
@pytest.mark.parametrize("right", ["setuid", "setgid"])
def test_root_that_cannot_become_nobody_parses_nothing(
    tmp_path: Path, base: BaseInterpreter, require: Require, right: str
) -> None:
    """The control: the same start with all rights compiles it."""
    require("setpriv", shutil.which("setpriv") is not None, "apt-get install util-linux")
    packages = _tree(tmp_path)
    less = _interpreter(tmp_path, base, f"setpriv --bounding-set -{right} --inh-caps -{right}")
    with pytest.raises(HostUnsupported, match="take the id of nobody: Operation not permitted"):
        bytecode.compile_tree(packages, less)
    assert not (packages / "__pycache__").exists()
    assert bytecode.compile_tree(packages, _interpreter(tmp_path, base, "setpriv")) == 1


@pytest.mark.root
def test_root_without_another_id_parses_nothing(
    tmp_path: Path, base: BaseInterpreter, require: Require
) -> None:
    """The host's root in a namespace that has no other: it would stay what it is outside."""
    unshare = ["unshare", "--user", "--map-root-user"]
    can = subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode == 0
    require("user namespaces", can, "allow them")
    alone = _interpreter(tmp_path, base, " ".join(unshare))
    with pytest.raises(HostUnsupported, match="root is the only id of this namespace"):
        bytecode.compile_tree(_tree(tmp_path), alone)


def test_limits_that_are_lower_already_stay(
    tmp_path: Path, base: BaseInterpreter, require: Require
) -> None:
    require("prlimit", shutil.which("prlimit") is not None, "apt-get install util-linux")
    low = _interpreter(tmp_path, base, "prlimit --as=1000000000 --cpu=100")
    assert bytecode.compile_tree(_tree(tmp_path), low) == 1


def test_worker_that_does_not_start_is_named(tmp_path: Path, base: BaseInterpreter) -> None:
    packages = _tree(tmp_path)
    with pytest.raises(HostUnsupported, match="it has ended"):
        bytecode.compile_tree(packages, replace(base, executable="/bin/false"))


def test_no_source_is_sent_before_its_rights_are_gone(
    tmp_path: Path, base: BaseInterpreter
) -> None:
    """What a worker says first decides, whatever it says behind that."""
    heard = tmp_path / "heard"
    script = tmp_path / "eager"
    script.write_text(f"#!/bin/sh\nprintf eager; exec >&-; cat > {heard}\n")
    script.chmod(0o755)
    with pytest.raises(HostUnsupported, match="eager"):
        bytecode.compile_tree(_tree(tmp_path), replace(base, executable=str(script)))
    assert not heard.exists() or heard.read_bytes() == b""


def test_an_ordinary_users_own_namespace_has_nobody_to_become(
    base: BaseInterpreter, require: Require
) -> None:
    """There root is that user, as outside of it."""
    words = ["unshare", "--user", "--map-root-user"]
    if os.geteuid() == 0:
        require("setpriv", shutil.which("setpriv") is not None, "apt-get install util-linux")
        words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *words]
    can = subprocess.run([*words, "true"], check=False, capture_output=True).returncode == 0
    require("an ordinary user's namespaces", can, "allow them")
    # As text: the file of a clone may be closed to that user.
    words += [base.executable, "-I", "-S", "-B", "-c", Path(_WORKER).read_text(encoding="utf-8")]
    done = subprocess.run(words, input=b"", capture_output=True, check=True, cwd="/")
    assert done.stdout == READY


def test_sources_come_back_as_bytecode_or_as_nothing(base: BaseInterpreter) -> None:
    questions = b""
    for name, source in ((b"good.py", b"x = 1\n"), (b"bad.py", b"x = (\n"), (b"g.py", b"y = 2\n")):
        questions += HEADER.pack(len(name), len(source), int(time.time())) + name + source
    sizes = [len(answer) for answer in bytecode._answers(bytecode._asked(questions, base))]
    assert [size > 0 for size in sizes] == [True, False, True]

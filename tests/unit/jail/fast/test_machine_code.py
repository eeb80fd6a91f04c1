"""The machine code of `fast.machine_code` is what its sources say, and does what they are for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cellwall.jail.fast import machine_code, single_program
from conftest import Require

_SOURCES = Path(machine_code.__file__).parent


def _assembled(source: Path, folder: Path, *link: str) -> bytes:
    made, flat = folder / "made.o", folder / "flat.bin"
    subprocess.run(["as", "--64", "-o", made, source], check=True)
    if link:
        linked = folder / "linked"
        subprocess.run(["ld", "-m", "elf_x86_64", *link, "-o", linked, made], check=True)
        made = linked
    subprocess.run(["objcopy", "-O", "binary", "-j", ".text", made, flat], check=True)
    return flat.read_bytes()


@pytest.fixture
def tools(require: Require) -> None:
    for tool in ("as", "ld", "objcopy"):
        require(tool, shutil.which(tool) is not None, "apt-get install binutils")


def test_cloner_is_its_source(tools: None, tmp_path: Path) -> None:
    made = _assembled(_SOURCES / "cloner.x86_64.S", tmp_path)
    assert made.hex() == "".join(machine_code.CLONERS["x86_64"].split())


def test_init_is_its_source(tools: None, tmp_path: Path) -> None:
    start = f"{machine_code.INIT_START + machine_code.INIT_HEADERS:#x}"
    made = _assembled(_SOURCES / "init.x86_64.S", tmp_path, "-N", "-Ttext", start)
    assert made.hex() == "".join(machine_code.INITS["x86_64"].split())


def test_wait_begins_where_it_is_said_to(tools: None, tmp_path: Path) -> None:
    made = tmp_path / "made.o"
    subprocess.run(["as", "--64", "-o", made, _SOURCES / "cloner.x86_64.S"], check=True)
    listed = subprocess.run(["nm", made], check=True, capture_output=True, text=True).stdout
    places = {name: int(place, 16) for place, name in re.findall(r"^(\w+) t (\w+)$", listed, re.M)}
    assert (places["clone"], places["wait"]) == (0, machine_code.WAIT)


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        # clone3, futex, clone, exit_group; the 1 is what `wait` returns. Others are the list's.
        ("cloner", {435, 202, 56, 231, 1}),
        # prctl, rt_sigprocmask, wait4, write, rt_sigtimedwait
        ("init", {157, 14, 61, 1, 128}),
    ],
)
def test_sources_make_these_calls_and_no_others(name: str, calls: set[int]) -> None:
    text = (_SOURCES / f"{name}.x86_64.S").read_text()
    numbers = {int(number) for number in re.findall(r"mov\s+\$(\d+), %eax", text)}
    assert numbers == calls


def test_init_that_is_nobodys_says_so_and_waits(require: Require, tmp_path: Path) -> None:
    """Executed by anybody, as any program inside may: it has no channel, and nothing happens."""
    require("machine code", machine_code.IS_KNOWN, "there is none for this processor")
    program = tmp_path / "init"
    program.write_bytes(machine_code.init_program())
    program.chmod(0o755)
    process = subprocess.Popen([program], stdin=subprocess.DEVNULL, close_fds=True)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        assert int(Path(f"/proc/{process.pid}/statm").read_text().split()[0]) * 4 < 1024
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("refused", ["memfd_create", None])
def test_host_that_refuses_what_it_takes_has_a_whole_init(
    require: Require, monkeypatch: pytest.MonkeyPatch, refused: str | None
) -> None:
    """As under `vm.memfd_noexec=2`, or a container's filter. The control: nothing is refused."""
    require("machine code", machine_code.IS_KNOWN, "there is none for this processor")

    def refuse(*_: object) -> int:
        raise PermissionError(13, "refused")

    if refused:
        monkeypatch.setattr(os, refused, refuse)
    assert single_program.is_possible() is not bool(refused)

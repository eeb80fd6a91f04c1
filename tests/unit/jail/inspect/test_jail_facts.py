"""What a jail is told of this host."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cellwall.jail.inspect import host_facts

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def _is_open_to_others(name: str) -> bool:
    return bool(os.lstat(f"/proc/{name}").st_mode & OTHERS)


def test_each_entry_of_proc_is_covered_or_of_roots_alone() -> None:
    found = host_facts.collect()
    entries = {
        each.name
        for each in Path("/proc").iterdir()
        if not each.name.isdigit() and not each.is_symlink()
    }
    assert {*found.proc_files, *found.proc_closed, *found.proc_directories} == entries


def test_only_what_is_closed_to_all_others_is_left_uncovered() -> None:
    found = host_facts.collect()
    assert [name for name in found.proc_closed if _is_open_to_others(name)] == []
    assert [name for name in found.proc_files if not _is_open_to_others(name)] == []


def test_who_belongs_to_others_is_refused_what_is_closed() -> None:
    names = host_facts.collect().proc_closed
    if os.geteuid() != 0:
        refused = [name for name in names if not os.access(f"/proc/{name}", os.R_OK)]
    else:
        refused = _refused_to_another_id(names)
    assert refused == list(names)


def _refused_to_another_id(names: tuple[str, ...]) -> list[str]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(60_001, 60_001, 60_001)
        os.setresuid(60_001, 60_001, 60_001)
        refused = [name for name in names if not os.access(f"/proc/{name}", os.R_OK)]
        os.write(writer, " ".join(refused).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as heard:
        text = heard.read().decode()
    os.waitpid(pid, 0)
    return text.split()

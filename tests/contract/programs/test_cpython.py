"""CPython's own tests, run inside: what passes on the host passes there, refusals excepted.

A refusal is meant, has a reason, and is on docs/cpython-tests.md. Everything else that fails is a
fault of ours, or of the list.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as XML

import pytest

import cellwall
from cellwall import embedded
from conftest import Require
from kit.places import ROOT

PAGE = ROOT / "docs" / "cpython-tests.md"
PYTHON = "/usr/bin/python3"
pytestmark = pytest.mark.timeout(300)


def _names(text: str) -> list[str]:
    return text.split()


QUICK = _names("""
test_contextlib test_epoll test_fcntl test_fileio test_getpass test_glob test_grp test_hashlib
test_httplib test_json test_memoryio test_mmap test_openpty test_os test_pathlib test_posix
test_posixpath test_pty test_pwd test_queue test_random test_resource test_select test_shutil
test_tempfile test_thread test_time test_uuid test_zlib
""")
"""A minute in all."""
LONG = _names("""
test_asyncgen test_cmd_line test_faulthandler test_fork1 test_io test_selectors test_signal
test_tarfile test_threading test_wait3 test_wait4 test_xmlrpc test_zipfile
""")

REFUSED = {
    "test_fcntl": ["TestFcntl.test_fcntl_64_bit"],
    "test_io": ["CIOTest.test_large_file_ops", "PyIOTest.test_large_file_ops"],
    "test_os": ["ChownFileTests.test_chown_without_permission"],
    "test_posix": ["PosixTester.test_sched_setaffinity"],
    "test_resource": ["ResourceTest.test_fsize_ismax"],
}
"""What may fail inside; the page says why."""


@dataclass(frozen=True)
class Result:
    passed: int
    failed: frozenset[str]
    said: str


def read(report: str, said: str, module: str) -> Result:
    failed, passed = set(), 0
    for case in XML.fromstring(report).iter("testcase"):
        is_bad = case.find("failure") is not None or case.find("error") is not None
        if is_bad:
            failed.add(case.get("name", "").removeprefix(f"test.{module}."))
        passed += not is_bad and case.find("skipped") is None
    return Result(passed, frozenset(failed), said[-4000:])


@pytest.fixture(scope="module")
def sandbox(require: Require) -> Iterator[cellwall.Sandbox]:
    found = sorted(Path("/usr/lib").glob("python3.*/test/test_os.py"))
    require("CPython's tests", bool(found), "run: apt-get install libpython3-testsuite")
    limits = cellwall.Limits.agent(memory_mb=1024, cpus=2, processes=200, disk_mb=1024)
    try:
        with cellwall.Sandbox(limits=limits) as made:
            yield made
    except cellwall.HostUnsupported as error:
        require("sandboxes", False, str(error))
    finally:
        embedded._default.close()


def inside(sandbox: cellwall.Sandbox, module: str) -> Result:
    argv = [PYTHON, "-m", "test", "-u", "none", "--junit-xml", "report.xml", module]
    done = sandbox.commands.run(argv, merge_stderr=True, timeout=250)
    assert done.status in {0, 2}, done.stdout[-4000:]
    return read(sandbox.files.read("report.xml"), done.stdout, module)


@pytest.mark.parametrize(
    "module", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)]
)
def test_module_passes_inside(sandbox: cellwall.Sandbox, module: str) -> None:
    got = inside(sandbox, module)
    assert got.failed <= set(REFUSED.get(module, ())), got.said
    assert got.passed


def test_what_is_refused_inside_works_outside(sandbox: cellwall.Sandbox, tmp_path: Path) -> None:
    """The control: a refusal is seen as one, and is ours."""
    assert inside(sandbox, "test_fcntl").failed == set(REFUSED["test_fcntl"])
    report = tmp_path / "report.xml"
    done = subprocess.run(
        [PYTHON, "-m", "test", "-u", "none", "--junit-xml", report, "test_fcntl"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert not read(report.read_text(), done.stdout, "test_fcntl").failed, done.stdout


def test_page_says_why_of_each() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for module, names in REFUSED.items():
        for name in names:
            assert f"`{module}`" in page
            assert f"`{name.rpartition('.')[2]}`" in page

"""Group D: no namespace, mount, id, capability or machine setting can be had."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall import AsyncSandbox
from cellwall.jail.inspect import posture
from kit import controls
from kit.arena import Arena, descendants

pytestmark = [pytest.mark.attack, pytest.mark.root]


@pytest.fixture(scope="module")
def tried(arena: Arena) -> Iterator[controls.Both]:
    with tempfile.TemporaryDirectory(prefix="bait-") as work:
        Path(work).chmod(0o777)
        inside = {"work": "/tmp", "pid": "1"}
        outside = {"work": work, "pid": str(os.getpid())}
        yield controls.both(arena, "probe_privilege", {"inside": inside, "outside": outside})


@pytest.mark.parametrize(
    ("case", "words", "poisoned"),
    [
        pytest.param("D01", "EPERM", False, id="D01-unshare"),
        pytest.param("D02", "EPERM", False, id="D02-clone"),
        pytest.param("D03", "ENOSYS", False, id="D03-clone3"),
        pytest.param("D04", "EPERM", False, id="D04-unshare-command"),
        pytest.param("D05", "EPERM ENOENT ENOTTY", True, id="D05-join-namespaces"),
        pytest.param("D06", "EPERM", True, id="D06-mount-calls"),
        pytest.param("D06-chroot", "EPERM", True, id="D06-chroot"),
        pytest.param("D07", "EPERM", True, id="D07-unmount-masks"),
        pytest.param("D08", "EPERM EINVAL", False, id="D08-ids-and-capabilities"),
        pytest.param("D10", "EPERM", True, id="D10-no-way-back"),
        pytest.param("D11", "EACCES EPERM ENOENT", False, id="D11-memory-of-the-agent"),
        pytest.param("D14", "EPERM EACCES EROFS", False, id="D14-id-maps"),
        pytest.param("D16", "EPERM EACCES", False, id="D16-priority"),
        pytest.param("D17", "EPERM", True, id="D17-machine"),
        pytest.param("D18", "EPERM", True, id="D18-hardware"),
        pytest.param("G25", "EPERM", False, id="G25-clock"),
    ],
)
def test_privilege_is_denied(tried: controls.Both, case: str, words: str, poisoned: bool) -> None:
    tried.denied(case, words, poisoned=poisoned)


CAP_SYS_RESOURCE = 24


def test_oom_score_is_denied(tried: controls.Both) -> None:
    """D15: /proc is a read-only mount; below 0 a capability would be missing, too.

    The control that needs no privilege: the same file, written the other way, is reached.
    """
    for value in ("-1000", "-1", "999"):
        assert tried.inside["D15", value].word == "EROFS"
    assert tried.outside["D15", "999"].reached
    assert tried.outside["D15", "below_where_it_was_raised_to"].reached
    effective = posture.read_status(Path("/proc/self/status").read_text())["CapEff"]
    capable = bool(int(effective, 16) >> CAP_SYS_RESOURCE & 1)
    assert tried.outside["D15", "-1000"].reached or not capable


LOWER = """
with open("/proc/self/oom_score_adj", "w") as file:
    file.write("0")
"""


def _scores(sandbox: AsyncSandbox) -> set[int]:
    """What the host's kernel would go by, of init and all below it."""
    init = sandbox.live.runtime_sandbox.pid  # type: ignore[attr-defined]
    pids = {init, *descendants(init)}
    return {int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in pids}


def test_raised_oom_score_can_not_be_lowered(arena: Arena) -> None:
    """D15: when memory runs out on the host, sandboxes must go before the embedding process."""

    async def attack() -> None:
        async with arena.sandbox() as sandbox:
            raised = _scores(sandbox)
            assert raised == {500}
            await sandbox.run(LOWER)
            assert _scores(sandbox) == raised

    arena.do(attack())


SET_DATE = """
import ctypes, os, struct, subprocess, time
libc = ctypes.CDLL(None, use_errno=True)
later = int(time.time()) + 3600
try:
    time.clock_settime(time.CLOCK_REALTIME, later)
    print("REACHED")
except OSError as error:
    print(error.errno)
moment = struct.pack("=qq", later, 0)
print(libc.settimeofday(moment, None), ctypes.get_errno())
print(libc.stime(ctypes.byref(ctypes.c_long(later))) if hasattr(libc, "stime") else -1)
print(subprocess.run(["date", "-s", f"@{later}"], capture_output=True).returncode)
"""


def test_date_of_the_host_stays(arena: Arena) -> None:
    """G25: the offset of the wall clock to the monotonic one is the witness."""
    before = time.time() - time.monotonic()
    said = arena.run(SET_DATE).stdout.split()[1:]
    assert abs(time.time() - time.monotonic() - before) < 1
    assert said == ["1", "-1", "1", "-1", "1"]

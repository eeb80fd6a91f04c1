"""Group D: no namespace, mount, id, capability or machine setting can be had."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import controls
import pytest
from arena import Arena

from cellwall.jail import posture

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
        pytest.param("D06", "EPERM", True, id="D06-mount-calls"),
        pytest.param("D07", "EPERM", True, id="D07-unmount-masks"),
        pytest.param("D08", "EPERM EINVAL", False, id="D08-ids-and-capabilities"),
        pytest.param("D10", "EPERM", True, id="D10-no-way-back"),
        pytest.param("D11", "EACCES EPERM ENOENT", False, id="D11-memory-of-the-agent"),
        pytest.param("D14", "EPERM EACCES", False, id="D14-id-maps"),
        pytest.param("D16", "EPERM EACCES", False, id="D16-priority"),
        pytest.param("D17", "EPERM", True, id="D17-machine"),
        pytest.param("D18", "EPERM", True, id="D18-hardware"),
    ],
)
def test_privilege_is_denied(tried: controls.Both, case: str, words: str, poisoned: bool) -> None:
    tried.denied(case, words, poisoned=poisoned)


CAP_SYS_RESOURCE = 24


def test_oom_score_is_denied(tried: controls.Both) -> None:
    """D15: its guard is the missing capability, which not every host's root has to give either.

    The control that needs no privilege: the same file, written the other way, is reached.
    """
    for value in ("-1000", "-1"):
        assert tried.inside["D15", value].word == "EACCES"
    assert tried.inside["D15", "999"].reached
    assert tried.outside["D15", "999"].reached
    effective = posture.read_status(Path("/proc/self/status").read_text())["CapEff"]
    capable = bool(int(effective, 16) >> CAP_SYS_RESOURCE & 1)
    assert tried.outside["D15", "-1000"].reached or not capable

"""What `cellwall doctor` says of images, on machines of all kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellwall.linux.subordinate_ids import Outer
from cellwall.linux.uid_ranges import Ids
from cellwall.runtimes.jail.images.readiness import readiness

MOUNTS = """/dev/a / ext4 rw 0 0
proc /proc proc rw 0 0
server:/x /srv nfs4 rw 0 0
tmpfs /srv/fast tmpfs rw 0 0
/dev/b /with\\040space xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "ids", "release", "grade", "said"),
    [
        ("/var/lib/cellwall", 0, "6.6.0", "PASS", "is on ext4"),
        ("/srv/fast/state", 0, "7.0.1-cloud", "PASS", "is on tmpfs"),
        ("/with space/state", 0, "6.10", "PASS", "is on xfs"),
        ("/srv/state", 0, "6.6.0", "CAUTION", "is on nfs4"),
        ("/srvother", 0, "6.6.0", "PASS", "is on ext4"),
        ("/var/lib/cellwall", 0, "6.5.9", "CAUTION", "Linux 6.5.9"),
        ("/var/lib/cellwall", 0, "odd", "CAUTION", "Linux odd"),
        ("/var/lib/cellwall", None, "6.6.0", "CAUTION", "no ids here"),
        ("/var/lib/cellwall", 49_151, "6.6.0", "CAUTION", "49151 subordinate ids are too few"),
        ("/srv/state", 65_536, "6.6.0", "PASS", "on the jail"),
        ("/srv/state", 65_536, "6.5.9", "CAUTION", "Linux 6.5.9"),
    ],
)
def test_readiness(path: str, ids: int | None, release: str, grade: str, said: str) -> None:
    """`ids`: how many an ordinary user may map; 0: it is root."""
    outer = Outer(100_000, 100_000, ids) if ids else None
    known = Ids(ids != 0, outer, "no ids here")
    found = readiness(Path(path), ids=known, release=release, mounts=MOUNTS)
    assert (found.feature, found.grade) == ("images", grade)
    assert said in found.detail
    assert bool(found.remedy) is (grade != "PASS")


def test_this_machine_is_read(tmp_path: Path) -> None:
    assert readiness(tmp_path).feature == "images"

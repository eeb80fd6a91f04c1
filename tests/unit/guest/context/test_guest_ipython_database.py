"""What stands in for IPython's database in the folder of a profile."""

from __future__ import annotations

import os

from cellwall.guest.context.ipython import Database


def test_keys_are_found_by_a_pattern_and_missing_ones_can_be_removed() -> None:
    kept = Database("/no/such/folder")
    kept["autorestore/x"] = 1
    kept["bookmarks"] = {"here": "/"}
    assert kept.keys("autorestore/*") == ["autorestore/x"]
    assert set(kept.keys()) == {"autorestore/x", "bookmarks"}
    del kept["autorestore/x"], kept["autorestore/x"]
    assert kept.get("autorestore/x", "none") == "none"
    kept.uncache("bookmarks")
    assert not os.path.exists("/no/such")

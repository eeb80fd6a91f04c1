"""Errors of a store.

CellwallError
├── CapacityError
│   ├── StoreBusy      not within its bound of time or length; nothing was written (HTTP 503)
│   └── StoreFull      the disk, a quota or a file limit says no; nothing was written (507)
├── Conflict
│   └── StoreConflict  the rows are in a state that forbids this change (409)
└── StoreBroken        the database cannot be used, or refused for a reason of its own (500)
"""

from __future__ import annotations

from cellwall.model.errors import CapacityError, CellwallError, Conflict


class StoreBusy(CapacityError):
    """The database did not take the work in time; nothing was written."""

    code = "store_busy"


class StoreFull(CapacityError):
    """There is no space to write; nothing was written."""

    code = "store_full"


class StoreConflict(Conflict):
    """The change does not fit what is stored; nothing of its `write` was written."""

    code = "store_conflict"


class StoreBroken(CellwallError):
    """The database is missing, damaged, of another version, or failed in an unknown way."""

    code = "store_broken"

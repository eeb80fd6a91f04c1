"""What of `tests/server` does not pass through a gateway, with the reason of each.

Used where `switch` is on. What `FAILS` names is run and has to fail, so that an entry that is no
longer true is found; what `OTHERS` names is no matter of a gateway's, and is not run there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FAILS: Mapping[str, str] = {}
"""Reason by a test's id, without its parameters or with them."""
OTHERS: Mapping[str, str] = {}
"""Reason by the beginning of ids: a folder, a file, or a test."""


def mark(items: Sequence[pytest.Item]) -> None:
    """Mark what was collected."""
    for item in items:
        name = item.nodeid
        reason = FAILS.get(name, FAILS.get(name.partition("[")[0]))
        other = next((why for begins, why in OTHERS.items() if name.startswith(begins)), None)
        if other is not None:
            item.add_marker(pytest.mark.skip(reason=f"behind a gateway: {other}"))
        elif reason is not None:
            item.add_marker(pytest.mark.xfail(reason=f"behind a gateway: {reason}", strict=True))

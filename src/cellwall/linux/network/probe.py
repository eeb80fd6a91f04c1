"""Finds out, by trying, whether this host can give sandboxes a way out; `doctor` prints the answer.

The trial runs in a throw-away child process, in a network namespace of its own.
"""

from __future__ import annotations

import os

from cellwall.linux.network import listeners
from cellwall.linux.syscalls import process
from cellwall.linux.trial import trial

REMEDY = "use a kernel with nf_tables and nft_tproxy (modprobe nft_tproxy), or network='none'"


def why_not() -> str:
    """Return why this host cannot; empty if it can. Takes a few milliseconds."""
    return trial(_try)


def _try() -> None:
    own = 0 if os.geteuid() == 0 else process.CLONE_NEWUSER
    process.unshare(own | process.CLONE_NEWNET)
    process.loopback_up()
    listeners.open_listeners().close()

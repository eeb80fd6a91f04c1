"""Finds out, by trying, whether this host can give sandboxes a way out; `doctor` prints the answer.

The trial runs in a throw-away child process, in a network namespace of its own.
"""

from __future__ import annotations

import os

from cellwall.linux.network import listeners
from cellwall.linux.syscalls import process
from cellwall.linux.trial import trial

REMEDY = "for sandboxes with a network run as root, on a kernel with nf_tables and nft_tproxy"


def why_not() -> str:
    """Return why this host cannot; empty if it can. Takes a few milliseconds."""
    if os.geteuid() != 0:
        return "only root can open a sandbox's network"
    return trial(_try)


def _try() -> None:
    process.unshare(process.CLONE_NEWNET)
    process.loopback_up()
    listeners.open_listeners().close()

"""Code of sessions that keep what they should close while they become a copy."""

from __future__ import annotations

KEEPS_FILES = """
import sys, os
from cellwall.guest.context import copies as c
_wake = c._wake
def wake(link, timers):
    # As copied code may do with its process what it likes: keep what it is to close.
    global kept
    import json, ctypes
    mail = json.loads(ctypes.string_at(c.walker.MAILBOX))
    kept = [os.dup(n) for n in mail['numbers'][:2]]
    _wake(link, timers)
c._wake = wake
"""
"""Keeps descriptors of the image and of the base, as `kept`."""
LOCKS = """
import fcntl
def locked(how):
    found = []
    for lock in (fcntl.flock, fcntl.lockf):
        try: lock(kept[{which}], how | fcntl.LOCK_NB)
        except OSError as error: found.append(error.errno)
        except ValueError: found.append(-1)  # lockf knows no LOCK_UN | LOCK_NB
        else: found.append(0)
    return found
"""
"""Defines `locked`, which tries both kinds of lock on the file `kept[{which}]`."""

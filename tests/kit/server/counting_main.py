"""A server that says what it holds: `python counting_main.py serve …`, then SIGUSR2.

Writes the number of its objects by type, as JSON, to the file that COUNTS_FILE names, with a name
of its own for each time: `<file>.1`, `<file>.2`… As root it has a mount namespace of its own, so
that the mounts it sees are its own and not those of others on the host.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
from collections import Counter
from pathlib import Path

from cellwall.apps.cli.main import main
from cellwall.linux.syscalls import mounts, process

_numbers = itertools.count(1)


def _write_counts(_number: int, _frame: object) -> None:
    gc.collect()
    names = (f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    path = f"{os.environ['COUNTS_FILE']}.{next(_numbers)}"
    Path(f"{path}.new").write_text(json.dumps(Counter(names)), encoding="utf-8")
    Path(f"{path}.new").rename(path)


def serve() -> None:
    """Be the command line, with an ear for the signal."""
    if os.geteuid() == 0:
        process.unshare(process.CLONE_NEWNS)
        mounts.mount("none", "/", None, mounts.MS_REC | mounts.MS_PRIVATE, None)
    signal.signal(signal.SIGUSR2, _write_counts)
    main()


if __name__ == "__main__":
    serve()

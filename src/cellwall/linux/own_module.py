"""The command that runs a function of this package in a process of its own.

The process has the modules of this one, whatever they were found by, and nothing else of it: `-I`
keeps its environment and working directory out.
"""

from __future__ import annotations

import os
import sys


def command(entry: str, *words: str) -> list[str]:
    """Return the arguments of an interpreter that calls `entry`, `module:function`.

    The function finds `words` in `sys.argv[1:]`.
    """
    module, _, function = entry.partition(":")
    code = (
        "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); "
        f"from {module} import {function}; {function}()"
    )
    path = "\n".join(each for each in sys.path if os.path.isabs(each))
    return [sys.executable, "-I", "-S", "-c", code, path, *words]

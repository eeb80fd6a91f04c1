"""What the soak runs: benign programs and their answers, attacks and the limit each must meet.

Data only. A benign program that does not give its answer is a false denial; an attack whose
verdict is not the one named here is a limit that was named wrongly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Program:
    """One request to `/execute` and what must come of it."""

    name: str
    body: Body
    verdicts: tuple[str, ...]
    stdout: str | None = None
    """None: whatever it printed."""
    limits: Body = field(default_factory=dict)

    @property
    def request(self) -> Body:
        """The whole body."""
        return {"timeout": 20, **self.body, "limits": self.limits}


BENIGN = (
    Program("hello", {"code": "print('hello')"}, ("ok",), "hello\n"),
    Program("sum", {"code": "print(sum(range(10**6)))"}, ("ok",), "499999500000\n"),
    Program("stdin", {"code": "print(input()[::-1])", "stdin": "abc\n"}, ("ok",), "cba\n"),
    Program("bash", {"code": "seq 3 | paste -sd+ | bc || echo 6", "language": "bash"}, ("ok",)),
    Program("exit", {"code": "import sys\nsys.exit(3)"}, ("nonzero_exit",), ""),
    Program("raise", {"code": "1 / 0"}, ("exception",), ""),
    Program(
        "files",
        {"code": "print(open('in.txt').read().upper())", "files": {"in.txt": "quiet"}},
        ("ok",),
        "QUIET\n",
    ),
    Program(
        "children",
        {"code": "import subprocess\nprint(subprocess.run(['echo', 'x']).returncode)"},
        ("ok",),
    ),
    Program(
        "threads",
        {
            "code": "from concurrent.futures import ThreadPoolExecutor as T\n"
            "with T(8) as pool: print(sum(pool.map(lambda n: n * n, range(100))))"
        },
        ("ok",),
        "328350\n",
    ),
    Program(
        "output",
        {"code": "for n in range(2000): print(n)"},
        ("ok",),
        "".join(f"{n}\n" for n in range(2000)),
    ),
    Program(
        "disk",
        {"code": "open('big', 'wb').write(bytes(8 << 20))\nprint('written')"},
        ("ok",),
        "written\n",
    ),
)

_SMALL = {"memory_mb": 64, "processes": 30, "disk_mb": 16}
_BOMB = "import os, signal\nsignal.signal(17, signal.SIG_IGN)\n{}"
ATTACKS = (
    Program(
        "fork bomb",
        {"code": _BOMB.format("while True: os.fork()"), "timeout": 6},
        ("processes", "wall_time"),
        limits=_SMALL,
    ),
    Program(
        "memory hog",
        {"code": "kept = []\nwhile True: kept.append(b'x' * (1 << 20))"},
        ("memory",),
        limits=_SMALL,
    ),
    Program("sleeper", {"code": "import time\ntime.sleep(60)", "timeout": 1}, ("wall_time",)),
    Program("spinner", {"code": "while True: pass"}, ("cpu_time",), limits={"cpu_s": 0.5}),
    Program(
        "flood",
        {"code": "import os\nfor _ in range(64): os.write(1, b'x' * (1 << 20))"},
        ("output",),
    ),
    Program(
        "endless flood",
        {"code": "import os\nwhile True: os.write(1, b'x' * (1 << 16))", "timeout": 1},
        ("wall_time",),
    ),
    Program(
        "disk filler",
        {"code": "with open('f', 'wb') as f:\n    while True: f.write(bytes(1 << 20))"},
        ("disk",),
        limits={**_SMALL, "memory_mb": 256},
    ),
    Program(
        "inode filler",
        {"code": "n = 0\nwhile True:\n    open(str(n), 'x').close()\n    n += 1"},
        ("disk",),
        limits={"inodes": 500},
    ),
    Program(
        "large file",
        {"code": "f = open('f', 'wb')\nwhile True: f.write(bytes(1 << 20))"},
        ("disk", "exception"),
        limits={"file_mb": 2},
    ),
    Program(
        "killer",
        {"code": "import os\nos.kill(-1, 9)"},
        ("signalled", "exception"),
    ),
    Program(
        "leftover",
        {"code": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)"},
        ("ok",),
    ),
)

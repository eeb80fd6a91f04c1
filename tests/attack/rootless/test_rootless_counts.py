"""An ordinary user's sandboxes that share its id: what one of them may take of shared counts.

And memory that the kernel keeps for a sandbox and shows nobody. Controls: the same program with
what it may have. The witness is the embedding program.
"""

from __future__ import annotations

import json

import pytest

from kit.unprivileged import SHARING_ITS_ID, OrdinaryUser

pytestmark = [
    pytest.mark.attack,
    pytest.mark.alone,
    pytest.mark.rootless,
    pytest.mark.timeout(180),
]

_EMBED = """
import json
import cellwall

SPLIT = '''
import ctypes, mmap, os, signal, sys
libc, pages = ctypes.CDLL(None), int(sys.argv[2])
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        kept = mmap.mmap(-1, pages << 12, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = ctypes.addressof(ctypes.c_char.from_buffer(kept))
        for page in range(0, pages, 2):
            libc.mprotect(ctypes.c_void_p(start + (page << 12)), ctypes.c_size_t(4096), 1)
        signal.pause()
    os.write(1, b".")
import time
time.sleep(float(sys.argv[3]))
'''

def tell(case, work):
    try:
        done = work()
        print(json.dumps([case, done.verdict.value, done.outcome.isolation.ids]), flush=True)
    except cellwall.CellwallError as error:
        print(json.dumps([case, type(error).__name__, str(error)]), flush=True)

def split(*args):
    return cellwall.run(SPLIT, args=list(args), limits={"memory_mb": 128}, timeout=30)

tell("few", lambda: split("3", "2000", "1"))
tell("many", lambda: split("40", "60000", "25"))
tell("usual", lambda: cellwall.run("print(1)"))
tell("files", lambda: cellwall.run("print(1)", limits={"open_files": 1024, "processes": 8}))
tell("watches", lambda: cellwall.run("print(1)", limits={"open_files": 700, "processes": 1000}))
"""


def test_what_one_may_take_is_bounded_or_refused() -> None:
    with OrdinaryUser() as user:
        done = user.run(SHARING_ITS_ID + _EMBED, timeout_s=150)
        assert done.code == 0, done.stderr
    seen = {case: rest for case, *rest in map(json.loads, done.stdout.splitlines())}
    assert seen["few"] == ["ok", "shared"]
    assert seen["many"] == ["memory", "shared"]
    assert seen["usual"] == ["ok", "shared"]
    for case, what in (("files", "with 1024 open files"), ("watches", "epoll watches")):
        kind, message = seen[case]
        assert kind == "HostUnsupported"
        assert what in message
        assert "doctor" in message

"""Random programs of a session, to be copied in the middle of: data.

Not a test. A program is made of pieces; each has a cell that begins something, and one that is
asked five times more and goes on with it. What is asked prints nothing that may differ between a
process and its copy, such as a pid, an address or a time.
"""

from __future__ import annotations

import random
import re
from typing import NamedTuple

ASKED = 5
"""Number of cells after the copy."""
_OWN = re.compile(r"(?<![A-Z])N\b")


class Piece(NamedTuple):
    """One thing that a session has; `N` in the text is its own number."""

    begin: str
    ask: str


PLAIN = {
    "names": Piece(
        "aN, bN = {random}, {{'k': [1, (2, {random})], 'ä': '中文'}}",
        "aN += 1; bN['k'].append(aN); print(aN, bN)",
    ),
    "class": Piece(
        """
class BaseN:
    seen = []
    def __init__(self, x): self.x = x
    def step(self): self.x = self.x * 7 % 1009; self.seen.append(self.x); return self.x
class ChildN(BaseN):
    __slots__ = ("extra",)
    def step(self): self.extra = super().step(); return -self.extra
cN = ChildN({random})
""",
        "print(cN.step(), ChildN.seen, cN.extra, type(cN).__mro__[1].__name__)",
    ),
    "closure": Piece(
        """
def makerN(k):
    total = 0
    def add(n):
        nonlocal total
        total += n * k
        return total
    return add
addN = makerN({random})
""",
        "print(addN(3), addN.__closure__[1].cell_contents)",
    ),
    "generator": Piece(
        """
def walkN():
    state = {random}
    while True:
        got = yield state
        state = (state * 31 + (got or 1)) % 65537
genN = walkN(); next(genN)
""",
        "print(genN.send(5), next(genN))",
    ),
    "decorator": Piece(
        """
import functools
callsN = []
def noteN(f):
    @functools.wraps(f)
    def g(*a):
        callsN.append((f.__name__, a)); return f(*a)
    return g
@noteN
@functools.lru_cache(maxsize=None)
def fibN(n): return n if n < 2 else fibN(n - 1) + fibN(n - 2)
fibN({random} % 40)
""",
        "print(fibN(30 + len(callsN) % 7), len(callsN))",
    ),
    "dataclass": Piece(
        """
import dataclasses, enum
class ColourN(enum.Enum): RED = 1; BLUE = 2
@dataclasses.dataclass(order=True)
class PointN:
    x: int
    y: list = dataclasses.field(default_factory=list)
pN = PointN({random})
""",
        "pN.y.append(ColourN.BLUE.name); print(pN, dataclasses.replace(pN, x=1) < pN, ColourN(1))",
    ),
    "open file": Piece(
        """
with open('readN.txt', 'w') as f: f.write(''.join(f'line {{i}}\\n' for i in range(500)))
readN, writeN = open('readN.txt'), open('/tmp/writeN.txt', 'w+')
readN.readline(); writeN.write('begun {random}\\n')
""",
        """
print(readN.readline().strip(), readN.tell())
writeN.write('more\\n'); writeN.flush()
with open('/tmp/writeN.txt') as f: print(f.read())
""",
    ),
    "unbuffered file": Piece(
        """
import os
fdN = os.open('rawN.bin', os.O_RDWR | os.O_CREAT | os.O_APPEND)
os.write(fdN, b'0123456789' * 9); os.lseek(fdN, {random} % 50, 0)
""",
        "print(os.read(fdN, 3), os.write(fdN, b'x'), os.fstat(fdN).st_size)",
    ),
    "directory": Piece(
        "import os; os.makedirs('deep/N/er', exist_ok=True); os.chdir('deep/N/er')",
        "print(os.getcwd(), os.path.exists('../er')); open('made', 'a').write('x'); "
        "print(os.path.getsize('made'))",
    ),
    "umask": Piece(
        "import os; os.umask(0o0{mask})",
        "open(f'maskN', 'w').close(); print(oct(os.stat('maskN').st_mode)); os.unlink('maskN')",
    ),
    "brk": Piece(
        "heapN = [bytes([i % 251]) * (1 + i % 480) for i in range(60000)]",
        "heapN.append(heapN.pop(7) + b'!'); print(sum(map(len, heapN)), hash(heapN[-1]) == "
        "hash(bytes(heapN[-1])), len(set(heapN)))",
    ),
    "mmap": Piece(
        "bigN = bytearray(40 << 20); bigN[::4096] = bytes([{random} % 256]) * (len(bigN) // 4096)",
        "bigN[12345] = (bigN[12345] + 1) % 256; print(sum(bigN[::4096]), bigN[12345])",
    ),
    "anonymous mapping": Piece(
        "import mmap; mapN = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE); mapN[5:8] = b'abc'",
        "mapN[0] = (mapN[0] + 1) % 256; print(mapN[:10], mapN[-5:])",
    ),
    "recursion": Piece(
        """
import sys
sys.setrecursionlimit(4000 + {random} % 50)
def deepN(n): return 0 if n == 0 else 1 + deepN(n - 1)
deepN(3000)
""",
        "print(sys.getrecursionlimit(), deepN(2500))",
    ),
    "sqlite": Piece(
        """
import sqlite3
dbN = sqlite3.connect(':memory:')
dbN.execute('create table t (a int)')
dbN.executemany('insert into t values (?)', [(i,) for i in range(99)])
curN = dbN.execute('select a from t order by a'); curN.fetchone()
""",
        "dbN.execute('insert into t values (1000)'); "
        "print(curN.fetchone(), dbN.execute('select sum(a), count(*) from t').fetchone())",
    ),
    "decimal": Piece(
        "import decimal; decimal.getcontext().prec = 40; dN = decimal.Decimal({random})",
        "dN = (dN / 7 + 1).sqrt(); print(dN, decimal.getcontext().prec)",
    ),
    "ctypes": Piece(
        """
import ctypes
libcN = ctypes.CDLL(None)
arrayN = (ctypes.c_int * 9)(*range(9, 0, -1))
kindN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
backN = kindN(lambda a, b: a[0] - b[0])
""",
        "libcN.qsort(arrayN, 9, 4, backN); arrayN[0] += 3; print(list(arrayN))",
    ),
    "codecs": Piece(
        "import zlib, hashlib, array; packN = zlib.compressobj(); packN.compress(b'x' * 99)\n"
        "sumN = hashlib.sha256(b'{random}')",
        "sumN.update(b'more'); print(sumN.hexdigest(), packN.copy().flush().hex()[:20])",
    ),
    "task": Piece(
        """
import asyncio
ticksN, queueN = [], asyncio.Queue()
async def serveN():
    total = {random}
    while True:
        total += await queueN.get()
        ticksN.append(total)
taskN = asyncio.get_running_loop().create_task(serveN())
await asyncio.sleep(0)
""",
        "queueN.put_nowait(4); await asyncio.sleep(0.01); print(ticksN, taskN.done())",
    ),
    "signal": Piece(
        """
import signal, os
gotN = []
signal.signal(signal.SIGUSR{one_or_two}, lambda number, frame: gotN.append(number))
signal.signal(signal.SIGHUP, signal.SIG_IGN)
""",
        "os.kill(os.getpid(), signal.SIGUSR{one_or_two}); os.kill(os.getpid(), signal.SIGHUP); "
        "print(gotN, signal.getsignal(signal.SIGHUP).name)",
    ),
    "timer": Piece(
        """
import signal, time
ringsN = []
signal.signal(signal.SIGALRM, lambda *a: ringsN.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
""",
        """
_before = len(ringsN); _end = time.monotonic() + 5
while len(ringsN) == _before and time.monotonic() < _end: time.sleep(0.01)
print(len(ringsN) > _before, signal.getitimer(signal.ITIMER_REAL)[1])
""",
    ),
    "exception": Piece(
        """
try:
    [][{random}]
except IndexError as error:
    keptN = error
    try: raise ValueError('second') from error
    except ValueError as other: chainN = other
""",
        "print(repr(keptN), repr(chainN.__cause__), keptN.__traceback__.tb_lineno, "
        "chainN.__traceback__ is not None)",
    ),
    "ended thread": Piece(
        """
import threading
resultN = []
threads = [threading.Thread(target=lambda k=k: resultN.append(k * {random})) for k in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
localN = threading.local(); localN.x = 1; lockN = threading.Lock()
""",
        """
with lockN: localN.x += 1
_t = threading.Thread(target=lambda: resultN.append(hasattr(localN, 'x'))); _t.start(); _t.join()
print(sorted(resultN, key=str), localN.x, threading.active_count(),
      threading.current_thread() is threading.main_thread())
""",
    ),
    "history": Piece(
        "{random} * 2",
        "print(Out[max(Out)] if Out else None, len(In) > 1, _)",
    ),
    "import": Piece(
        """
with open('modN.py', 'w') as f:
    f.write('state = [{random}]\\ndef more():\\n    state.append(len(state)); return state')
import sys, os, importlib
sys.path.insert(0, os.getcwd()); importlib.invalidate_caches()
import modN
""",
        "print(modN.more(), sys.modules['modN'] is modN)",
    ),
    "random": Piece(
        "import random; random.seed({random}); ownN = random.Random({random})",
        "print(random.random(), ownN.getrandbits(64), random.choice('abcdefgh'))",
    ),
    "strings": Piece(
        "import re, json; reN = re.compile(r'(\\d+)-(?P<x>\\w)'); "
        "itN = reN.finditer('1-a 22-b ' * 9)",
        "print(next(itN).groupdict(), json.dumps({{'a': [1.5, None]}}), hash('fixed') == "
        "hash('fix' + 'ed'))",
    ),
    "subprocess": Piece(
        "import subprocess; subprocess.run(['echo', '{random}'], capture_output=True)",
        "print(subprocess.run(['sh', '-c', 'echo $((2+3)); exit 3'], capture_output=True))",
    ),
    "weak": Piece(
        "import weakref, gc\nclass ThingN: pass\nthingN = ThingN(); deadN = []\n"
        "refN = weakref.finalize(thingN, deadN.append, {random}); bagN = weakref.WeakSet([thingN])",
        "gc.collect(); print(refN.alive, len(bagN), deadN)",
    ),
    "collector": Piece(
        "import gc; gc.set_threshold(50, 5, 5); loopsN = []",
        "for _ in range(500):\n    a = []; a.append(a)\nloopsN.append(a); print(len(loopsN), "
        "gc.get_threshold(), gc.isenabled())",
    ),
}
"""What the template `python` can do as well."""

DATA = {
    "array": Piece(
        "import numpy as np; arrN = np.arange({random} + 5000, dtype='int64') % 97",
        "arrN[3] += 1; print(arrN.sum(), (arrN @ arrN), np.sort(arrN)[-3:])",
    ),
    "large array": Piece(
        "import numpy as np; hugeN = np.zeros(5_000_000); hugeN[::7] = {random}",
        "hugeN[1] += 0.5; print(hugeN.sum(), hugeN[:9])",
    ),
    "numpy generator": Piece(
        "import numpy as np; rngN = np.random.default_rng({random})\n"
        "np.random.seed({random} % 999)",
        "print(rngN.normal(), rngN.integers(99, size=3), np.random.random())",
    ),
    "frame": Piece(
        """
import pandas as pd, numpy as np
dfN = pd.DataFrame({{'a': np.arange(3000) % 13, 's': ['x', 'yy', 'ß'] * 1000,
                     'b': np.arange(3000) * {random}}})
groupN = dfN.groupby('a')
""",
        "dfN.loc[0, 'b'] += 1; print(groupN.b.sum().tolist(), dfN.s.value_counts().to_dict(), "
        "dfN.describe().round(3).to_dict())",
    ),
    "figure": Piece(
        """
import matplotlib; matplotlib.use('Agg')
import matplotlib.pyplot as plt
figN, axN = plt.subplots(); axN.plot([1, 2, {random}]); axN.set_title('t')
""",
        """
import io
axN.plot([3, 1]); _out = io.BytesIO()
figN.savefig(_out, format='png', metadata={{'Software': None}})
import zlib; print(len(axN.lines), zlib.crc32(_out.getvalue()))
""",
    ),
    "lxml": Piece(
        "from lxml import etree; treeN = etree.fromstring('<a><b x=\"{random}\"/><b/></a>')",
        "treeN.append(etree.Element('c')); print(etree.tostring(treeN), treeN.xpath('count(//b)'))",
    ),
    "scipy": Piece(
        "import numpy as np; from scipy import optimize, sparse\n"
        "spN = sparse.eye(50).tocsr() * {random}",
        "spN = spN @ spN.T / 7; "
        "print(spN.sum(), optimize.brentq(lambda x: x**3 - {random}, 0, 2000))",
    ),
    "sympy": Piece(
        "import sympy; xN = sympy.Symbol('x'); eN = xN**2 - {random}",
        "eN = sympy.expand(eN * (xN + 1)); print(eN, sympy.diff(eN, xN))",
    ),
    "picture": Piece(
        "from PIL import Image; imN = Image.new('RGB', (64, 64), ({random} % 256, 2, 3))",
        "imN.putpixel((1, 1), (9, 9, 9)); print(imN.rotate(90).getpixel((1, 62)), "
        "imN.histogram()[2:12])",
    ),
    "memory map": Piece(
        "import numpy as np; mmN = np.memmap('N.dat', 'int32', 'c', shape=(5000,)) if "
        "open('N.dat', 'wb').write(bytes(20000)) else None",
        "mmN[7] += {random}; print(int(mmN.sum()), mmN[5:9].tolist())",
    ),
}
"""What the template `data` has, too, without threads that stay."""


def program(seed: int, kinds: dict[str, Piece]) -> tuple[list[str], list[str]]:
    """Return the cells before the copy, and those after it."""
    chosen = random.Random(seed)
    names = chosen.sample(sorted(kinds), k=chosen.randint(3, 6))
    fields = {"random": 0, "mask": "", "one_or_two": 0}
    begin, asked = [], []
    for number, name in enumerate(names):
        fields["random"] = chosen.randrange(3, 1000)
        fields["mask"] = chosen.choice(("22", "77", "27", "02"))
        fields["one_or_two"] = chosen.choice((1, 2))
        own = f"_{seed}_{number}"
        first, more = (_of(text, own, fields) for text in kinds[name])
        begin.append(first)
        asked.append(f"print({name!r})\n{more.strip()}")
    return begin, ["\n".join(chosen.sample(asked, len(asked))) for _ in range(ASKED)]


def _of(text: str, own: str, fields: dict[str, object]) -> str:
    return _OWN.sub(own, text.format(**fields))

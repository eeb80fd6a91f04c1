"""Honest programs: whatever they print and return on the host, they print and return inside.

Each program runs twice: bare, by the template's own interpreter with a made-up environment, and
in a jail. A denial that an honest program meets is a defect of the policy, as much as a leak is.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import cellwall
from cellwall.engine.templates.store import TemplateStore, state_dir

_LIMITS = {"processes": 64, "memory_mb": 1024, "cpus": 2}

PYTHON = {
    "numpy": """
import numpy as np
a = np.arange(10_000, dtype=float).reshape(100, 100)
print(a.sum(), (a @ a.T).trace(), np.linalg.norm(np.fft.fft(a[0])).round(6))
print(np.random.default_rng(7).normal(size=3).round(9).tolist())
""",
    "pandas": """
import io
import pandas as pd
frame = pd.DataFrame({"day": pd.date_range("2024-02-28", periods=4), "n": [3, 1, 4, 1]})
print(frame.groupby(frame.day.dt.month).n.agg(["sum", "mean"]).to_csv())
frame.to_csv("frame.csv", index=False)
print(pd.read_csv("frame.csv", parse_dates=["day"]).equals(frame))
""",
    "what pandas asks for": """
import pandas as pd
frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
print(frame.to_markdown(), frame.style.set_uuid("u").to_html())
frame.to_excel("frame.xlsx", index=False)
print(pd.read_excel("frame.xlsx").equals(frame))
""",
    "sympy": """
import sympy
x = sympy.Symbol("x")
print(sympy.integrate(x * sympy.exp(x), x), sympy.solve(x**2 - 2, x))
""",
    "seaborn": """
import seaborn
axes = seaborn.heatmap([[1, 2], [3, 4]], annot=True)
print([text.get_text() for text in axes.texts])
""",
    "scipy": """
from scipy import optimize, stats
print(optimize.brentq(lambda x: x**3 - 2, 0, 2, xtol=1e-12).__round__(9))
print(stats.norm.cdf(1.96).round(9))
""",
    "matplotlib": """
import hashlib
import matplotlib.pyplot as plt
figure, axes = plt.subplots()
axes.plot([1, 2, 4])
axes.set_title("title")
figure.savefig("figure.png", metadata={"Software": None})
print(hashlib.sha256(open("figure.png", "rb").read()).hexdigest())
""",
    "scikit-learn": """
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_score
x, y = load_iris(return_X_y=True)
model = RandomForestClassifier(20, random_state=0, n_jobs=2)
print(cross_val_score(model, x, y, cv=3).round(6).tolist())
""",
    "fork pool": """
import multiprocessing
def square(n):
    return n * n
with multiprocessing.get_context("fork").Pool(3) as pool:
    print(pool.map(square, range(10)))
""",
    "spawn pool": """
import math
import multiprocessing
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(math.factorial, range(10)))
""",
    "shared memory": """
from multiprocessing import Manager, shared_memory
block = shared_memory.SharedMemory(create=True, size=1000)
block.buf[:4] = b"here"
again = shared_memory.SharedMemory(block.name)
print(bytes(again.buf[:4]))
again.close(); block.close(); block.unlink()
with Manager() as manager:
    shared = manager.dict(a=1)
    shared["b"] = 2
    print(dict(shared))
""",
    "threads": """
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    print(sum(pool.map(lambda n: n * n, range(100))))
box = queue.Queue()
threading.Thread(target=box.put, args=("from a thread",)).start()
print(box.get())
""",
    "asyncio with a server": """
import asyncio
async def serve(reader, writer):
    writer.write((await reader.readline()).upper())
    await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hello\\n")
    print(await reader.read())
    writer.close()
    process = await asyncio.create_subprocess_exec("echo", "child", stdout=-1)
    print(await process.communicate(), process.returncode)
asyncio.run(main())
""",
    "http on loopback": """
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())
    def log_message(self, *words):
        pass
server = HTTPServer(("localhost", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f"http://localhost:{server.server_port}/a/b").read())
server.shutdown()
""",
    "subprocess": """
import subprocess
print(subprocess.run("printf 'b\\\\na\\\\n' | sort | tr a-z A-Z", shell=True, capture_output=True))
print(subprocess.run(["false"]).returncode)
try:
    subprocess.run(["sleep", "20"], timeout=0.1)
except subprocess.TimeoutExpired as error:
    print(error.cmd)
""",
    "sqlite3": """
import sqlite3
base = sqlite3.connect("base.db")
base.execute("PRAGMA journal_mode=WAL")
base.execute("create table t (n integer, word text)")
base.executemany("insert into t values (?, ?)", [(n, str(n) * 3) for n in range(100)])
base.commit()
print(base.execute("select sum(n), max(word) from t").fetchall())
print(sqlite3.connect("base.db").execute("select count(*) from t").fetchone())
""",
    "ssl": """
import ssl
import subprocess
subprocess.run(
    "openssl req -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -days 2 -subj /CN=localhost"
    " -addext subjectAltName=DNS:localhost",
    shell=True, check=True, stderr=subprocess.DEVNULL)
server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
server.load_cert_chain("c.pem", "k.pem")
client = ssl.create_default_context(cafile="c.pem")
print(len(ssl.create_default_context().get_ca_certs()) > 10)
a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
one = client.wrap_bio(a, b, server_hostname="localhost")
two = server.wrap_bio(b, a, server_side=True)
for _ in range(4):
    for end in (one, two):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            pass
one.write(b"secret")
print(two.read(), one.version())
""",
    "tempfile": """
import os
import tempfile
with tempfile.TemporaryDirectory() as folder:
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(b"x" * 100_000)
        file.flush()
        print(os.path.getsize(file.name), len(os.listdir(folder)))
with tempfile.TemporaryFile() as file:
    file.write(b"abc")
    file.seek(1)
    print(file.read())
""",
    "zoneinfo": """
import time
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo
moment = datetime(2024, 3, 31, 0, 30, tzinfo=ZoneInfo("Europe/Berlin"))
print([(moment + timedelta(hours=n)).astimezone(ZoneInfo("UTC")).isoformat() for n in range(4)])
print(time.tzname)
""",
    "pty": """
import os
import pty
pid, master = pty.fork()
if pid == 0:
    os.execvp("sh", ["sh", "-c", "test -t 0 && stty size && echo terminal"])
said = b""
while True:
    try:
        piece = os.read(master, 1000)
    except OSError:
        break
    if not piece:
        break
    said += piece
print(said, os.waitpid(pid, 0)[1])
""",
    "signals and timers": """
import signal
signal.signal(signal.SIGALRM, lambda *_: print("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
""",
    "mmap, links, times": """
import fcntl
import mmap
import os
with open("file", "wb+") as file:
    file.truncate(8192)
    fcntl.flock(file, fcntl.LOCK_EX)
    with mmap.mmap(file.fileno(), 8192) as view:
        view[:3] = b"abc"
os.link("file", "hard")
os.symlink("file", "soft")
os.utime("file", (1, 2))
os.chmod("file", 0o640)
os.rename("hard", "renamed")
print(open("soft", "rb").read(3), os.stat("file").st_mtime, os.stat("file").st_nlink)
""",
    "exit code": "import sys\nprint('so far')\nsys.exit(45)\n",
}
BASH = {
    "pipelines": r"""
seq 1 1000 | awk '{s += $1} END {print s}'
printf 'c\nb\n' | sort | paste -sd,
""",
    "substitution and jobs": """
set -euo pipefail
diff <(echo a) <(echo b) || echo "differ $?"
sleep 0.01 & wait $!; echo "waited $?"
cat <<< here; echo $((6 * 7)); f() { local x=$1; echo "${x^^}"; }; f shout
trap 'echo bye' EXIT
""",
    "text tools": r"""
printf 'a,b\nc,d\n' > t.csv; cut -d, -f2 t.csv; sed s/a/z/ t.csv; grep -c , t.csv
tar cf t.tar t.csv && tar tf t.tar; gzip -k t.csv && zcat t.csv.gz; find . -name 't*' | sort
""",
    "git": """
git init -q -b trunk repository && cd repository
git config user.email user@example.org; git config user.name User
echo one > file; git add file
GIT_AUTHOR_DATE='2024-01-01T00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00Z' git commit -qm first
git log --format='%H %s'; git status --short; git fsck
""",
    "gcc": """
cat > hello.c <<'END'
#include <math.h>
#include <stdio.h>
int main(void) { printf("%.6f\\n", sqrt(2.0)); return 7; }
END
gcc -O2 -Wall -o hello hello.c -lm && ./hello; echo "code $?"
""",
    "npm": "npm --version\n",
    "exit code": "echo so far; exit 45\n",
}
JAVASCRIPT = {
    "workers": """
const { Worker, isMainThread, parentPort, workerData } = require("worker_threads");
const body = 'const w = require("worker_threads"); w.parentPort.postMessage(w.workerData * 2)';
Promise.all([1, 2, 3].map((n) => new Promise((ok, bad) => {
  const worker = new Worker(body, { eval: true, workerData: n });
  worker.on("message", ok); worker.on("error", bad);
}))).then((all) => console.log(all));
""",
    "http, crypto, zlib, children": """
const http = require("http"), crypto = require("crypto"), zlib = require("zlib");
const { execFileSync } = require("child_process");
console.log(crypto.createHash("sha256").update("x").digest("hex"));
console.log(zlib.gunzipSync(zlib.gzipSync("packed")).toString());
console.log(execFileSync("echo", ["child"]).toString());
const server = http.createServer((q, a) => a.end(q.url)).listen(0, "127.0.0.1", () => {
  http.get({ port: server.address().port, host: "127.0.0.1", path: "/a" }, (a) => {
    a.on("data", (d) => console.log(d.toString())); a.on("end", () => server.close());
  });
});
""",
    "watching": """
const fs = require("fs");
fs.mkdirSync("d");
const watcher = fs.watch("d", (kind, name) => { console.log(kind, name); watcher.close(); });
fs.writeFileSync("d/new", "");
""",
    "exit code": "console.log('so far'); process.exit(45)",
}
_TOOLS = {"git": "git", "gcc": "gcc", "npm": "npm", "ssl": "openssl"}


def _cases(programs: dict[str, str], language: str) -> list[object]:
    interpreter = "node" if language == "javascript" else "sh"
    return [
        pytest.param(
            language,
            source,
            id=f"{language}: {name}",
            marks=pytest.mark.needs(interpreter, *([_TOOLS[name]] if name in _TOOLS else [])),
        )
        for name, source in programs.items()
    ]


@pytest.fixture(scope="module")
def template() -> Path:
    """The data template's environment on the host, built if need be."""
    store = TemplateStore(state_dir())
    built = store.find("data") or store.build("data")
    return Path(built.path)


def _bare(template: Path, language: str, source: str, home: Path) -> tuple[str, int]:
    interpreter, name = {
        "python": (str(template / "bin" / "python"), "main.py"),
        "bash": ("/bin/bash", "main.sh"),
        "javascript": ("/usr/bin/node", "main.js"),
    }[language]
    program = home / ".program" / name
    program.parent.mkdir()
    program.write_text(source, encoding="utf-8")
    environment = {
        "PATH": f"{template}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "MPLBACKEND": "agg",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TZ": "UTC",
    }
    done = subprocess.run(
        [interpreter, str(program)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=home,
        check=False,
        timeout=40,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode in {0, 45}, done.stderr
    return done.stdout, done.returncode


@pytest.mark.parametrize(
    ("language", "source"),
    [
        *_cases(PYTHON, "python"),
        *_cases(BASH, "bash"),
        *_cases(JAVASCRIPT, "javascript"),
    ],
)
def test_an_honest_program_runs_as_on_the_host(
    template: Path, tmp_path: Path, language: str, source: str
) -> None:
    bare = _bare(template, language, source, tmp_path)
    jailed = cellwall.run(
        source, language=language, template="data", limits=_LIMITS, timeout=40, env={"TZ": "UTC"}
    )
    assert (jailed.stdout, jailed.exit_code) == bare, jailed.stderr
    assert jailed.outcome.isolation.runtime == "jail"

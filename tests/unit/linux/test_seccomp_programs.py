"""Honest programs behave the same under the filter: same output, same exit code.

Each command runs twice, naked and with the shipped policy installed just before exec. What is not
installed on this machine is skipped; nothing here is a stand-in for the real program.
"""

from __future__ import annotations

import errno
import functools
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from cellwall.linux import seccomp
from conftest import require_command
from kit.jail import seccomp_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        seccomp_model.machine() not in seccomp.AUDIT_ARCH, reason="no table for this cpu"
    ),
]

_LAUNCHER = """
import ctypes, os, sys
from cellwall.linux import seccomp
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
seccomp.install(bytes.fromhex(sys.argv[1]))
os.execvp(sys.argv[2], sys.argv[2:])
"""

PYTHON = {
    "json": "import json; print(json.dumps({'a': [1, 2.5, None]}))",
    "subprocess": "import subprocess as s; print(s.run(['sh','-c','echo hi; exit 3'],"
    "capture_output=True), s.Popen(['true'], start_new_session=True, close_fds=True).wait())",
    "asyncio": """
import asyncio
async def main():
    server = await asyncio.start_server(lambda r, w: w.write(b'x') or w.close(), '127.0.0.1', 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    print(await reader.read(), await asyncio.to_thread(sum, [1, 2]))
    writer.close()
    proc = await asyncio.create_subprocess_exec('echo', 'child', stdout=-1)
    print((await proc.communicate())[0])
asyncio.run(main())
""",
    "multiprocessing": """
import multiprocessing as m, os
def work(x): return x * x
def locked(lock, queue):
    with lock: queue.put(os.getpid() > 0)
if __name__ == '__main__':
    for method in ('fork', 'spawn', 'forkserver'):
        c = m.get_context(method)
        with c.Pool(2) as pool: print(method, pool.map(work, range(5)))
        q, l = c.Queue(), c.Lock()
        p = c.Process(target=locked, args=(l, q)); p.start(); print(q.get()); p.join()
    from multiprocessing import shared_memory
    s = shared_memory.SharedMemory(create=True, size=64); s.buf[0] = 7; print(s.buf[0])
    s.close(); s.unlink()
""",
    "threads": """
import concurrent.futures as f, threading
with f.ThreadPoolExecutor(8) as pool: print(sum(pool.map(lambda x: x * x, range(100))))
""",
    "sockets": """
import socket
print(socket.getaddrinfo('localhost', 80, proto=socket.IPPROTO_TCP)[0][4][1])
a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1))
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    s = socket.socket(socket.AF_INET, kind); s.bind(('127.0.0.1', 0)); s.close()
""",
    "files": """
import os, shutil, tempfile, fcntl, mmap
d = tempfile.mkdtemp(); p = os.path.join(d, 'a')
with open(p, 'w') as f: f.write('x' * 9); f.flush(); os.fsync(f.fileno()); fcntl.flock(f, 2)
shutil.copy2(p, p + '2'); shutil.copytree(d, d + 'b'); os.chmod(p, 0o600); os.utime(p)
with open(p, 'r+b') as f: print(len(mmap.mmap(f.fileno(), 0)))
print(sorted(os.listdir(d + 'b'))); shutil.rmtree(d); shutil.rmtree(d + 'b')
""",
    "pty": "import pty, os; print(pty.spawn(['sh', '-c', 'test -t 0 && echo tty']))",
    "signals": """
import signal, os
signal.signal(10, lambda *a: print('got')); os.kill(os.getpid(), 10)
""",
    "sqlite3": """
import sqlite3
print(sqlite3.connect(':memory:').execute('select 6*7').fetchall())
""",
    "ssl": """
import ssl, secrets
print(type(ssl.create_default_context()), len(secrets.token_bytes(9)))
""",
    "time": """
import time
time.sleep(0.001); print(time.get_clock_info('monotonic').adjustable)
""",
    "numpy": """
import numpy as n
a = n.ones((300, 300)); print((a @ a).sum(), n.linalg.det(a[:2, :2]))
""",
    "pandas": "import pandas as p; print(p.DataFrame({'a': [1, 2, 1]}).groupby('a').size())",
    "scipy": "from scipy import optimize as o; print(round(o.brentq(lambda x: x - 2, 0, 3), 6))",
    "sklearn": "from sklearn.linear_model import LinearRegression as L;"
    "print(L(n_jobs=2).fit([[0], [1]], [0, 2]).coef_)",
    "torch": "import torch; print((torch.ones(64, 64) @ torch.ones(64, 64)).sum().item())",
    "matplotlib": "import matplotlib; matplotlib.use('agg'); import matplotlib.pyplot as p, io;"
    "p.plot([1, 2]); b = io.BytesIO(); p.savefig(b); print(b.getvalue()[:4])",
}

PACKAGES = ("numpy", "pandas", "scipy", "sklearn", "torch", "matplotlib")

NODE_WORKER = """
const {Worker, isMainThread, parentPort} = require('worker_threads');
const {once} = require('events'), net = require('net'), zlib = require('zlib');
async function main() {
  const [message] = await once(new Worker(__filename), 'message');
  console.log(message, require('os').cpus().length > 0);
  console.log('' + require('child_process').execSync('echo sub'));
  console.log((await require('fs').promises.readFile(__filename)).length);
  console.log((await require('dns').promises.lookup('localhost')).family > 0);
  const server = net.createServer(c => c.end('bye')).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const [data] = await once(net.connect(server.address().port, '127.0.0.1'), 'data');
  console.log('' + data, '' + zlib.gunzipSync(zlib.gzipSync('x')));
  server.close();
}
if (isMainThread) main(); else parentPort.postMessage('worker');
"""

JAVA = """
import java.net.*; import java.nio.file.*; import java.util.stream.*;
public class Main { public static void main(String[] a) throws Exception {
  System.out.println(IntStream.range(0, 1000).parallel().sum());
  Thread t = new Thread(() -> System.out.println("thread")); t.start(); t.join();
  try (ServerSocket s = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
       Socket c = new Socket(s.getInetAddress(), s.getLocalPort())) {
    System.out.println(c.isConnected()); }
  System.out.println(NetworkInterface.getByName("lo") != null);
  Path p = Files.createTempFile("x", "y"); Files.writeString(p, "hello");
  System.out.println(Files.readString(p)); Files.delete(p);
  Process q = new ProcessBuilder("echo", "sub").start();
  System.out.print(new String(q.getInputStream().readAllBytes())); System.out.println(q.waitFor());
  System.gc(); } }
"""

SCRIPTS = {
    "npm": ("npm", "npm --version"),
    "gcc": (
        "gcc",
        "printf '#include <stdio.h>\\nint main(){puts(\"c\");return 4;}' > a.c"
        " && gcc -O1 -o a a.c && ./a",
    ),
    "git": (
        "git",
        "git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q"
        " --allow-empty -m x && git log --format=%s && git gc -q && git status --short",
    ),
    "bash": (
        "bash",
        "bash -c 'set -o pipefail; seq 5 | sort -r | head -2; x=$(echo $((6*7)));"
        ' echo $x; cat <(echo sub); trap "echo bye" EXIT; sleep 0.01 & wait\'',
    ),
    "perl": (
        "perl",
        'perl -MPOSIX -e \'my $p = fork; exit 0 unless $p; wait; print join(",",'
        ' map {$_*2} 1..3), "\\n"; print `echo sub`\'',
    ),
    "sqlite3": (
        "sqlite3",
        "sqlite3 t.db 'pragma journal_mode=wal; create table t(a);"
        " insert into t values(1); select count(*) from t'",
    ),
    "coreutils": (
        "cp",
        "echo x > a && cp -a a b && mv b c && ln c d && ls -1 && stat -c %h c"
        " && touch -d @0 c && df . > /dev/null && nproc > /dev/null && timeout 5 true",
    ),
    "tar": ("tar", "mkdir d && echo x > d/a && tar czf t.tgz d && tar xzf t.tgz -C / --to-stdout"),
    "make": (
        "make",
        "printf 'all: a b\\na:\\n\\t@echo a\\nb: a\\n\\t@echo b\\n' > Makefile && make -s -j4",
    ),
    "go": (
        "go",
        'printf \'package main\\nimport "fmt"\\nfunc main(){c:=make(chan int);'
        "go func(){c<-1}();fmt.Println(<-c)}' > m.go && GOFLAGS=-mod=mod go run m.go",
    ),
    # They set RLIMIT_CORE to 0 first; gpg and `bash -e` end if they may not.
    "gpg": ("gpg", "mkdir -m 700 g && echo x | gpg --homedir g --batch --print-md SHA256"),
    "ssh-agent": ("ssh-agent", "ssh-agent sh -c 'echo began'"),
    "ulimit": ("bash", "bash -ec 'ulimit -c 0; ulimit -S -c 0; echo went on'"),
    "R": ("Rscript", "Rscript -e 'print(sum(parallel::mclapply(1:3, identity)[[3]]))'"),
    "ruby": ("ruby", "ruby -e 'puts [1,2].sum; puts `echo sub`; Thread.new{puts 1}.join'"),
}


@functools.lru_cache(maxsize=1)
def _program() -> str:
    return seccomp.compile_policy(seccomp.load_policy(), seccomp_model.machine()).hex()


def _same_with_and_without(command: list[str], directory: Path) -> None:
    ended = []
    for name, launch in (
        ("naked", []),
        ("filtered", [sys.executable, "-c", _LAUNCHER, _program()]),
    ):
        work = directory / name
        work.mkdir()
        got = subprocess.run(
            [*launch, *command], cwd=work, capture_output=True, text=True, check=False, timeout=60
        )
        ended.append((got.stdout, got.returncode, got.stderr))
    assert ended[1][:2] == ended[0][:2], f"stderr of the filtered run: {ended[1][2]}"
    assert ended[0][0], f"the control says nothing; stderr: {ended[0][2]}"


@pytest.mark.parametrize("case", PYTHON)
def test_python_is_unchanged(case: str, tmp_path: Path) -> None:
    if case in PACKAGES and importlib.util.find_spec(case) is None:
        pytest.skip(f"{case} is not installed")
    script = tmp_path / "main.py"
    script.write_text(PYTHON[case])
    _same_with_and_without([sys.executable, str(script)], tmp_path)


@pytest.mark.parametrize("case", SCRIPTS)
def test_shell_tool_is_unchanged(case: str, tmp_path: Path) -> None:
    tool, script = SCRIPTS[case]
    require_command(tool)
    _same_with_and_without(["sh", "-c", script], tmp_path)


@pytest.mark.needs("node")
def test_node_with_a_worker_thread_is_unchanged(tmp_path: Path) -> None:
    script = tmp_path / "main.js"
    script.write_text(NODE_WORKER)
    _same_with_and_without(["node", str(script)], tmp_path)


@pytest.mark.needs("node")
def test_node_can_not_list_interfaces_and_says_why(tmp_path: Path) -> None:
    script = (
        "try { os.networkInterfaces(); console.log('ok') } catch (e) { console.log(e.info.errno) }"
    )
    launch = [sys.executable, "-c", _LAUNCHER, _program()]
    said = [
        subprocess.check_output([*prefix, "node", "-e", script], cwd=tmp_path, text=True).strip()
        for prefix in ([], launch)
    ]
    assert said == ["ok", str(errno.EOPNOTSUPP)]


@pytest.mark.needs("java", "javac")
def test_jvm_is_unchanged(tmp_path: Path) -> None:
    source = tmp_path / "Main.java"
    source.write_text(JAVA)
    _same_with_and_without(["java", str(source)], tmp_path)

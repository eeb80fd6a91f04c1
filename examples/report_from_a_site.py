"""A report from a site that wants a token, made by a program that never has the token.

The sandbox connects to that one site and nowhere else; the egress proxy puts the token into its
requests on their way. The program installs a package, reads the page's table of cities and sales,
draws it with a title in Chinese, and serves the report on a port of the sandbox, from which we
fetch it. Then a command looks for the token in the sandbox's own files and in its other processes,
as far as it may read them, and we print what the sandbox did outside, as the proxy recorded it.

    SITE_TOKEN=... python examples/report_from_a_site.py https://site.example.org/sales [RUNTIME]

RUNTIME is `jail`, `docker` or `gvisor`; without it, the fastest that fits. The picture is saved as
`report.png` in the current directory.
"""

import os
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from cellwall import Sandbox, Secret

URL = sys.argv[1]
RUNTIME = sys.argv[2] if len(sys.argv) > 2 else None
TOKEN = os.environ["SITE_TOKEN"]
HOST = f"{urlsplit(URL).hostname}:{urlsplit(URL).port or 443}"

REPORT = f"""
import io, os, urllib.request
import humanize, matplotlib.pyplot as plt, pandas as pd

token = os.environ["SITE_TOKEN"]  # a placeholder
asked = urllib.request.Request({URL!r}, headers={{"Authorization": f"Bearer {{token}}"}})
page = urllib.request.urlopen(asked, timeout=20).read().decode()
(table,) = pd.read_html(io.StringIO(page))

table.plot.bar(x="city", y="sales", legend=False, rot=0, title="各城市的销售额")
os.mkdir("report")
plt.savefig("report/report.png")
total = humanize.intcomma(int(table.sales.sum()))
open("report/index.html", "w").write(f"<h1>{{total}}</h1><img src=report.png>")
print(f"{{len(table)}} cities, {{total}} in all, read with {{token[:4]}}...")
"""
ELSEWHERE = """
import urllib.request
try:
    print(urllib.request.urlopen("https://elsewhere.example.org", timeout=20).status)
except OSError as error:
    print(f"elsewhere: {error}")
"""
SEARCH = """
import os, sys
needle = (sys.argv[1] + sys.argv[2]).encode()  # in two parts, so that it does not find itself
read, places = [0, 0], []

def holds(file, left):
    tail = b""
    while left > 0 and (piece := file.read(min(left, 1 << 20))):
        if needle in tail + piece:
            return True
        tail, left = piece[-len(needle):], left - len(piece)
    return False

def search(path, kind, ranges=((0, 1 << 40),)):
    try:
        with open(path, "rb", 0) as file:
            read[kind] += 1
            for first, last in ranges:
                try:
                    file.seek(first)
                    if holds(file, last - first):
                        return places.append(path)
                except (OSError, OverflowError):
                    continue  # a part that cannot be read, such as [vvar]
    except OSError:
        return None

for pid in filter(str.isdecimal, os.listdir("/proc")):
    if int(pid) != os.getpid():
        for name in ("environ", "cmdline"):
            search(f"/proc/{pid}/{name}", 0)
        try:
            maps = [line.split()[0].split("-") for line in open(f"/proc/{pid}/maps")]
        except OSError:
            continue
        search(f"/proc/{pid}/mem", 0, [[int(each, 16) for each in pair] for pair in maps])
shared = ("/proc", "/sys", "/usr", "/opt/env")  # the last two are read-only, and not its own
for top, folders, names in os.walk("/"):
    folders[:] = [each for each in folders if os.path.join(top, each) not in shared]
    for path in (os.path.join(top, name) for name in names):
        if os.path.isfile(path) and not os.path.islink(path):
            search(path, 1)
print(*places or ["nothing"], f"({read[0]} files of processes, {read[1]} others)")
"""

secret = Secret("SITE_TOKEN", TOKEN, hosts=[HOST])
with Sandbox(
    "data",
    {"memory_mb": 1024},
    network=[HOST],
    secrets=[secret],
    packages=["humanize"],
    env={"VISIBLE": "a variable that is there"},
    runtime=RUNTIME,
) as sandbox:
    print(f"on {sandbox.isolation.runtime}, level {sandbox.isolation.level.label}")
    for code in (REPORT, ELSEWHERE):
        done = sandbox.run(code, timeout=120)
        print(done.stdout.rstrip() or done.stderr.rstrip())

    sandbox.commands.start("python3 -m http.server --bind 127.0.0.1 --directory report 8000")
    while 8000 not in [each.port for each in sandbox.ports.list()]:
        time.sleep(0.05)
    with sandbox.ports.forward(8000) as forward:
        page, picture = (
            urllib.request.urlopen(f"http://127.0.0.1:{forward.port}/{name}").read()
            for name in ("", "report.png")
        )
    print(page.decode())
    Path("report.png").write_bytes(picture)

    sandbox.files.write("search.py", SEARCH)
    half = len(TOKEN) // 2
    for name, *parts in (
        ("the token", TOKEN[:half], TOKEN[half:]),
        ("a plain variable", "a variable ", "that is there"),
    ):
        looked = sandbox.commands.run(["python3", "search.py", *parts], timeout=120)
        print(f"{name} is in: {looked.stdout.strip() or looked.outcome.verdict.value}")

    print("outside it did:")
    for record in sandbox.network_log():
        where = record.get("name") or f"{record.get('host')}:{record.get('port')}"
        used = "with " + ", ".join(record["secrets"]) if record.get("secrets") else ""
        print(f"  {record['event']:8} {where}  {record.get('rule', '')}  {used}".rstrip())

"""`systemctl` where there is no systemd: reads the unit and does what it says, walls included.

Only for `test_operations`, in namespaces of its own. Not an imitation of the server, which is the
real one, started by the unit's own line: this carries out User, StateDirectory, LogsDirectory,
Environment, the walls of `walls.py`, and the signal of a stop.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import time
from pathlib import Path

import cellwall

UNIT = Path("/etc/systemd/system/cellwall.service")
PID = Path("/run/cellwall-test.pid")
JOURNAL = Path("/run/cellwall-test.journal")
_WALLS = Path(__file__).with_name("walls.py")


def unit() -> dict[str, str]:
    """Return the [Service] section; a key given twice has one value per line."""
    found: dict[str, str] = {}
    text = UNIT.read_text(encoding="utf-8").partition("[Service]")[2].partition("[Install]")[0]
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found[name] = f"{found[name]}\n{value}" if name in found else value
    return found


def start() -> None:
    """Start the unit's program as its user, behind its walls."""
    section = unit()
    user = pwd.getpwnam(section["User"])
    folders = []
    for base, kind in (("/var/lib", "StateDirectory"), ("/var/log", "LogsDirectory")):
        folder = Path(base, section[kind])
        folder.mkdir(exist_ok=True)
        folder.chmod(int(section[f"{kind}Mode"], 8))
        os.chown(folder, user.pw_uid, user.pw_gid)
        folders.append(str(folder))
    words = section["Environment"].split()
    document = {
        "directives": section,
        "ids": [user.pw_uid, user.pw_gid],
        "readable": [str(Path(cellwall.__file__).parents[1])],  # for the walls themselves
        "writable": folders,
        "argv": section["ExecStart"].split(),
        "environment": {"PATH": "/usr/bin:/bin", **dict(word.split("=", 1) for word in words)},
    }
    with JOURNAL.open("ab") as journal:
        process = subprocess.Popen(
            [sys.executable, _WALLS, json.dumps(document)],
            stdout=journal,
            stderr=journal,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    PID.write_text(str(process.pid), encoding="ascii")


def stop() -> None:
    """Ask the main process to end, and wait until it has."""
    pid = int(PID.read_text(encoding="ascii"))
    fd = os.pidfd_open(pid)
    signal.pidfd_send_signal(fd, signal.SIGTERM)
    deadline = time.monotonic() + int(unit()["TimeoutStopSec"])
    while os.path.exists(f"/proc/{pid}") and _state(pid) != "Z":
        if time.monotonic() > deadline:
            sys.exit("the service did not stop in TimeoutStopSec")
        time.sleep(0.05)
    os.close(fd)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


def main() -> None:
    """Do what the page asks of systemctl, and refuse anything else."""
    match sys.argv[1:]:
        case ["daemon-reload"]:
            unit()
        case ["enable", "--now", "cellwall"] | ["start", "cellwall"]:
            start()
        case ["disable", "--now", "cellwall"] | ["stop", "cellwall"]:
            stop()
        case ["restart", "cellwall"]:
            stop()
            start()
        case words:
            sys.exit(f"systemctl {' '.join(words)}: not known here")


if __name__ == "__main__":
    main()

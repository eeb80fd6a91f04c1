"""Read the host's files, meddle with its processes, call home; exit 0 only if nothing worked."""

import os
import pathlib
import socket
import urllib.request

BAIT = os.environ.get("BAIT", "/etc/shadow")
PORT = int(os.environ.get("BAIT_PORT", "22"))
PID = int(os.environ.get("BAIT_PID", "4194303"))
METADATA = "http://169.254.169.254/"
successes = []


def attempt(what, action):
    """Run one attempt and say what came of it."""
    try:
        found = action()
    except Exception as error:  # noqa: BLE001 - whatever refuses is the answer
        print(f"{what}: refused ({type(error).__name__}: {error})")
        return
    successes.append(what)
    print(f"{what}: GOT {str(found)[:60]!r}")


def connect(host, port):
    """Connect by TCP."""
    with socket.create_connection((host, port), timeout=2):
        return host


attempt("read /etc/shadow", lambda: pathlib.Path("/etc/shadow").read_text())
attempt("read a file of the host", lambda: pathlib.Path(BAIT).read_text())
attempt("list /var/lib", lambda: os.listdir("/var/lib"))
attempt("signal a process of the host", lambda: os.kill(PID, 0))
attempt("connect to the internet", lambda: connect("1.1.1.1", 443))
attempt("connect to a port of the host", lambda: connect("127.0.0.1", PORT))
attempt("ask for the cloud's keys", lambda: urllib.request.urlopen(METADATA, timeout=2))
raise SystemExit(len(successes))

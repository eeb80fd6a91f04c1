"""An ordinary user with an account and subordinate ids, for as long as its programs run.

Not a fixture. Account and lists stand in copies of /etc/passwd, /etc/subuid and /etc/subgid that
only its programs see, in a mount namespace of their own. The invariant: the host's files stay as
they are.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from cellwall.linux.syscalls import mounts, process
from kit.unprivileged import Finished, OrdinaryUser

FIRST = 0x60000000
COUNT = 65_536
TOOLS = ("/usr/bin/newuidmap", "/usr/bin/newgidmap")


def why_not() -> str:
    """What this machine lacks, or nothing."""
    if os.geteuid() != 0:
        return "run as uid 0"
    missing = [tool for tool in TOOLS if not Path(tool).exists()]
    return "run: apt-get install uidmap" if missing else ""


class RangedUser(OrdinaryUser):
    """See the module."""

    @property
    def name(self) -> str:
        """Of its account."""
        return f"cw{self.uid}"

    def __init__(self) -> None:
        """As any, with ids of its own."""
        super().__init__()
        self.lists = f"{self.name}:{FIRST}:{COUNT}\n"
        """What both lists say."""

    def prepare(self) -> Callable[[], None]:
        """Write the files; what is returned goes into the namespace and becomes the user."""
        account = f"{self.name}:x:{self.uid}:{self.gid}::{self.home}:/bin/sh\n"
        lists = {
            "passwd": Path("/etc/passwd").read_text(encoding="utf-8") + account,
            "subuid": self.lists,
            "subgid": self.lists,
        }
        for file, text in lists.items():
            (self.home / file).write_text(text, encoding="utf-8")

        def enter() -> None:
            process.unshare(process.CLONE_NEWNS)
            mounts.mount("none", "/", None, mounts.MS_REC | mounts.MS_PRIVATE, None)
            for file in lists:
                mounts.mount(str(self.home / file), f"/etc/{file}", None, mounts.MS_BIND, None)
            os.setgroups([])
            os.setgid(self.gid)
            os.setuid(self.uid)

        return enter

    def run_ranged(
        self, source: str, *arguments: str, before: Callable[[], None] = lambda: None
    ) -> Finished:
        """Run a Python program as this user; `before` is called in it as root."""
        enter = self.prepare()

        def become() -> None:
            before()
            enter()

        done = subprocess.run(
            [sys.executable, "-", *arguments],
            input=source,
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.home,
            timeout=50.0,
            check=False,
            start_new_session=True,
            preexec_fn=become,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

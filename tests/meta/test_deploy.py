"""What lies in deploy/ and is written by a program is what that program writes."""

from __future__ import annotations

import json
import subprocess
import sys

from cellwall.linux import seccomp
from kit.places import ROOT

PROFILE = ROOT / "deploy" / "seccomp.json"


def test_profile_of_containers_is_current() -> None:
    argv = [sys.executable, str(ROOT / "deploy" / "generate.py"), "--check"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_profile_allows_every_call_a_sandbox_may_make_and_no_door_to_the_kernel() -> None:
    groups = json.loads(PROFILE.read_text(encoding="utf-8"))["syscalls"]
    allowed = {n for g in groups if g["action"] == "SCMP_ACT_ALLOW" for n in g["names"]}
    for name, rules in seccomp.parse_policy(seccomp.load_policy()).items():
        assert name in allowed or all(rule.action != seccomp.RET_ALLOW for rule in rules)
    doors = {
        "bpf",
        "keyctl",
        "add_key",
        "io_uring_setup",
        "ptrace",
        "perf_event_open",
        "userfaultfd",
    }
    assert not allowed & {*doors, "init_module", "kexec_load", "open_by_handle_at", "reboot"}

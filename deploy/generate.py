"""Write `deploy/seccomp.json`: what a container that holds cellwall may ask the kernel for.

Run by hand (`python deploy/generate.py`) after a change of the jail's policy; `--check` only
compares, which is what the tests do. Not the sandboxes' filter: that is `jail/seccomp.policy`,
which every sandbox has on top of this one. The invariant: the profile is the policy's calls plus
the ones named below, each with its reason; everything else is refused, as in a sandbox.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from cellwall.linux.seccomp import RET_ALLOW, load_policy, parse_policy, syscall_numbers

TARGET = Path(__file__).with_name("seccomp.json")

BUILDERS = {
    "clone": "makes a sandbox's namespaces",
    "clone3": "the same, with a descriptor of the process it makes",
    "unshare": "user namespaces below one another",
    "setns": "joins the processes of a sandbox to its namespaces",
    "mount": "builds a sandbox's root, in a mount namespace of its own",
    "umount2": "lets go of the container's root in there",
    "pivot_root": "makes the built root the only one",
    "mount_setattr": "makes trees read-only at once",
    "sethostname": "the name that a sandbox sees",
    "setrlimit": "RLIMIT_CORE, which sandboxes cannot change",
    "prlimit64": "limits of a running sandbox, from outside",
    "prctl": "capabilities dropped, no_new_privs, death signals",
    "chroot": "uv and package managers, for their scripts",
    "setxattr": "package managers, when templates are built",
    "lsetxattr": "as above",
    "fsetxattr": "as above",
    "removexattr": "as above",
    "sched_setaffinity": "thread pools of the interpreter's packages",
    "sync": "durable files",
    "syncfs": "as above",
}
"""What the host's half needs beyond what a sandbox has, with no condition on arguments.

Namespaces and mounts take a capability. Without one in the container (`cap_drop: ALL`) they work
only inside a user namespace that the caller made, where they reach nothing of the container's.
"""

FAMILIES = {
    1: "AF_UNIX",
    2: "AF_INET",
    10: "AF_INET6",
    16: "AF_NETLINK: a resolver's list of addresses",
}
_BAD, _MISSING = 1, 38  # EPERM, ENOSYS


def profile() -> dict[str, Any]:
    """Return the profile in the form container engines read."""
    rules = parse_policy(load_policy())
    known = {*syscall_numbers("x86_64"), *syscall_numbers("aarch64")}
    sandboxes = {n for n, found in rules.items() if any(r.action == RET_ALLOW for r in found)}
    allowed = (sandboxes | set(BUILDERS)) - {"socket"}
    refused = known - allowed - {"socket"}
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": _MISSING,
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
        ],
        "syscalls": [
            {"names": sorted(allowed), "action": "SCMP_ACT_ALLOW"},
            *(_socket(family) for family in FAMILIES),
            {"names": sorted(refused), "action": "SCMP_ACT_ERRNO", "errnoRet": _BAD},
        ],
    }


def _socket(family: int) -> dict[str, Any]:
    condition = {"index": 0, "value": family, "op": "SCMP_CMP_EQ"}
    return {"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [condition]}


def main() -> int:
    """Write the profile, or with `--check` say that it is out of date."""
    wanted = json.dumps(profile(), indent=1) + "\n"
    if "--check" in sys.argv[1:]:
        if TARGET.read_text(encoding="utf-8") == wanted:
            return 0
        sys.stderr.write("deploy/seccomp.json is out of date: run python deploy/generate.py\n")
        return 1
    TARGET.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

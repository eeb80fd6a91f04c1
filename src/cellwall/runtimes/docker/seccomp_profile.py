"""Seccomp profile: the jail's system-call policy in the format of container engines.

The engine installs this profile before the container's first instruction; the guest then adds the
jail's own filter (`inside`), which is exact. So the profile may be wider than the policy where the
format cannot express it (a refusal of some arguments of an allowed call), but not where the policy
allows by argument: socket families, ioctl, clone. The invariant: a call that the policy never
allows is refused here, too.
"""

from __future__ import annotations

import errno
from itertools import product
from typing import Any

from cellwall.linux.seccomp import RET_ALLOW, Rule, load_policy, parse_policy

_FOR_US = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")
"""Calls that `inside` needs to lock itself further; its own filter then refuses them."""
_PR_SET_SECCOMP = 22


_FOR_IMAGES = (
    *("mount", "umount2", "pivot_root", "open_tree", "move_mount", "mount_setattr"),
    *("setns", "unshare", "chown", "lchown", "setgroups", "setresuid", "setresgid", "capset"),
    *("prctl", "chroot"),
)
"""Calls with which `inside_image` makes an image's root and leaves the host's ids; the same."""


def profile(*, builds_root: bool = False) -> dict[str, Any]:
    """Return the profile as plain data; `builds_root`: of a container on an image."""
    rules = parse_policy(load_policy())
    ours = (*_FOR_US, *(_FOR_IMAGES if builds_root else ()))
    always = sorted({n for n, found in rules.items() if _is_allowed(found)} | set(ours))
    calls: list[dict[str, Any]] = [{"names": always, "action": "SCMP_ACT_ALLOW"}]
    for name, found in sorted(rules.items()):
        if name in always:
            continue
        allowed = [rule for rule in found if rule.action == RET_ALLOW]
        for rule in allowed:
            calls += [_call(name, "SCMP_ACT_ALLOW", arguments) for arguments in _arguments(rule)]
        if not allowed:
            code = found[-1].action & 0xFFFF or errno.EPERM
            calls.append({**_call(name, "SCMP_ACT_ERRNO"), "errnoRet": code})
    if not builds_root:
        calls.append(_call("prctl", "SCMP_ACT_ALLOW", [_equals(0, 0xFFFFFFFF, _PR_SET_SECCOMP)]))
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
        ],
        "syscalls": calls,
    }


def _is_allowed(rules: list[Rule]) -> bool:
    """Report whether the call is allowed for all arguments, apart from refusals of some."""
    return any(rule.action == RET_ALLOW and not rule.conditions for rule in rules)


def _call(name: str, action: str, arguments: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    call: dict[str, Any] = {"names": [name], "action": action}
    return {**call, "args": arguments} if arguments else call


def _arguments(rule: Rule) -> list[list[dict[str, Any]]]:
    """Return every combination of values of a rule; conditions on one argument are merged."""
    found = []
    for values in product(*(condition.values for condition in rule.conditions)):
        masks: dict[int, tuple[int, int]] = {}
        for condition, value in zip(rule.conditions, values, strict=True):
            shift = 32 if condition.is_upper else 0
            mask, datum = masks.get(condition.arg, (0, 0))
            masks[condition.arg] = (mask | condition.mask << shift, datum | value << shift)
        found.append([_equals(number, *pair) for number, pair in sorted(masks.items())])
    return found


def _equals(index: int, mask: int, datum: int) -> dict[str, Any]:
    return {"index": index, "value": mask, "valueTwo": datum, "op": "SCMP_CMP_MASKED_EQ"}

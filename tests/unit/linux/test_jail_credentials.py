"""Acting as another id without losing power: who owns a user namespace is who pays for it."""

from __future__ import annotations

import array
import fcntl
import os

import pytest

from cellwall.linux.syscalls import process
from kit.jail import forked

pytestmark = pytest.mark.root

_NS_GET_OWNER_UID = 0xB704
_SOMEBODY = 0x70000000


def _owner_of_a_new_user_namespace() -> int:
    """Make one in a child that waits; asked from outside, because inside the owner has no id."""
    owner = array.array("I", [0])
    made_r, made_w = os.pipe()
    wait_r, wait_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(wait_w)
        process.unshare(process.CLONE_NEWUSER)
        os.write(made_w, b"!")
        os.read(wait_r, 1)
        os._exit(0)
    try:
        os.close(made_w)
        assert os.read(made_r, 1) == b"!"
        with open(f"/proc/{pid}/ns/user") as namespace:
            fcntl.ioctl(namespace, _NS_GET_OWNER_UID, owner)
    finally:
        os.close(wait_w)
        os.waitpid(pid, 0)
    return owner[0]


def _capabilities() -> dict[str, str]:
    with open("/proc/self/status") as status:
        lines = [line.split() for line in status]
    return {words[0]: words[1] for words in lines if words[0].startswith("Cap")}


def test_other_effective_id_owns_what_is_made_and_is_as_capable() -> None:
    def act() -> list[object]:
        before = _capabilities()
        process.set_effective_uid(_SOMEBODY)
        return [list(os.getresuid()), _capabilities() == before, _owner_of_a_new_user_namespace()]

    assert forked.answer(act) == [[0, _SOMEBODY, 0], True, _SOMEBODY]


def test_plain_change_of_the_effective_id_loses_the_capabilities() -> None:
    """The control; and without any change it is root who owns and pays."""

    def act() -> str:
        os.seteuid(_SOMEBODY)
        return _capabilities()["CapEff:"]

    assert forked.answer(act) == "0" * 16
    assert forked.answer(_owner_of_a_new_user_namespace) == 0

"""Profile `debug`: a sandbox's programs may trace one another, and nothing else is given.

The probe attaches to a child of its own, which works with the profile alone; that is the control of
the other tries, which no profile allows.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest

from cellwall import AsyncSandbox, CellwallError, Engine, EngineSettings, UsageError
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.jail.inspect.posture import read_text
from conftest import require_command

pytestmark = [pytest.mark.attack]
PROBE = """
import ctypes, json, os, signal, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
ATTACH, SEIZE, DETACH = 16, 0x4206, 17

def attach(pid, how=SEIZE):
    if libc.ptrace(how, pid, None, None) == 0:
        return 0
    return ctypes.get_errno()

child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
found = {"child": attach(child.pid)}
local = (ctypes.c_char * 1)()
class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
maps = open(f"/proc/{child.pid}/maps").readline().split("-")[0]
mine, theirs = Iovec(ctypes.addressof(local), 1), Iovec(int(maps, 16), 1)
done = libc.process_vm_readv(child.pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
found["read"] = 0 if done == 1 else ctypes.get_errno()
found["init"] = attach(1)
found["init, stopped"] = attach(1, ATTACH)
found["parent"] = attach(os.getppid()) if os.getppid() else -1
found["host"] = attach(HOST)
fd = libc.syscall(438, os.pidfd_open(1), 0, 0)  # pidfd_getfd
found["descriptor"] = 0 if fd >= 0 else ctypes.get_errno()
found["personality"] = libc.personality(0x0040000)
found["other personality"] = libc.personality(0x0100000)  # ADDR_COMPAT_LAYOUT
found["unshare"] = 0 if libc.unshare(0x10000000) == 0 else ctypes.get_errno()
print(json.dumps(found))
"""
EPERM, ESRCH = 1, 3


def engine(*profiles: str) -> Engine:
    settings = EngineSettings(pool_min=0, pool_max=0, profiles=profiles)
    return Engine(state_dir(), settings, templates=TemplateStore(state_dir()))


async def tried(sandbox: AsyncSandbox) -> dict[str, Any]:
    await sandbox.files.write("probe.py", PROBE.replace("HOST", str(os.getpid())))
    done = await sandbox.commands.run("python3 probe.py")
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.outcome.isolation is not None
    found["profile"] = done.outcome.isolation.profile
    found["posture"] = done.outcome.isolation.posture_digest
    return found


def test_only_its_own_programs_can_be_traced() -> None:
    async def scenario() -> None:
        ours = engine("debug")
        try:
            plain = await ours.create_sandbox(runtime="jail")
            usual = await tried(plain)
            await plain.close()
            sandbox = await ours.create_sandbox(runtime="jail", profile="debug")
            found = await tried(sandbox)
            status = read_text(f"/proc/{os.getpid()}/status")
            await sandbox.close()
        finally:
            await ours.aclose()
        assert (usual["profile"], found["profile"]) == ("default", "debug")
        assert usual["posture"] != found["posture"]
        assert (usual["child"], usual["read"]) == (EPERM, EPERM)
        assert (found["child"], found["read"], found["personality"]) == (0, 0, 0)
        for what in ("init", "init, stopped", "descriptor", "unshare"):
            assert found[what] == EPERM, what
            assert usual[what] == EPERM, what
        assert found["host"] in {EPERM, ESRCH}  # another process, or none, has that number inside
        assert found["other personality"] == -1
        assert "TracerPid:\t0" in status

    asyncio.run(scenario())


def test_the_operator_has_to_permit_it() -> None:
    async def scenario() -> None:
        ours = engine()
        try:
            with pytest.raises(UsageError, match="does not permit 'debug'"):
                await ours.create_sandbox(profile="debug")
            with pytest.raises(UsageError, match="'other' is not one"):
                await ours.create_sandbox(profile="other")
        finally:
            await ours.aclose()
        with pytest.raises(UsageError, match="'other' is not known"):
            EngineSettings(profiles=("other",))

    asyncio.run(scenario())


@pytest.mark.parametrize("runtime", ["gvisor", "docker", "process"])
def test_other_runtimes_refuse_it(runtime: str) -> None:
    async def scenario() -> None:
        ours = engine("debug")
        try:
            with pytest.raises(CellwallError, match=r"profile|runtime"):
                await ours.create_sandbox(runtime=runtime, profile="debug")
        finally:
            await ours.aclose()

    asyncio.run(scenario())


def test_strace_sees_the_calls_of_its_program() -> None:
    require_command("strace")

    async def scenario() -> None:
        ours = engine("debug")
        try:
            sandbox = await ours.create_sandbox(runtime="jail", profile="debug")
            line = "strace -f -e trace=openat cat /etc/hostname 2>&1 | grep -c openat"
            assert int((await sandbox.commands.run(line)).stdout) > 0
            await sandbox.close()
        finally:
            await ours.aclose()

    asyncio.run(scenario())

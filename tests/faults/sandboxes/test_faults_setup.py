"""FI-26, FI-40: every single call that builds and locks down a sandbox fails once.

The calls are counted, not listed, so that a new one is covered on its first day. A copy of the
guest's bundle fails the call whose number the request names; one fork-server serves all of them.
The control is the number after the last: nothing fails, and the program runs.
"""

from __future__ import annotations

import asyncio
import errno
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cellwall import Engine, EngineSettings, HostUnsupported
from cellwall.jail.plan import plan
from cellwall.jail.processes import clone_request
from cellwall.runtimes.jail.starting import bundle as bundle_room
from cellwall.runtimes.shared import guest_bundle
from kit.arena import Traces

pytestmark = pytest.mark.attack

_COUNTING = """

FAIL_AT, made = -1, 0
_do_all = do_all

def do_all(calls):
    global made
    for call in calls:
        if made == FAIL_AT:
            raise SyscallError(28, f"call {made}: {call.step}")
        made += 1
        _do_all((call,))
"""
_READ = """
        from cellwall.linux.syscalls import libc
        libc.FAIL_AT, libc.made = guest.get("fail_at", -1), 0
"""


def _counting(bundle: Path, target: Path) -> Path:
    with zipfile.ZipFile(bundle) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "cellwall/linux/syscalls/libc.py":
                data += _COUNTING.encode()
            if name == "cellwall/jail/processes/sandbox_init.py":
                marked = b"        _lock(request, channel, wait_r)\n"
                assert data.count(marked) == 1
                data = data.replace(marked, _READ.encode() + marked)
            if name not in {
                "cellwall/linux/syscalls/libc.pyc",
                "cellwall/jail/processes/sandbox_init.pyc",
            }:
                new.writestr(name, data)
    target.chmod(0o644)
    return target


async def _step(engine: Engine, number: int) -> str:
    """The words of the refusal when call `number` fails; "" if there was no such call."""
    real = clone_request.encoded

    def encoded(shape: plan.Shape, uid: int, guest: Any, start: str, **more: Any) -> bytes:
        return real(shape, uid, {**guest, "fail_at": number}, start, **more)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(clone_request, "encoded", encoded)
            done = await engine.run("print('seen', flush=True)", env={"OWN": "environment"})
    except HostUnsupported as error:
        return f"{error.errno} {error}" if error.remedy else "no remedy"
    assert done.stdout == "seen\n"
    return ""


async def _steps(engine: Engine) -> list[str]:
    found: list[str] = []
    while said := await _step(engine, len(found)):
        found.append(said)
    return found


def test_every_call_of_the_set_up_that_fails_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_init: None
) -> None:
    real = guest_bundle.build_bundle
    monkeypatch.setattr(
        bundle_room,
        "build_bundle",
        lambda *given: _counting(real(*given), tmp_path / "counting.pyz"),
    )

    async def scenario() -> list[str]:
        engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
        try:
            assert (await engine.run("print(1)")).ok
            await engine.wait_settled()
            before = Traces.now()
            found = await _steps(engine)
            await engine.wait_settled()
            assert Traces.now() == before
            runtime = await engine.runtime()
            assert runtime.statistics().detail["starts_retried"] == 0
            return found
        finally:
            await engine.aclose()

    found = asyncio.run(scenario())
    assert len(found) > 60
    for number, said in enumerate(found):
        assert said.startswith(f"{errno.ENOSPC} sandbox set-up, call {number}: ")
    text = "\n".join(found)
    steps = ("setresuid 1000", "mount", "unshare", "setrlimit", "PR_CAPBSET_DROP 0", "capset")
    for step in (*steps, "PR_SET_NO_NEW_PRIVS", "andlock", "SECCOMP"):
        assert step in text, found

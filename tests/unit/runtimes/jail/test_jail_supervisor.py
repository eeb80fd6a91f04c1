"""The host's side of a jail's birth: what children and the fork-server say, and do not say."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.jail.inspect import host_facts
from cellwall.jail.plan import plan
from cellwall.model.errors import HostUnsupported, SandboxBroken
from cellwall.runtimes.jail import child as spawned
from cellwall.runtimes.jail import fork_server
from cellwall.runtimes.jail.child import Child, hear, pid_of
from cellwall.runtimes.jail.starting.launch import Settings
from kit.waiting import state_of, wait_until

_WAITING = "import sys; print('up', flush=True); sys.stdin.read()"


class PlainChild:
    """A plain child in the place of a sandbox's init, with the far end of its channel."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", _WAITING],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        ours, self.far = socket.socketpair()
        pidfd = os.pidfd_open(self.process.pid)
        self.spawned = Child(self.process.pid, pidfd, ours)

    def close(self) -> None:
        """End it, whatever a test left."""
        self.process.kill()
        self.process.communicate()
        self.far.close()
        self.spawned.channel.close()
        if self.spawned.pidfd >= 0:
            os.close(self.spawned.pidfd)


@pytest.fixture
def child() -> Iterator[PlainChild]:
    """One child."""
    made = PlainChild()
    yield made
    made.close()


def test_child_that_leaves_is_ours_though_nobody_may_look_at_it(
    child: PlainChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the flag and the end it has no namespaces to look at; here the end is not seen."""
    monkeypatch.setattr(spawned, "_has_ended", lambda pidfd: False)
    with pytest.raises(SandboxBroken, match="no sandbox's"):
        spawned.checked([child.spawned.pidfd])
    child.process.kill()
    os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)
    assert spawned.checked([child.spawned.pidfd]) == child.process.pid


_WITHOUT_ITS_FIRST_THREAD = """
import ctypes, signal, threading
threading.Thread(target=signal.pause).start()
print("up", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_program_whose_first_thread_has_left_does_not_leave() -> None:
    with subprocess.Popen(
        [sys.executable, "-I", "-c", _WITHOUT_ITS_FIRST_THREAD], stdout=subprocess.PIPE
    ) as process:
        try:
            wait_until(lambda: state_of(process.pid) == "Z", "its first thread has left")
            assert not spawned._is_leaving(process.pid)
        finally:
            process.kill()


def _hear(child: PlainChild, word: bytes) -> None:
    asyncio.run(hear(child.spawned, word))


def test_the_expected_word_is_heard(child: PlainChild) -> None:
    child.far.send(b"L")
    _hear(child, b"L")


def test_what_follows_the_word_stays_for_the_channel(child: PlainChild) -> None:
    child.far.send(b"Lframe")
    _hear(child, b"L")
    assert child.spawned.channel.recv(10) == b"frame"


@pytest.mark.parametrize("said", [b"G", b"X", b"\x00", b"l"])
def test_another_word_is_our_fault_and_never_a_start(child: PlainChild, said: bytes) -> None:
    child.far.send(said)
    with pytest.raises(SandboxBroken, match="without a word"):
        _hear(child, b"L")


def test_a_child_that_ends_silently_is_named(child: PlainChild) -> None:
    child.far.close()
    with pytest.raises(SandboxBroken, match="ended without a word"):
        _hear(child, b"L")


def test_a_failed_step_is_told_with_its_errno_and_remedy(child: PlainChild) -> None:
    report = {"step": "mount proc on /proc", "error": "[Errno 1] not permitted", "errno": 1}
    child.far.send(b"E" + json.dumps(report).encode())
    with pytest.raises(HostUnsupported, match=r"mount proc on /proc.*cellwall doctor") as caught:
        _hear(child, b"L")
    assert caught.value.errno == 1


_NO_NUMBER = '{"event": "failed", "step": "pivot", "error": "no", "errno": [1]}'
_GARBLED = [b"E", b"E{", b"E[]", b"E{}", b'E{"step": 1}', b"E\xff\xfe", b"E" + _NO_NUMBER.encode()]


@pytest.mark.parametrize("said", _GARBLED)
def test_a_garbled_report_is_still_our_own_error(child: PlainChild, said: bytes) -> None:
    child.far.send(said)
    with pytest.raises(SandboxBroken, match="report"):
        _hear(child, b"L")


def test_kill_ends_the_child_and_the_watch_says_so(child: PlainChild) -> None:
    async def scenario() -> None:
        watch = child.spawned.watch()
        assert not watch.done()
        child.spawned.kill()
        await asyncio.wait_for(watch, 10)

    asyncio.run(scenario())
    assert child.process.wait(10) == -9


def test_kill_after_the_end_harms_nobody(child: PlainChild) -> None:
    child.process.kill()
    child.process.wait(10)
    child.spawned.kill()
    os.close(child.spawned.pidfd)
    child.spawned.pidfd = -1
    child.spawned.kill()


def test_discard_kills_and_closes(child: PlainChild) -> None:
    pidfd = child.spawned.pidfd
    child.spawned.discard()
    assert child.process.wait(10) == -9
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(pidfd)
    child.spawned.pidfd = -1


def test_a_pidfd_tells_its_pid(child: PlainChild) -> None:
    assert pid_of(child.spawned.pidfd) == child.process.pid
    child.process.kill()
    child.process.wait(10)
    assert pid_of(child.spawned.pidfd) == -1


# -- the fork-server -------------------------------------------------------------------------


def _settings(guest: Path) -> Settings:
    return Settings(
        guest_path=guest,
        template_path=Path("/nowhere"),
        base_mounts=(),
        python="/nowhere/python",
        preload=(),
        environment={},
        preload_environment={},
        uid_base=0x70000000,
        uid_count=65_536,
        root_index=65_535,
        rootless=True,
        outer=None,
        is_mover_kept=False,
        workers={"program": 1, "session": 1},
        seccomp=b"",
        guest_main="",
        guest_preload="",
        guest_reseed="",
        guest_alone="cellwall.guest.warm.single_program",
    )


_SAY = """
import socket, sys
control = socket.socket(fileno=int(sys.argv[2]))
control.recv(64)  # what it has to build
{}
"""


def _open() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:
            continue
    return found


def _start(tmp_path: Path, says: str) -> None:
    guest = tmp_path / "guest.py"
    guest.write_text(_SAY.format(says), encoding="utf-8")

    async def scenario() -> None:
        before = _open()
        server = fork_server.ForkServer(_settings(guest), host_facts.collect())
        try:
            await server.start()
        finally:
            assert not server.is_usable
            assert _open() == before

    asyncio.run(scenario())


def test_a_fork_server_that_ends_without_a_word_is_named(tmp_path: Path) -> None:
    with pytest.raises(SandboxBroken, match="it ended without a word"):
        _start(tmp_path, "control.close()")


def test_a_failed_step_of_boot_is_told_with_its_errno(tmp_path: Path) -> None:
    message = '{"event": "failed", "step": "boot: pivot", "error": "no", "errno": 22}'
    with pytest.raises(HostUnsupported, match="boot: pivot: no") as caught:
        _start(tmp_path, f"control.send({message!r}.encode())")
    assert caught.value.errno == 22


@pytest.mark.parametrize(
    "said",
    ["x", "[]", "{}", '{"event": "forked"}', '{"event": "forked", "pid": "many"}', _NO_NUMBER],
)
def test_a_garbled_word_of_boot_is_our_own_error(tmp_path: Path, said: str) -> None:
    with pytest.raises((HostUnsupported, SandboxBroken), match="fork-server"):
        _start(tmp_path, f"control.send({said!r}.encode())")


def test_a_fork_server_that_boot_did_not_start_is_not_believed(
    tmp_path: Path, child: PlainChild
) -> None:
    """Its process is killed at the end, and those below it: they must never be the host's."""
    said = f'control.send(b\'{{"event": "forked", "pid": {child.process.pid}}}\')'
    with pytest.raises(SandboxBroken, match="is not the one that boot started"):
        _start(tmp_path, said)
    assert child.process.poll() is None


def test_a_worker_that_ended_and_was_replaced_is_noticed(tmp_path: Path) -> None:
    """The number of them is right then, but a socket of ours leads to somebody else."""
    guest = tmp_path / "guest.py"
    guest.write_text(_SAY.format(_PROGRAMS_ONLY.format(_REPLACED)), encoding="utf-8")

    async def scenario() -> None:
        server = fork_server.ForkServer(_settings(guest), host_facts.collect())
        await server.start()
        with pytest.raises(SandboxBroken, match="a worker has ended"):
            await server.complete(0)
        assert not server.is_usable
        await server.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize("handed", ["lifeline", "two"])
def test_a_fork_server_cannot_have_its_host_killed(tmp_path: Path, handed: str) -> None:
    """It holds the embedding process's pidfd; the control is that we are still here to assert."""
    answer = {"lifeline": "[lifeline]", "two": "[lifeline, lifeline]"}[handed]
    guest = tmp_path / "guest.py"
    guest.write_text(_SAY.format(_HANDS_BACK.format(answer)), encoding="utf-8")

    async def scenario() -> None:
        server = fork_server.ForkServer(_settings(guest), host_facts.collect())
        await server.start()
        before = _open()
        shape = plan.Shape(1, 64, 64, 100, 10, 8, 64)
        with pytest.raises(SandboxBroken, match="a process that is no sandbox's"):
            await server.spawn(
                await server.take_worker("program"),
                root=fork_server.Root(shape),
                uid=0,
                guest={},
                start="fork",
            )
        assert not server.is_usable
        assert _open() == before
        await server.aclose()

    asyncio.run(scenario())


def test_a_child_that_died_early_is_told_with_its_own_cause(tmp_path: Path) -> None:
    """Dead before anybody looked at it: that is no stranger's process, and it left a word."""
    guest = tmp_path / "guest.py"
    guest.write_text(_SAY.format(_HANDS_BACK.format("[dead()]")), encoding="utf-8")

    async def scenario() -> None:
        server = fork_server.ForkServer(_settings(guest), host_facts.collect())
        await server.start()
        shape = plan.Shape(1, 64, 64, 100, 10, 8, 64)
        worker = await server.take_worker("program")
        spawned = await server.spawn(
            worker, root=fork_server.Root(shape), uid=0, guest={}, start="fork"
        )
        try:
            with pytest.raises(HostUnsupported, match=r"write 9 to cgroup\.procs: no"):
                await hear(spawned, b"L")
            assert server.is_usable
        finally:
            spawned.discard()
            await server.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("number", "wanted", "said"),
    [
        (errno.ESRCH, SandboxBroken, "id map: no"),
        (errno.EPERM, HostUnsupported, "id map: no"),
        ([1], SandboxBroken, "without a proper 'errno'"),
    ],
)
def test_a_clone_that_somebody_killed_is_no_lack_of_the_hosts(
    tmp_path: Path, number: object, wanted: type[Exception], said: str
) -> None:
    guest = tmp_path / "guest.py"
    answer = 'ready.send(b\'{{"error": "id map: no", "errno": {}}}\')'
    refuses = _HANDS_BACK.replace("ready.sendmsg([b'{{\"pid\": 1}}'], [rights])", answer)
    assert answer in refuses
    guest.write_text(_SAY.format(refuses.format("[]", number)), encoding="utf-8")

    async def scenario() -> None:
        server = fork_server.ForkServer(_settings(guest), host_facts.collect())
        await server.start()
        worker = await server.take_worker("program")
        shape = plan.Shape(1, 64, 64, 100, 10, 8, 64)
        try:
            with pytest.raises(wanted, match=said):
                await server.spawn(
                    worker, root=fork_server.Root(shape), uid=0, guest={}, start="fork"
                )
            assert server.is_usable is isinstance(number, int)
        finally:
            await server.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize("after", ["told", "silent", "killed"])
def test_sessions_that_cannot_be_had_are_refused_with_the_reason(
    tmp_path: Path, after: str
) -> None:
    """Programs are served by then: whoever waits for a session must not wait for ever."""
    guest = tmp_path / "guest.py"
    number = errno.EPIPE if after == "killed" else errno.EINVAL
    failed = {"event": "failed", "step": "preload IPython", "error": "no", "errno": number}
    said = "pass" if after == "silent" else f"control.send({json.dumps(failed)!r}.encode())"
    if after == "told":
        said += "\ncontrol.recv(1)"  # it lives until the host closes its end
    guest.write_text(_SAY.format(_PROGRAMS_ONLY.format(said)), encoding="utf-8")
    wanted = "without a word" if after == "silent" else "preload IPython: no"

    async def scenario() -> None:
        server = fork_server.ForkServer(_settings(guest), host_facts.collect())
        await server.start()
        await server.take_worker("program")
        told = await asyncio.gather(
            server.take_worker("session"),
            server.take_worker("session"),
            server.complete(60),
            return_exceptions=True,
        )
        for each in told:
            assert isinstance(each, HostUnsupported if after == "told" else SandboxBroken)
            assert wanted in str(each)
        # Where it said itself why, it lives: programs go on being forked from it.
        assert server.is_usable == (after == "told")
        await server.aclose()

    asyncio.run(scenario())


def test_fork_server_that_is_gone_before_it_goes_on_refuses_sessions(tmp_path: Path) -> None:
    guest = tmp_path / "guest.py"
    guest.write_text(_SAY.format(_PROGRAMS_ONLY.format("pass")), encoding="utf-8")

    async def scenario() -> None:
        server = fork_server.ForkServer(_settings(guest), host_facts.collect())
        await server.start()
        os.kill(server.pid, signal.SIGKILL)  # it waits to be told to go on
        wait_until(lambda: not server.is_usable, "its socket is closed")
        await asyncio.to_thread(wait_until, lambda: not state_of(server.pid), "it is waited for")
        with pytest.raises(SandboxBroken, match="it has ended"):  # as if that were just now
            server._find_workers(1)
        told = await asyncio.gather(
            server.take_worker("session"), server.complete(60), return_exceptions=True
        )
        assert [type(each) for each in told] == [SandboxBroken, SandboxBroken]
        await server.aclose()

    asyncio.run(scenario())


_PROGRAMS_ONLY = """
import os
said, say = os.pipe()
first = os.fork()
if first:
    control.send(b'{{"event": "forked", "pid": %d}}' % first)
    os.write(say, b"x")
    control.close()
    os.waitpid(first, 0)
    os._exit(0)
os.read(said, 1)
wait, leash = os.pipe()
if os.fork() == 0:
    control.close()
    os.close(leash)
    os.read(wait, 1)
    os._exit(0)
control.send(b'{{"event": "programs", "preload": {{}}}}')
control.recv(100)
{}
"""


_REPLACED = """
os.close(leash)
os.wait()
wait, leash = os.pipe()
for _ in range(2):
    if os.fork() == 0:
        control.close()
        os.close(leash)
        os.read(wait, 1)
        os._exit(0)
control.send(b'{"event": "ready"}')
control.recv(1)
"""


_HANDS_BACK = """
import array, os
said, say = os.pipe()
first = os.fork()
if first:
    control.send(b'{{"event": "forked", "pid": %d}}' % first)
    os.write(say, b"x")
    os.waitpid(first, 0)
    os._exit(0)
os.read(said, 1)
wait, leash = os.pipe()
for _ in sys.argv[4:5]:
    if os.fork() == 0:
        os.close(leash)
        os.read(wait, 1)
        os._exit(0)
control.send(b'{{"event": "programs", "preload": {{}}}}')
lifeline = int(sys.argv[3])
workers = [socket.socket(fileno=int(word)) for word in sys.argv[4:]]
import select
ready = select.select(workers, [], [])[0][0]
_, ancillary, _, _ = ready.recvmsg(65536, 1024)
channel = array.array("i", ancillary[0][2])[0]
def dead():
    pid = os.fork()
    if not pid:
        os.write(channel, b'E{{"step": "write 9 to cgroup.procs", "error": "no", "errno": 16}}')
        os._exit(1)
    fd = os.pidfd_open(pid)
    os.waitpid(pid, 0)
    return fd
rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", {}))
ready.sendmsg([b'{{"pid": 1}}'], [rights])
control.recv(1)
"""

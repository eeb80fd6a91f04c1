"""G19: games of session leaders with a terminal, one of the program's own and one of ours.

A terminal stops readers, hangs up on groups and changes hands between sessions, and each of these
has hung a server that waited for one. Each game prints how it ended, and the same program as a
plain process prints the same: so the games are played. What goes on for ever is left to the engine.
"""

from __future__ import annotations

import asyncio

import pytest

from cellwall import Verdict
from kit import controls
from kit.arena import Arena

pytestmark = pytest.mark.attack

_GAMES = """
import errno, fcntl, os, pty, signal, sys, termios, time

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup(1) has its programs ignore it

def tell(*words): os.write(1, (" ".join(map(str, words)) + chr(10)).encode())

def child(work):
    pid = os.fork()
    if pid == 0:
        try: work()
        except OSError as error: os._exit(error.errno)
        os._exit(0)
    return pid

def end(pid):
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)
        return signal.Signals(os.WSTOPSIG(status)).name
    if os.WIFSIGNALED(status): return signal.Signals(os.WTERMSIG(status)).name
    return errno.errorcode.get(os.WEXITSTATUS(status), "nothing")

def in_background(work):
    def group():
        os.setpgid(0, 0)
        work()
    return child(group)

def read_for_ever(said):
    # A group without a parent in its session is not stopped: it gets EIO, again and again.
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        try: os.read(terminal, 1)
        except OSError as error:
            if said is not None: os.write(said, errno.errorcode[error.errno].encode()); said = None

def wait_for_ever(fd=None):
    if fd is not None: os.write(fd, b"up")
    while True: signal.pause()

def up(work):
    # A child that has come as far as to say so.
    read_end, write_end = os.pipe()
    pid = work(write_end)
    os.close(write_end)
    said = os.read(read_end, 9).decode()
    os.close(read_end)
    return pid, said

def play():
    tell("in front", os.tcgetpgrp(terminal) == os.getpgrp())
    tell("background read", end(in_background(lambda: os.read(terminal, 1))))
    _, said = up(lambda fd: in_background(lambda: read_for_ever(fd)))
    tell("background loop", said)
    def leave(fd):
        os.setsid()
        wait_for_ever(fd)
    foreign, _ = up(lambda fd: child(lambda: leave(fd)))
    tell("foreign group to the front", end(child(lambda: os.tcsetpgrp(terminal, foreign))))
    def steal():
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 1)
    tell("stolen by force", end(child(steal)))
    front, _ = up(lambda fd: in_background(lambda: wait_for_ever(fd)))
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.tcsetpgrp(terminal, front)
    fcntl.ioctl(terminal, termios.TIOCNOTTY)
    tell("let go", end(front))
    try: tell("again", os.open("/dev/tty", os.O_RDWR))
    except OSError as error: tell("again", errno.errorcode[error.errno])
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    tell("taken back", os.tcgetpgrp(terminal) == os.getpgrp())
    for _ in range(3): in_background(lambda: read_for_ever(None))
    in_background(wait_for_ever)
"""
_OWN = """
def lead():
    global terminal
    _, terminal = pty.openpty()
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    play()
tell("leader", end(child(lead)))
"""
_OURS = """
terminal = 0
play()
tell("leader nothing")
"""
_ENDS = [
    "in front True",
    "background read SIGTTIN",
    "background loop EIO",
    "foreign group to the front EPERM",
    "stolen by force EPERM",
    "let go SIGHUP",
    "again ENXIO",
    "taken back True",
    "leader nothing",
]


@pytest.mark.parametrize("case", ["G19"])
def test_leader_of_a_session_plays_with_its_own_terminal_only(arena: Arena, case: str) -> None:
    with arena.leaving_nothing():
        ended = arena.beside(_GAMES + _OWN)
    assert (ended.verdict, ended.stdout.splitlines()[1:]) == (Verdict.OK, _ENDS), ended
    assert ended.outcome.usage.wall_s < 3  # its own end, not that of what it left behind


@pytest.mark.root
@pytest.mark.parametrize("case", ["G19"])
def test_leader_of_a_session_plays_unconfined(case: str) -> None:
    # In a pid namespace, though: nobody else would end what goes on for ever.
    assert controls.run_in("space", _GAMES + _OWN).splitlines()[1:] == _ENDS


@pytest.mark.parametrize("case", ["G19-ours"])
def test_leader_of_a_session_does_not_hang_the_engine_with_its_terminal(
    arena: Arena, case: str
) -> None:
    async def attack() -> None:
        async with arena.sandbox() as sandbox:
            await sandbox.files.write("games.py", _GAMES + _OURS)
            argv = ["python3", "games.py"]
            terminal = await sandbox.commands.start(argv, pty=(24, 80), timeout=10)
            async with asyncio.timeout(5):
                said = b"".join([piece async for piece in terminal])
                ended = await terminal.wait()
            assert (ended.ok, said.decode().splitlines()) == (True, _ENDS), ended
            assert (await sandbox.run("6 * 7")).text == "42"

    with arena.leaving_nothing():
        arena.do(attack())

"""The host's part of a sandbox of one program, with this process as init and as the context."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from cellwall.guest.channel import enclosed
from cellwall.guest.channel.frames import encode
from cellwall.guest.channel.handshake import IDLE
from cellwall.jail.fast import machine_code
from cellwall.jail.inspect import host_facts
from cellwall.runtimes.channel.replies import REPLY, RUN, ChannelLost, GuestRefused
from cellwall.runtimes.jail.single_program.channel import AloneChannel, Parts
from cellwall.runtimes.jail.single_program.lazy_loop import LateLoop
from kit import loop_clock
from kit.figures import collections_off
from kit.loop_clock import clock

_EXIT_3 = 3 << 8
_SOON_S = 5


class Heard:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, dict[str, Any], bytes]] = []
        self.lost: ChannelLost | None = None
        self.ended = asyncio.Event()
        self.news = asyncio.Event()

    def on_frame(self, kind: str, header: dict[str, Any], body: bytes) -> None:
        """See `Listener`."""
        self.frames.append((kind, header, body))
        self.news.set()
        if kind in ("done", "fail"):
            self.ended.set()

    def on_lost(self, error: ChannelLost) -> None:
        """See `Listener`."""
        self.lost = error
        self.ended.set()

    @property
    def kinds(self) -> list[str]:
        """Of all frames, in order."""
        return [kind for kind, _, _ in self.frames]

    async def wait_some(self) -> None:
        """Until there is anything."""
        async with asyncio.timeout(_SOON_S):
            await self.news.wait()

    async def wait(self) -> None:
        """Until it is over."""
        async with asyncio.timeout(_SOON_S):
            await self.ended.wait()


class Inside:
    """The other ends."""

    def __init__(self, *, is_idle: bool = True) -> None:
        ours, self.channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        (out_r, self.stdout), (err_r, self.stderr) = os.pipe(), os.pipe()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind("\0cellwall-test-" + os.urandom(8).hex())
        listener.listen()
        listener.setblocking(False)
        self.address = listener.getsockname()
        self.violations: list[str] = []
        self.kills = 0
        self.host = AloneChannel(
            Parts(ours, (out_r, err_r), listener, is_idle),
            os.getppid(),
            on_violation=self.violations.append,
            kill_context=self._kill,
        )
        self.host.context_pid = os.getpid()
        self.heard = Heard()

    def _kill(self) -> None:
        self.kills += 1

    def execute(self, **more: Any) -> int:
        """Have the host ask for a program."""
        fields = {"output_bytes": 1000, **more}
        return self.host.open("execute", self.heard, RUN, fields, b"pass")

    def end(self, status: int = _EXIT_3) -> None:
        """Say how the context ended, as init does."""
        self.channel.send(machine_code.END.pack(machine_code.END_TAG, status, 1, 5, 2, 6, 77))

    def say(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Say something as the context does."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.connect(self.address)
            line.sendall(encode(header, body))

    def close(self) -> None:
        """Let go of everything."""
        self.host.close()
        self.channel.close()
        for fd in (self.stdout, self.stderr):
            with contextlib.suppress(OSError):
                os.close(fd)


@contextlib.contextmanager
def _inside(**options: Any) -> Iterator[Inside]:
    inside = Inside(**options)
    try:
        yield inside
    finally:
        inside.close()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _play(
    play: Callable[[Inside], Any],
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
    **options: Any,
) -> None:
    async def scene() -> None:
        with _inside(**options) as inside:
            await play(inside)

    async def whole() -> None:
        before = _descriptors()
        await scene()
        assert _descriptors() == before

    run(whole())


def test_program_prints_says_and_ends() -> None:
    async def play(inside: Inside) -> None:
        inside.execute()
        os.write(inside.stdout, b"one\n")
        inside.say({"ev": "display", "kind": "result", "metadata": {"a": 1}}, b"{}")
        os.write(inside.stderr, b"two\n")
        inside.end()
        await inside.heard.wait()
        assert inside.heard.kinds == ["stdout", "stderr", "display", "done"]
        _, done, _ = inside.heard.frames[-1]
        assert (done["exit_code"], done["signal"], done["alive"]) == (3, None, False)
        assert done["rusage"] == {"user_us": 1000005, "system_us": 2000006, "maxrss_kib": 77}
        assert "metadata" not in inside.heard.frames[2][1]

    _play(play)


def test_request_is_read_from_the_channel_by_the_context() -> None:
    async def play(inside: Inside) -> None:
        inside.execute(held=True)
        assert b'"op":"execute"' in inside.channel.recv(4096)
        inside.host.go()
        assert b'"op":"go"' in inside.channel.recv(4096)

    _play(play)


@pytest.mark.parametrize("size", [1, 7, 55])
def test_words_may_come_in_pieces(size: int) -> None:
    async def play(inside: Inside) -> None:
        inside.execute()
        word = IDLE + machine_code.END.pack(machine_code.END_TAG, 9, 0, 0, 0, 0, 0)
        for start in range(0, len(word), size):
            inside.channel.send(word[start : start + size])
            await asyncio.sleep(0)
        await inside.heard.wait()
        assert inside.heard.frames[-1][1]["signal"] == 9

    _play(play, is_idle=False)


@pytest.mark.parametrize("word", [b"x", b"L", b"\0" * 13, IDLE])
def test_what_init_never_says_ends_it_as_hostile(word: bytes) -> None:
    async def play(inside: Inside) -> None:
        inside.execute()
        inside.channel.send(word)
        await inside.heard.wait()
        assert inside.heard.lost is not None
        assert inside.heard.lost.is_hostile
        assert len(inside.violations) == 1

    _play(play)


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("step", [1, 5, 12])
def test_file_that_cannot_be_written_is_refused_by_name(is_held: bool, step: int) -> None:
    async def play(inside: Inside) -> None:
        inside.execute(files=[("a", 0), ("b/c", 4)], held=is_held)
        word = enclosed.NotPlaced(OSError(errno.ENOSPC, "full"), 1).word
        for start in range(0, len(word), step):
            inside.channel.send(word[start : start + step])
            await asyncio.sleep(0)
        await inside.heard.wait()
        ((kind, header, _),) = inside.heard.frames
        assert (kind, header["code"]) == ("fail", "no_space")
        assert "'b/c'" in header["message"]
        inside.end(75 << 8)
        inside.host.poll()
        assert inside.heard.kinds == ["fail"]
        assert not inside.violations

    _play(play)


@pytest.mark.parametrize("is_asked", [True, False])
def test_file_that_was_never_given_cannot_be_refused(is_asked: bool) -> None:
    async def play(inside: Inside) -> None:
        if is_asked:
            inside.execute(files=[("a", 0)])
        inside.channel.send(enclosed.NotPlaced(OSError(errno.ENOSPC, "full"), 1).word)
        inside.host.poll()
        assert inside.host.lost is not None
        assert inside.host.lost.is_hostile
        assert len(inside.violations) == 1

    _play(play)


@pytest.mark.parametrize("fields", [{"held": True}, {}])
def test_end_before_the_program_began_is_a_lost_channel(fields: dict[str, bool]) -> None:
    """Held and not let go, or a context that never was idle: nothing of the caller's has run."""

    async def play(inside: Inside) -> None:
        if not fields:
            inside.host.expect_ready(_SOON_S)
        inside.execute(**fields)
        inside.end()
        await inside.heard.wait()
        assert inside.heard.lost is not None
        assert not inside.heard.lost.is_hostile
        assert inside.host.is_unready is not bool(fields)

    _play(play, is_idle=bool(fields))


def test_parked_one_whose_program_ended_is_lost() -> None:
    async def play(inside: Inside) -> None:
        ended = asyncio.Event()
        inside.host.on_end(ended.set)
        inside.end()
        async with asyncio.timeout(_SOON_S):
            await ended.wait()
        assert not inside.host.is_open

    _play(play)


def test_everything_else_is_refused() -> None:
    async def play(inside: Inside) -> None:
        with pytest.raises(GuestRefused, match="nothing else"):
            await inside.host.request("file_read", path="a")
        inside.execute()
        second = Heard()
        inside.host.open("execute", second, RUN, {"output_bytes": 1})
        await second.wait()
        assert second.kinds == ["fail"]
        inside.end()
        await inside.heard.wait()

    _play(play)


def test_output_above_its_bound_is_read_counted_and_told() -> None:
    async def play(inside: Inside) -> None:
        inside.execute()
        for _ in range(60):
            os.write(inside.stdout, bytes(1000))
        inside.host.poll()
        assert inside.heard.kinds == ["stdout", "cut"]
        assert inside.heard.frames[1][1]["bytes"] == 59_000
        for _ in range(10):  # from now on it is moved to nowhere, and counted
            os.write(inside.stdout, bytes(1000))
        inside.end()
        await inside.heard.wait()
        assert inside.heard.frames[-1][1]["cut"]["stdout"] == 69_000
        assert inside.heard.kinds == ["stdout", "cut", "done"]

    _play(play)


def test_output_comes_while_it_runs_and_not_while_it_is_paused() -> None:
    async def play(inside: Inside) -> None:
        inside.execute()
        inside.host.pause()
        os.write(inside.stdout, b"one")
        await clock().advance(60)
        assert inside.heard.kinds == []
        inside.host.resume()
        await clock().advance(1)
        await inside.heard.wait_some()
        assert inside.heard.frames[0][2] == b"one"

    _play(play, loop_clock.run)


@pytest.mark.parametrize(
    ("header", "kills", "is_hostile"),
    [
        ({"ev": "idle"}, 1, False),
        ({"ev": "call", "tool": "x"}, 1, False),
        ({"ev": "nonsense"}, 1, False),
        ({"ev": "end", "raised": True}, 0, False),
    ],
)
def test_what_a_context_may_not_say_ends_it(
    header: dict[str, Any], kills: int, is_hostile: bool
) -> None:
    async def play(inside: Inside) -> None:
        inside.execute()
        inside.say(header)
        inside.host.poll()
        assert inside.kills == kills
        assert bool(inside.violations) is is_hostile

    _play(play)


def test_frame_that_is_none_ends_the_context() -> None:
    async def play(inside: Inside) -> None:
        inside.execute()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.connect(inside.address)
            line.sendall(b"\xff" * 100)
            inside.host.poll()
        assert inside.kills == 1

    _play(play)


def _display(number: int = 0, size: int = 0) -> bytes:
    body = b'{"n": "%d%s"}' % (number, b"x" * size)
    return encode({"ev": "display", "kind": "display"}, body)


def test_header_that_no_context_sends_ends_it() -> None:
    async def play(inside: Inside) -> None:
        inside.execute()
        inside.say({"ev": "value", "note": "x" * 4096}, b"1")
        inside.host.poll()
        assert (inside.kills, inside.heard.kinds) == (1, [])

    _play(play)


def test_flood_is_heard_a_turn_at_a_time_and_seldom() -> None:
    """What others wait for runs in between; the control of the pause is what it says at first."""

    async def play(inside: Inside) -> None:
        inside.execute()
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.connect(inside.address)
            line.setblocking(False)
            flood = b"".join(map(_display, range(1000)))
            sending = asyncio.ensure_future(_send_all(line, flood * 30))
            with collections_off():
                longest_s, last, began = 0.0, time.thread_time(), loop.time()
                while loop.time() < began + 0.5 or inside.heard.kinds.count("display") <= 100:
                    await asyncio.sleep(0)
                    now_s = time.thread_time()
                    longest_s, last = max(longest_s, now_s - last), now_s
            sending.cancel()
            halves = (loop.time() - began) / 0.5  # more than one on a busy machine
            assert not sending.done()
            assert len(inside.heard.frames) < 25_000 * halves
            assert longest_s < 0.1

    _play(play)


async def _send_all(line: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(line, data)
    raise AssertionError("nobody made it wait")


def test_all_that_was_said_before_the_end_is_heard_in_order() -> None:
    """More than may be heard at once: `done` waits for it."""

    async def play(inside: Inside) -> None:
        inside.execute()
        count = 0
        lines = []
        for _ in range(20):
            line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            line.connect(inside.address)
            said = [_display(count + n, 300) for n in range(100)]
            line.sendall(b"".join(said))
            count += len(said)
            lines.append(line)
        for line in lines:
            line.close()
        inside.end()
        await inside.heard.wait()
        assert inside.heard.kinds == ["display"] * count + ["done"]
        numbers = [int(body.split(b'"')[3].rstrip(b"x")) for _, _, body in inside.heard.frames[:-1]]
        assert numbers == list(range(count))
        assert inside.heard.frames[-1][1]["exit_code"] == 3

    _play(play)


def test_one_that_says_more_than_any_is_cut_off() -> None:
    """Its pipes are read on, its end counts; whoever calls then is refused."""

    async def play(inside: Inside) -> None:
        inside.execute(output_bytes=100)
        whole = encode({"ev": "display"}, bytes(1 << 20))
        for _ in range(20):
            with contextlib.suppress(OSError), _calling(inside) as line:
                line.setblocking(False)
                async with asyncio.timeout(_SOON_S):
                    await asyncio.get_running_loop().sock_sendall(line, whole)
        with pytest.raises(ConnectionRefusedError):
            _calling(inside)
        os.write(inside.stdout, b"on")
        inside.end()
        await inside.heard.wait()
        assert inside.heard.kinds == ["display"] * 8 + ["stdout", "done"]
        assert inside.heard.frames[-1][1]["cut"]["display"] > 7 << 20

    _play(play)


def _calling(inside: Inside) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.connect(inside.address)
    except OSError:
        line.close()
        raise
    return line


def test_end_of_a_flooding_program_is_known_though_its_sandbox_is_lost() -> None:
    async def play(inside: Inside) -> None:
        inside.execute()
        with _calling(inside) as line:
            line.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    line.send(b"".join(_display(n) for n in range(100)))
            inside.end()
            inside.host.poll()
            assert "done" not in inside.heard.kinds
            inside.channel.close()
            await inside.heard.wait()
            assert inside.heard.lost is None
            assert inside.heard.frames[-1][1]["exit_code"] == 3

    _play(play)


def test_other_processes_are_not_heard() -> None:
    """The control is every other test: this process is the context there."""

    async def play(inside: Inside) -> None:
        inside.host.context_pid = os.getppid()
        inside.execute()
        inside.say({"ev": "error"}, b'{"name":"a","value":"b","traceback":"c"}')
        inside.end()
        await inside.heard.wait()
        assert inside.heard.kinds == ["done"]

    _play(play)


@pytest.mark.parametrize("is_shown", [True, False])
def test_end_is_foreseen_only_where_its_code_is_shown(
    monkeypatch: pytest.MonkeyPatch, is_shown: bool
) -> None:
    monkeypatch.setattr(host_facts, "sees_exit_codes", lambda: is_shown)

    async def play(inside: Inside) -> None:
        inside.host.context_pid, inside.host._init_pid = ended, os.getpid()
        inside.execute()
        inside.channel.send(machine_code.MARK)
        inside.host.poll()
        assert inside.heard.kinds == ["done"] * is_shown
        inside.end()
        await inside.heard.wait()
        assert inside.heard.frames[-1][1]["exit_code"] == (5 if is_shown else 3)

    ended = os.fork()
    if ended == 0:
        os._exit(5)
    os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
    try:
        _play(play)
    finally:
        os.waitpid(ended, 0)


def test_lone_surrogates_in_a_note_can_be_told_again() -> None:
    async def play(inside: Inside) -> None:
        inside.execute()
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.connect(inside.address)
        text = b'{"ev":"value","unserialisable":"a\\ud800"}'
        line.sendall(_lengths(len(text)) + text)
        line.close()
        inside.end()
        await inside.heard.wait()
        (note,) = [h["unserialisable"] for kind, h, _ in inside.heard.frames if kind == "value"]
        assert note.encode()

    _play(play)


def _lengths(size: int) -> bytes:
    """The two lengths before a frame without a body."""
    return size.to_bytes(4, "big") + bytes(4)


def test_marks_without_an_end_are_no_end_and_are_heard_seldom() -> None:
    async def play(inside: Inside) -> None:
        inside.execute()
        for _ in range(20):
            inside.channel.send(machine_code.MARK)
            await asyncio.sleep(0)
        assert inside.heard.kinds == []
        # From the fourth on nobody listens for a while.
        waiting, _, _ = select.select([inside.host._fd], [], [], 0)
        assert waiting
        inside.end()
        await inside.heard.wait()
        assert inside.heard.kinds == ["done"]

    _play(play)


def test_abandoned_in_a_child_it_closes_its_descriptors() -> None:
    async def whole() -> None:
        before = _descriptors()
        inside = Inside()
        inside.execute()
        loop = asyncio.get_running_loop()
        fd = inside.host._fd
        inside.host.abandon()
        loop.remove_reader(fd)
        for each in (inside.stdout, inside.stderr):
            os.close(each)
        inside.channel.close()
        assert _descriptors() == before

    asyncio.run(whole())


def test_replies_are_not_what_a_program_gets() -> None:
    """A request of another kind has its own events, and is answered by none but `fail`."""

    async def play(inside: Inside) -> None:
        heard = Heard()
        inside.host.open("file_stat", heard, REPLY, {"path": "a"})
        await heard.wait()
        assert [(kind, header["code"]) for kind, header, _ in heard.frames] == [
            ("fail", "unsupported")
        ]

    _play(play)


def test_abandoned_after_its_output_has_ended_it_closes_nobody_elses_descriptors() -> None:
    """Numbers are given out again: a child of a test's once lost the pipe it was born with."""

    async def whole() -> None:
        inside = Inside()
        inside.execute()
        before = set(os.listdir("/proc/self/fd"))
        os.close(inside.stdout)
        os.close(inside.stderr)
        inside.host.poll()  # it reads to the end of both, and closes its own ends
        freed = before - set(os.listdir("/proc/self/fd"))
        taken = [os.open(os.devnull, os.O_RDONLY) for _ in freed]
        assert {str(fd) for fd in taken} & freed
        fd = inside.host._fd
        inside.host.abandon()
        asyncio.get_running_loop().remove_reader(fd)
        for each in taken:
            os.close(each)  # OSError if somebody has done so already
        inside.channel.close()

    asyncio.run(whole())


def test_floods_share_what_they_may_cost_the_loop() -> None:
    """Ten of them are read as often as one is; and once they are over, the next is read at once."""

    async def whole() -> int:
        flooding = [Inside() for _ in range(10)]
        try:
            for inside in flooding:
                inside.execute()
                os.write(inside.stdout, bytes(60_000))
                inside.host.poll()
                os.write(inside.stdout, bytes(60_000))
                inside.host.poll()
            return LateLoop._floods
        finally:
            for inside in flooding:
                inside.close()

    assert asyncio.run(whole()) == 10
    assert LateLoop._floods == 0

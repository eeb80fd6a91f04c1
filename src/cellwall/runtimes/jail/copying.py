"""Copies of sessions on the host: images go from a sandbox to a file, and from there to others.

The host moves bytes and never looks into an image, which hostile code has written; it knows the
sizes of its parts, and compares them with the size of the file. What is in it is read by the
sandbox that becomes the session, and that one was confined and compared before (design/0041).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from cellwall.linux import nameless
from cellwall.model.errors import CapacityError, SandboxBroken
from cellwall.runtimes.base import SessionFiles, SessionImage
from cellwall.runtimes.channel.replies import Reply
from cellwall.runtimes.jail.fork_servers import Base

if TYPE_CHECKING:
    from cellwall.runtimes.jail.sandbox import JailSandbox

_CONTEXT = "main"
_TAIL = struct.Struct("<2Q")
"""The last words of an image: number of extents, and bytes of the pages in them."""
_REGISTERS_BYTES = 64
_EXTENT_BYTES = 16
_PIPE_BYTES = 1 << 20
_F_OFD_SETLK = 37
_WHOLE_FILE = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_LOOK_S = 0.1
_TIMEOUT_S = 60.0
_MOST_BASE_BYTES = 8 << 30
_MOST_LEFT = 100


class _Reader:
    """Takes what a sandbox writes to a pipe into a file, in a thread of its own."""

    def __init__(self, target: int, most_bytes: int) -> None:
        self._target = target
        self._most_bytes = most_bytes
        self._is_over = threading.Event()
        self._pipe, self.writing = os.pipe2(os.O_CLOEXEC)
        fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self.size = 0
        self.is_too_large = False
        self.error: OSError | None = None

    def begin(self) -> asyncio.Future[None]:
        """Read in a thread; return what is done when it ends.

        A thread of its own: a session that never closes its pipe would keep one of those that all
        use.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def work() -> None:
            try:
                self._read()
            except OSError as error:
                self.error = error
            finally:
                os.close(self._pipe)
                loop.call_soon_threadsafe(ended.set_result, None)

        threading.Thread(target=work, name="copy", daemon=True).start()
        return ended

    def _read(self) -> None:
        """Take everything until the last writer has closed the pipe, or `stop`."""
        poller = select.poll()
        poller.register(self._pipe, select.POLLIN)
        left = _PIPE_BYTES
        while left > 0:
            is_over = self._is_over.is_set()
            if not poller.poll(0 if is_over else _LOOK_S * 1000):
                if is_over:
                    return
                continue
            count = os.splice(self._pipe, self._target, _PIPE_BYTES)
            if not count:
                return
            self.size += count
            left -= count if is_over else 0
            if self.size > self._most_bytes:
                self.is_too_large = True
                return

    def stop(self) -> None:
        """Take what is in the pipe, and end, whether or not the pipe has ended."""
        self._is_over.set()

    def check(self, op: str) -> None:
        """Raise CapacityError if there was no room for what came."""
        if self.is_too_large:
            raise CapacityError(
                f"copy a session: {op}: it has more than {self._most_bytes >> 20} MiB to keep",
                retry_after_s=0.0,
                remedy="drop what it does not need, or raise the limit of snapshots",
            )
        if self.error is not None:
            raise CapacityError(
                f"copy a session: {op}: write it down: {self.error.strerror}",
                retry_after_s=60.0,
                remedy="have the operator make room in the state directory",
            )


async def _taken(
    sandbox: JailSandbox, op: str, fd: int, most_bytes: int, base: Base | None = None
) -> tuple[Reply, int]:
    """Have the guest write to `fd`; return the reply and the size of what came.

    With `base`, the operation gets it, too. After the reply the guest writes no more.
    """
    reader = _Reader(fd, most_bytes)
    files = [reader.writing, *([] if base is None else [_for_reading(base.fd)])]
    reading = reader.begin()
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reply = await sandbox.channel.request_with_files(
                op,
                files,
                b"" if base is None else base.maps,
                context=_CONTEXT,
                open_files=sandbox.spec.limits.open_files,
            )
    except TimeoutError:
        raise SandboxBroken(f"copy a session: {op}: not done within {_TIMEOUT_S:g} s") from None
    finally:
        reader.stop()
        await asyncio.shield(reading)
        reader.check(op)
    return reply, reader.size


def new_files(folder: Path) -> SessionFiles:
    """Make the files of a session, as `CopiesSessions.new_session_files`."""
    memory = nameless.made_in(folder)
    try:
        return SessionFiles(memory, nameless.made_in(folder))
    except BaseException:
        os.close(memory)
        raise


async def base_of(sandbox: JailSandbox, state_dir: Path) -> Base:
    """Write a fresh sandbox's memory down as the base of its fork-server."""
    written = nameless.made_in(state_dir)
    try:
        reply, _size = await _taken(sandbox, "copy", written, _MOST_BASE_BYTES)
        _lock(written)
        return Base(written, reply.body)
    except BaseException:
        os.close(written)
        raise


def _for_reading(fd: int) -> int:
    """Open a file of this process once more, for reading from its beginning.

    SECURITY: never a duplicate, whose position all who have one share; and a read leaves no time.
    """
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOATIME)


def _lock(fd: int) -> None:
    """Take both kinds of lock on a file, so that the sandboxes that read it can take none.

    SECURITY: what one of them locked would be a word to another.
    """
    fcntl.flock(fd, fcntl.LOCK_EX)
    fcntl.fcntl(fd, _F_OFD_SETLK, _WHOLE_FILE)


async def write(
    sandbox: JailSandbox, base: Base, files: SessionFiles, most_bytes: int
) -> SessionImage:
    """Write a session to `files`, as `CopiesSessions.write_session`."""
    both = await asyncio.gather(
        _taken(sandbox, "copy", files.memory, most_bytes, base),
        _taken(sandbox, "areas_get", files.archive, most_bytes),
        return_exceptions=True,  # neither file is closed while the other one is written
    )
    for fd in files:
        _lock(fd)
    for each in both:
        if isinstance(each, BaseException):
            raise each
    memory, archive = (each for each in both if not isinstance(each, BaseException))
    header, size = memory[0].header, memory[1]
    records, strings = header.get("records"), header.get("strings")
    if type(records) is not int or type(strings) is not int or size < _TAIL.size:
        raise SandboxBroken("copy a session: the guest's answer has no sizes")
    count, pages = _TAIL.unpack(os.pread(files.memory, _TAIL.size, size - _TAIL.size))
    parts = (pages, count * _EXTENT_BYTES, records, strings)
    if sum(parts) + _REGISTERS_BYTES + _TAIL.size != size or min(parts) < 0:
        raise SandboxBroken("copy a session: its image has not the size that it says")
    left = header.get("left")
    told = [each for each in left if isinstance(each, str)] if isinstance(left, list) else []
    kept = tuple(each[:_MOST_LEFT] for each in told[:_MOST_LEFT])
    return SessionImage(sandbox.lineage, *parts, size, archive[1], kept)


async def become(
    sandbox: JailSandbox, base: Base, files: SessionFiles, image: SessionImage, *, reseed: bool
) -> None:
    """Make a fresh sandbox the session in `files`, as `CopiesSessions.become_session`."""
    channel = sandbox.channel
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            if image.files_bytes:
                # First: the session may have files open.
                await channel.request_with_files("areas_put", [_for_reading(files.archive)])
            await channel.request_with_files(
                "become",
                [_for_reading(files.memory), _for_reading(base.fd)],
                base.maps,
                context=_CONTEXT,
                open_files=sandbox.spec.limits.open_files,
                reseed=reseed,
                pages=image.pages,
                table=image.table,
                records=image.records,
                strings=image.strings,
            )
    except TimeoutError:
        raise SandboxBroken(f"become a session: not done within {_TIMEOUT_S:g} s") from None

"""Copies of sessions on the host: images go from a sandbox to a file, and from there to others.

The host moves bytes and never looks into an image, which hostile code has written; it knows the
sizes of its parts, and compares them with the size of the file. What is in it is read by the
sandbox that becomes the session, and that one was confined and compared before (design/0041).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import select
import struct
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellwall.jail.inspect import page_frames
from cellwall.linux import nameless
from cellwall.model.errors import CapacityError, CellwallError, SandboxBroken
from cellwall.model.ids import new_id
from cellwall.runtimes.channel.copy_requests import request, request_with_files
from cellwall.runtimes.channel.replies import Reply
from cellwall.runtimes.copies import SessionFiles, SessionImage, Source
from cellwall.runtimes.jail.stored import session_files
from cellwall.runtimes.jail.stored.base import Base
from cellwall.runtimes.jail.stored.kept_bases import KeptBases
from cellwall.runtimes.jail.stored.lineages import StoredLineages
from cellwall.runtimes.jail.stored.standing import Standing, process_of, ranges_of
from cellwall.runtimes.jail.stored.variables import variables_of

if TYPE_CHECKING:
    from cellwall.model.snapshot import Scope
    from cellwall.model.template import BuiltTemplate
    from cellwall.runtimes.base import RuntimeSandbox, SandboxSpec
    from cellwall.runtimes.channel.copy_requests import Look
    from cellwall.runtimes.copies import Budget
    from cellwall.runtimes.jail.fork_servers import Entry, ForkServers
    from cellwall.runtimes.jail.sandbox import JailSandbox
    from cellwall.runtimes.jail.stored.kept_base import KeptBase
    from cellwall.runtimes.lineages import LineageFacts

_CONTEXT = "main"
_TAIL = struct.Struct("<2Q")
"""The last words of an image: number of extents, and bytes of the pages in them."""
_REGISTERS_BYTES = 64
_EXTENT_BYTES = 16
_PIPE_BYTES = 1 << 20
_LOOK_S = 0.1
_TIMEOUT_S = 60.0
_PATIENCE_S = 5.0
"""Most seconds until a session goes on whose copy was cancelled: it gets no work before."""
_MOST_LEFT = 100
"""Most things that are named as left behind, and most characters of each."""
_BOOT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_REMEDY = "what runs in it answers for its guest; make the session again"


class _NoBound:
    """Budget of a base, which a sandbox writes that has run nothing of a caller's."""

    def take(self, _count: int) -> bool:
        return True


class _Reader:
    """Takes what a sandbox writes to a pipe into a file, in a thread of its own."""

    def __init__(self, target: int, budget: Budget) -> None:
        self._target = target
        self._budget = budget
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
            if not self._budget.take(count):
                self.is_too_large = True
                return

    def stop(self) -> None:
        """Take what is in the pipe, and end, whether or not the pipe has ended."""
        self._is_over.set()

    def check(self, op: str) -> None:
        """Raise CapacityError if there was no room for what came."""
        if self.is_too_large:
            raise CapacityError(
                f"copy a session: {op}: no room after {self.size >> 20} MiB of it",
                retry_after_s=1.0,
                remedy="drop what it does not need, delete snapshots, or raise snapshots_mb",
            )
        if self.error is not None:
            raise CapacityError(
                f"copy a session: {op}: write it down: {self.error.strerror}",
                retry_after_s=60.0,
                remedy="have the operator make room in the state directory",
            )


async def _taken(
    sandbox: JailSandbox,
    op: str,
    fd: int,
    budget: Budget,
    base: Base | None = None,
    **more: bool,
) -> tuple[Reply, int]:
    """Have the guest write to `fd`; return the reply and the size of what came.

    With `base`, the operation gets it, too; `more` are fields of the request. After the reply the
    guest writes no more.
    """
    reader = _Reader(fd, budget)
    files = [reader.writing, *([] if base is None else [session_files.for_reading(base.fd)])]
    reading = reader.begin()
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reply = await request_with_files(
                sandbox.channel,
                op,
                files,
                b"" if base is None else base.maps,
                told=_looker(base, sandbox),
                is_told=base is not None and base.standing is not None,
                patience_s=_PATIENCE_S if op == "copy" else 0.0,
                context=_CONTEXT,
                open_files=sandbox.spec.limits.open_files,
                **more,
            )
    except TimeoutError:
        raise SandboxBroken(
            f"copy a session: {op}: not done within {_TIMEOUT_S:g} s",
            remedy="try again while nothing else runs in it",
        ) from None
    finally:
        reader.stop()
        await asyncio.shield(reading)
        reader.check(op)
    return reply, reader.size


@contextlib.asynccontextmanager
async def _in_time(step: str) -> AsyncIterator[None]:
    """Raise SandboxBroken if the block does not end in time."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            yield
    except TimeoutError:
        remedy = "fork it again"
        raise SandboxBroken(f"{step}: not done within {_TIMEOUT_S:g} s", remedy=remedy) from None


def _looker(base: Base | None, sandbox: JailSandbox) -> Look | None:
    standing = None if base is None else base.standing
    return standing.looker(sandbox) if isinstance(standing, Standing) else None


class Copier:
    """The copies of one jail runtime's sessions, as `SessionCopier`."""

    def __init__(
        self,
        servers: ForkServers,
        state_dir: Path,
        start: Callable[[SandboxSpec], Awaitable[JailSandbox]],
        begin: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
    ) -> None:
        """`start` starts a sandbox; `begin` starts a task that the runtime waits for at its end."""
        self._servers = servers
        self._state_dir = state_dir
        self._folders: dict[Path, nameless.Folder] = {}
        """The directories of files that were made."""
        self._start = start
        self._begin = begin
        self._ready: weakref.WeakSet[JailSandbox] = weakref.WeakSet()
        """Sandboxes that are like the base of their fork-server."""
        self._stored = StoredLineages(servers)
        self._kept = KeptBases(self._kept_base, begin)

    carries: Scope = "session"

    def spec_of(
        self, spec: SandboxSpec, files: SessionFiles, image: SessionImage, *, reseed: bool
    ) -> SandboxSpec:
        """Return the spec of a sandbox of the image's fork-server."""
        del files, reseed  # `become` needs them
        return replace(spec, lineage=image.lineage)

    async def keep_source(self, sandbox: RuntimeSandbox) -> Source:
        """Keep what images of a sandbox need: its fork-server, or the base that is kept with it.

        Raises Conflict if it was taken over and cannot be copied here.
        """
        source = _ours(sandbox)
        if source.entry is not None:
            self.keep_lineage(source.lineage)
            return Source(source.lineage)
        lineage = await self._stored.adopt_live(source)
        try:
            async with _in_time("copy a session"):
                return Source(lineage, await variables_of(source))
        except BaseException:
            self.let_lineage_go(lineage)
            raise

    def want_base(self, sandbox: JailSandbox) -> None:
        """Have a sandbox keep what copies of it need in the next server, once that is made."""
        spec, entry = sandbox.spec, sandbox.entry
        if entry is not None and spec.language == "python" and spec.start == "fork":
            self._kept.give(sandbox, {*self._stored.names, *self._servers.lineages})

    async def _kept_base(self, sandbox: JailSandbox) -> KeptBase:
        entry, lineage = _entry_of(sandbox), sandbox.lineage
        self.keep_lineage(lineage)
        try:
            base = await self._base(sandbox)
            return await self._stored.kept_base(lineage, entry, base)
        finally:
            self.let_lineage_go(lineage)

    async def wait_kept(self, within_s: float) -> None:
        """Wait until what sandboxes are to keep has been made."""
        await self._kept.wait_made(within_s)

    def close(self) -> None:
        """Close what was made for sandboxes to keep, and the directories of files."""
        self._kept.close()
        self.abandon()

    def abandon(self) -> None:
        """Close the directories of files alone: their mounts keep a file system busy."""
        for folder in self._folders.values():
            folder.close()

    def keep_lineage(self, lineage: str) -> None:
        """Keep a fork-server for images of its sessions. Raises NotFound."""
        if self._stored.keep(lineage):
            return
        self._servers.of_lineage(lineage).images += 1

    def let_lineage_go(self, lineage: str) -> None:
        """Let a fork-server end once its last sandbox has."""
        if self._stored.let_go(lineage):
            return
        for entry in self._servers.entries:
            if entry.lineage == lineage:
                entry.images -= 1
        self._begin(self._servers.close_unused())

    async def facts_of(self, lineage: str) -> LineageFacts:
        """Return what images of a lineage need in another engine."""
        return await self._stored.facts(lineage)

    async def adopt_lineage(
        self, lineage: str, template: BuiltTemplate, facts: LineageFacts
    ) -> None:
        """Know a stored lineage, and keep it."""
        await self._stored.adopt(lineage, template, facts)

    def new_files(self, folder: Path | None) -> SessionFiles:
        """Make the empty files of a session."""
        place = None if folder is None else self._folder(folder)
        memory = session_files.new_file(place)
        try:
            return SessionFiles(memory, session_files.new_file(place))
        except BaseException:
            os.close(memory)
            raise

    def _folder(self, path: Path) -> nameless.Folder:
        return self._folders.setdefault(path, nameless.Folder(path))

    async def write(
        self,
        sandbox: RuntimeSandbox,
        files: SessionFiles,
        budget: Budget,
        *,
        drop_threads: bool = False,
    ) -> SessionImage:
        """Write an idle session to files."""
        source = _ours(sandbox)
        lineage = source.lineage  # one that was taken over has none any more once it has ended
        base = await self._base(source)
        source.hold(base.fd)
        archive_bytes = 0
        memory = await _taken(source, "copy", files.memory, budget, base, drop_threads=drop_threads)
        if memory[0].header.get("has_files") is not False:
            # Afterwards: a session has one processor, so at the same time it is no sooner.
            _reply, archive_bytes = await _taken(source, "areas_get", files.archive, budget)
        return _image(lineage, files, memory, archive_bytes)

    async def source_of_files(self, sandbox: RuntimeSandbox) -> Source:
        """Return what is known of a sandbox whose files alone are written down."""
        source = _ours(sandbox)
        if source.entry is not None:
            return Source("")
        await self._servers.get(source.spec.template)  # or nothing could come back of it
        async with _in_time("copy its files"):
            return Source("", await variables_of(source))

    async def stand_still(self, sandbox: RuntimeSandbox) -> None:
        """Stop every program in it."""
        async with _in_time("copy its files"):
            await request(_ours(sandbox).channel, "hold")

    def go_on(self, sandbox: RuntimeSandbox) -> None:
        """Let its programs go on."""
        channel = _ours(sandbox).channel
        if channel.is_open:
            channel.tell("release")

    async def write_files(
        self, sandbox: RuntimeSandbox, files: SessionFiles, budget: Budget
    ) -> SessionImage:
        """Write the files of a sandbox that stands still."""
        _reply, size = await _taken(_ours(sandbox), "areas_get", files.archive, budget)
        return SessionImage("", 0, 0, 0, 0, 0, size)

    async def make_ready(self, sandbox: RuntimeSandbox) -> None:
        """Make a fresh sandbox like the base of its fork-server, which `become` needs."""
        target = _ours(sandbox)
        await self._made_like(target, await self._base(target))
        self._ready.add(target)

    async def _made_like(self, target: JailSandbox, base: Base) -> Mapping[str, Any]:
        """Make a fresh sandbox like a base, where it stands still; return what its guest says."""
        target.hold(base.fd)
        async with _in_time("make a sandbox ready"):
            reply = await request_with_files(
                target.channel,
                "make_ready",
                [session_files.for_reading(base.fd)],
                base.maps,
                told=_looker(base, target),
                is_told=base.standing is not None,
                context=_CONTEXT,
                open_files=target.spec.limits.open_files,
            )
        return reply.header

    async def become(
        self, sandbox: RuntimeSandbox, files: SessionFiles, image: SessionImage, *, reseed: bool
    ) -> None:
        """Make a fresh sandbox the session of an image, or give it its files alone."""
        target = _ours(sandbox)
        channel = target.channel
        if image.has_session:
            if target not in self._ready:
                await self.make_ready(target)
            self._ready.discard(target)
            target.hold(*files)
        async with _in_time("become a session"):
            if image.files_bytes:
                # First: the session may have files open.
                await request_with_files(
                    channel, "areas_put", [session_files.for_reading(files.archive)]
                )
            if not image.has_session:
                return
            await request_with_files(
                channel,
                "become",
                [session_files.for_reading(files.memory)],
                context=_CONTEXT,
                reseed=reseed,
                pages=image.pages,
                table=image.table,
                records=image.records,
                strings=image.strings,
                boot_id=image.boot_id,
            )

    async def _base(self, sandbox: JailSandbox) -> Base:
        """Return the base of a sandbox's fork-server; the first use of one makes it."""
        if sandbox.entry is None:
            return self._stored.base(sandbox.lineage)
        entry = sandbox.entry
        if sandbox.lineage != entry.lineage:
            return await self._stored.base_of(sandbox.lineage, entry)
        if entry.base is None or (entry.base.done() and entry.base.exception() is not None):
            plain = replace(sandbox.spec, sandbox_id=new_id(), env={}, own_env={}, volumes=())
            alone = replace(plain, contexts=(_CONTEXT,), language="python")
            spec = replace(alone, lineage=entry.lineage, has_network=False)
            entry.base = self._begin(self._made_base(spec))
        return await asyncio.shield(entry.base)

    async def _made_base(self, spec: SandboxSpec) -> Base:
        """Write a fresh sandbox's memory down as the base of its fork-server.

        It stands still from then on if that helps to find pages that are equal.
        """
        fresh, standing = await self._start(spec), None
        try:
            written = session_files.new_file(self._folder(self._state_dir))
            try:
                reply, _size = await _taken(fresh, "copy", written, _NoBound())
                base = Base(written, reply.body)
                standing = await self._standing(fresh, base)
                return base._replace(standing=standing)
            except BaseException:
                os.close(written)
                raise
        finally:
            if standing is None:
                await fresh.aclose()

    async def _standing(self, fresh: JailSandbox, base: Base) -> Standing | None:
        """Have the sandbox of a base stand still; None where page frames are not shown."""
        if not page_frames.are_shown():
            return None
        try:
            said = await self._made_like(fresh, base)
            process = process_of(fresh.pid, b"%d" % said.get("pid", 0))
            if process is None:
                return None
            try:
                frames = page_frames.Standing(process, ranges_of(base.maps))
            except BaseException:
                process.close()
                raise
            _entry_of(fresh).standing += 1
            return Standing(fresh, frames)
        except (CellwallError, OSError, ValueError, TypeError):
            return None  # copies are made without it


def _entry_of(sandbox: JailSandbox) -> Entry:
    if sandbox.entry is None:
        raise SandboxBroken("copy: it has no fork-server", remedy="please file a bug")
    return sandbox.entry


def _ours(sandbox: RuntimeSandbox) -> JailSandbox:
    from cellwall.runtimes.jail.sandbox import JailSandbox

    assert isinstance(sandbox, JailSandbox)  # noqa: S101  the engine gives each runtime its own
    return sandbox


def _image(
    lineage: str, files: SessionFiles, memory: tuple[Reply, int], archive_bytes: int
) -> SessionImage:
    """Return the sizes of an image, compared with the size of its file. Raises SandboxBroken."""
    header, size = memory[0].header, memory[1]
    records, strings = header.get("records"), header.get("strings")
    if type(records) is not int or type(strings) is not int or size < _TAIL.size:
        raise SandboxBroken("copy a session: the guest's answer has no sizes", remedy=_REMEDY)
    count, pages = _TAIL.unpack(os.pread(files.memory, _TAIL.size, size - _TAIL.size))
    parts = (pages, count * _EXTENT_BYTES, records, strings)
    if sum(parts) + _REGISTERS_BYTES + _TAIL.size != size or min(parts) < 0:
        raise SandboxBroken(
            "copy a session: its image has not the size that it says", remedy=_REMEDY
        )
    left = header.get("left")
    told = [each for each in left if isinstance(each, str)] if isinstance(left, list) else []
    kept = tuple(each[:_MOST_LEFT] for each in told[:_MOST_LEFT])
    found = header.get("boot_id")
    boot_id = found if isinstance(found, str) and _BOOT_ID.fullmatch(found) else ""
    return SessionImage(lineage, *parts, size, archive_bytes, kept, boot_id=boot_id)

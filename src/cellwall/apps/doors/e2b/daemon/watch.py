"""Watches: changes of a directory, as a stream or kept for a client that fetches them.

The invariant: a change is delivered, or the client gets an error that says that changes were lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import time
from collections.abc import AsyncGenerator, Coroutine
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.e2b.daemon.connect import messages
from cellwall.apps.doors.e2b.daemon.connect.connect_codec import ConnectError, invalid
from cellwall.apps.doors.e2b.daemon.entries import described
from cellwall.apps.doors.e2b.daemon.faults import connect_error
from cellwall.apps.doors.e2b.daemon.users import named, users
from cellwall.model.errors import FileError, SandboxUnavailable
from cellwall.model.ids import new_id

if TYPE_CHECKING:
    from cellwall.apps.doors.e2b.daemon.calls import Stream
    from cellwall.apps.doors.e2b.daemon.connect.schema import Value
    from cellwall.apps.doors.e2b.daemon.users import Users
    from cellwall.apps.doors.e2b.seat import Seat
    from cellwall.client.files import Files
    from cellwall.client.watches import Watch
    from cellwall.model.files import Change

_MOST_WATCHERS = 16
"""Watchers of one sandbox that clients fetch from, ended ones too."""
_MOST_ENDED = 64
"""Ended watchers of all sandboxes that wait for their clients; the oldest go first."""
_MOST_KEPT, _MOST_CHARACTERS = 4096, 1 << 21
"""Changes that wait for a client; with more, the watcher ends with an error."""
_FIRST_S, _NEXT_S, _MOST_S = 0.1, 0.02, 2.0
"""Seconds that a client's request waits for a first change, then for each further one, and in all:
a client that has just changed a file asks before the change has come here."""
_TURNS = 10
"""Times that an answer of the sandbox takes, for which a first change is waited for if that is
more: on a machine with much to do a change takes longer, too."""
_FORGOTTEN_S = 600.0
"""Seconds after which a watcher that no client asks ends."""
_KINDS = {"created": messages.CREATE, "modified": messages.WRITE, "removed": messages.REMOVE}
_NEW_FILE = (messages.CREATE, messages.CHMOD, messages.WRITE)
"""What E2B's daemon tells of a file that it has written; here a new file is one change."""


class Watching:
    """Changes of one directory in the protocol's words."""

    def __init__(self, files: Files, path: str, known: Users, asked: Value) -> None:
        """Nothing is watched before `start`."""
        self._files = files
        self._path = path
        self._users = known
        self._with_entries = bool(asked.get("include_entry"))
        self._watch: Watch = files.watch(path, recursive=bool(asked.get("recursive")))

    async def start(self) -> None:
        """Watch from now on. Raises ConnectError."""
        try:
            await self._watch.start()
        except FileError as error:
            if error.reason == "not_directory":
                raise invalid(f"path is not a directory: {self._path}") from None
            if error.reason == "not_found":
                raise ConnectError("not_found", f"path not found: {self._path}") from None
            raise

    async def changes(self) -> AsyncGenerator[Value, None]:
        """Yield changes until the directory is gone.

        Raises ConnectError if some are lost, and SandboxUnavailable at the sandbox's end.
        """
        async for change in self._watch:
            if change.kind == "overflow":
                raise ConnectError(
                    "data_loss", f"{change.path}: changes came faster than they were reported"
                )
            if change.path == ".":
                return
            for each in self._shown(change):
                if self._with_entries and each["type"] in (messages.CREATE, messages.WRITE):
                    await self._describe(each)
                yield each
        raise SandboxUnavailable(
            f"watch {self._path!r}: it ended with its sandbox, or when that was hibernated",
            remedy="watch again",
        )

    def _shown(self, change: Change) -> list[Value]:
        if change.kind == "created" and not change.is_directory:
            return [{"name": change.path, "type": each} for each in _NEW_FILE]
        if change.kind != "moved":
            return [{"name": change.path, "type": _KINDS[change.kind]}]
        moved: list[Value] = [{"name": change.path, "type": messages.RENAME}]
        if change.target is not None:
            moved.append({"name": change.target, "type": messages.CREATE})
        return moved

    async def _describe(self, shown: Value) -> None:
        with contextlib.suppress(FileError):  # it is gone already
            entry = await self._files.stat(posixpath.join(self._path, shown["name"]))
            shown["entry"] = await described(self._files, entry, self._users)

    async def turn_s(self) -> float:
        """Return the seconds that the sandbox takes to answer now."""
        now = asyncio.get_running_loop().time
        began = now()
        with contextlib.suppress(FileError, SandboxUnavailable):
            await self._files.stat(self._path)
        return now() - began

    async def aclose(self) -> None:
        """Stop watching."""
        await self._watch.aclose()


async def _watching(seat: Seat, asked: Value) -> Watching:
    known = await users(seat)
    path = known.account(named(seat.request.headers)).path(asked.get("path", ""))
    made = Watching(seat.sandbox.files, path, known, asked)
    try:
        await made.start()
    except BaseException:
        await made.aclose()
        raise
    return made


async def watch_dir(seat: Seat, asked: Value, stream: Stream) -> None:
    """Answer WatchDir: changes as they come."""
    watching = await _watching(seat, asked)
    try:
        await stream.send({"start": {}})
        events = ({"filesystem": change} async for change in watching.changes())
        await stream.pass_on(events, {"keepalive": {}})
    finally:
        await watching.aclose()


class _Watcher:
    """One watcher that a client fetches from."""

    def __init__(self, sandbox_id: str, watching: Watching) -> None:
        self.sandbox_id = sandbox_id
        self.asked_at = time.monotonic()
        self._watching = watching
        self._kept: list[Value] = []
        self._characters = 0
        self._fault: ConnectError | None = None
        self._has_more = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def collect(self) -> None:
        """Keep changes until the directory is gone, or the client has forgotten this watcher."""
        try:
            async with contextlib.aclosing(self._watching.changes()) as changes:
                async for change in changes:
                    self._keep(change)
        except Exception as error:  # noqa: BLE001 - the client gets it with its next request
            self._fault = connect_error(error)
        finally:
            self._has_more.set()
            await self._watching.aclose()

    def _keep(self, change: Value) -> None:
        self._characters += len(str(change))
        if len(self._kept) >= _MOST_KEPT or self._characters > _MOST_CHARACTERS:
            raise ConnectError("data_loss", f"{len(self._kept)} changes were not fetched in time")
        self._kept.append(change)
        self._has_more.set()

    async def wait_quiet(self) -> None:
        """Wait until what has changed by now has come, or it has ended."""
        turn_s = 0.0 if self._kept or self.has_ended else await self._watching.turn_s()
        wait_s = _NEXT_S if self._kept else max(_FIRST_S, _TURNS * turn_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MOST_S):
                while not self.has_ended:
                    self._has_more.clear()
                    async with asyncio.timeout(wait_s):
                        await self._has_more.wait()
                    wait_s = _NEXT_S

    def taken(self) -> list[Value]:
        """Return the changes since the last call. Raises ConnectError if some are lost."""
        self.asked_at = time.monotonic()
        if not self._kept and self._fault is not None:
            raise self._fault
        found, self._kept, self._characters = self._kept, [], 0
        return found

    @property
    def has_ended(self) -> bool:
        """Whether it watches no more."""
        return self.task is not None and self.task.done()

    @property
    def is_forgotten(self) -> bool:
        """Whether no client has asked for long."""
        return time.monotonic() - self.asked_at > _FORGOTTEN_S


class Watchers:
    """Watchers of all sandboxes, which clients fetch from."""

    def __init__(self) -> None:
        self._all: dict[str, _Watcher] = {}

    async def create(self, seat: Seat, asked: Value) -> Value:
        """Answer CreateWatcher."""
        self._forget()
        own = [each for each in self._all.values() if each.sandbox_id == seat.sandbox.id]
        if len(own) >= _MOST_WATCHERS:
            raise ConnectError(
                "resource_exhausted", f"a sandbox may have {_MOST_WATCHERS} watchers; remove one"
            )
        watcher = _Watcher(seat.sandbox.id, await _watching(seat, asked))
        name = new_id()
        self._all[name] = watcher
        watcher.task = _spawned(seat, watcher.collect())
        return {"watcher_id": name}

    async def events(self, seat: Seat, asked: Value) -> Value:
        """Answer GetWatcherEvents."""
        watcher = self._found(seat, asked)
        await watcher.wait_quiet()
        return {"events": watcher.taken()}

    async def remove(self, seat: Seat, asked: Value) -> Value:
        """Answer RemoveWatcher."""
        self._end(self._found(seat, asked))
        del self._all[asked["watcher_id"]]
        return {}

    def _found(self, seat: Seat, asked: Value) -> _Watcher:
        name = asked.get("watcher_id", "")
        found = self._all.get(name)
        if found is None or found.sandbox_id != seat.sandbox.id:
            raise ConnectError("not_found", f"watcher with id {name[:64]} not found")
        return found

    def _forget(self) -> None:
        for name, each in list(self._all.items()):
            if each.is_forgotten:
                self._end(each)
                del self._all[name]
        ended = [name for name, each in self._all.items() if each.has_ended]
        for name in ended[:-_MOST_ENDED]:
            del self._all[name]

    @staticmethod
    def _end(watcher: _Watcher) -> None:
        if watcher.task is not None:
            watcher.task.cancel()

    async def aclose(self) -> None:
        """End all of them."""
        tasks = [each.task for each in self._all.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._all.clear()


def _spawned(seat: Seat, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return seat.request.state.tasks.spawn(work)

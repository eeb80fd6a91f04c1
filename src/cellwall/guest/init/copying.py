"""Init's part in copying a context: ask it, list what it has to walk, report the end.

`init/main.py` owns the table and reports exits to it; `context/copies.py` is the other side. Init
believes nothing that the context says about memory or files: it reads /proc of the context, which
stands still. What it makes of that is walked by the context, or by a clone of it if there is much
to write, or by the context that becomes a copy, with their rights and no others.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from cellwall.guest.channel.errors import Refusal, refusal_from
from cellwall.guest.channel.frames import encode
from cellwall.guest.channel.init_link import MOST_FILES
from cellwall.guest.process import boot_id, processes
from cellwall.guest.transplant import lists, walker
from cellwall.guest.transplant.lists import OpenFile, Outline, Pipes, Sizes, Source
from cellwall.guest.transplant.memory_map import Base, Change, Unlike

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import FileIO

    from cellwall.guest.channel.channel import Channel
    from cellwall.guest.channel.frames import Header
    from cellwall.guest.channel.requests import Request
    from cellwall.guest.init.context_connections import ContextConnection
    from cellwall.guest.init.contexts import Context
    from cellwall.guest.process.processes import Exit

_MOST_MAPS_BYTES = 4 << 20
_MOST_NUMBER = 2**20
_SAID = ("files", "link", "own", "tid_address", "pid", "threads")
"""What a source says of itself before it stands still."""
_MADE_ANEW = os.O_CREAT | os.O_EXCL | os.O_TRUNC
_MISREAD = (Unlike, OSError, ValueError, TypeError, KeyError, IndexError)
"""What making a list raises: the numbers are the context's, and what /proc says can change if that
does not stand still."""
_FILE, _BASE, _LINK = range(3)
"""Order of the descriptors of a process that becomes a copy, below the most that it may have."""


class Copying(NamedTuple):
    """One request, to copy a context or to make it one that can become a copy."""

    request: int
    context: Context
    is_source: bool
    base: Base | None
    """What the image is compared with; None: the context itself is written down as a base."""
    numbers: list[int]
    """Numbers of a copy's descriptors while it becomes one: the image, the base, its socket."""
    is_told: bool
    """Whether the host says which pages are the base's, once it is told that the context stands."""
    said: dict[str, Any]
    """What the source said of itself, and what init has made of it."""
    standing: list[ContextConnection]
    """The connection of the source that stands still, or of its clone, once it has one."""

    @property
    def alone(self) -> int:
        """Pid of the process without threads that stands in for the source; 0: there is none."""
        pid = self.said.get("pid")
        return pid if type(pid) is int and pid > 1 else 0


class Ready(NamedTuple):
    """A context that is like the base, and stands still until it becomes a copy."""

    pipes: Pipes
    free: int
    """Its lowest number of a descriptor that is not in use."""
    becoming: list[int]
    """The request that makes it a copy, once there is one."""


class Copies:
    """All copying that is under way."""

    def __init__(self, channel: Channel, config: dict[str, Any]) -> None:
        self._channel = channel
        self._config = config
        self._under_way: list[Copying] = []
        self._clones: dict[int, Copying] = {}
        self._ready: dict[int, Ready] = {}
        """By the pid of the context."""

    def begin(self, request: Request, find: Callable[[str], Context]) -> None:
        """Have an idle context copied (`copy`), made like the base (`make_ready`), or an image.

        The last one (`become`) only after the second. For the first two, `equal` says which pages
        are the base's, once the context stands still.
        """
        if request.op == "equal":
            self._go_on(request)
            return
        files = self._channel.take_files(request.integer("files", low=0, high=MOST_FILES))
        try:
            context = find(request.text("context"))
            if request.op == "become":
                self._become(request, context, files)
                return
            copying = self._begun(request, context, files)
        finally:
            for number in files:
                os.close(number)
        self._under_way.append(copying)
        copying.context.copying = copying

    def _begun(self, request: Request, context: Context, files: list[int]) -> Copying:
        is_source = request.op == "copy"
        self._check(request, context, files)
        most = request.integer("open_files", low=16, high=_MOST_NUMBER)
        numbers = [most - 1 - n for n in (_FILE, _BASE, _LINK)]
        is_told = request.flag("is_told")
        asked: Header = {"op": request.op, "request": request.id, "numbers": numbers}
        asked["drop_threads"] = request.flag("drop_threads")
        connection = context.idle_connection
        assert connection is not None  # noqa: S101  for the type checker only
        base = Base(request.body) if request.body else None
        connection.send(asked)
        if not connection.is_sent:
            raise Refusal("busy", f"{request.op}: the context does not read; try again")
        _hand_over(request.op, context, connection, files)
        return Copying(request.id, context, is_source, base, numbers, is_told, {}, [])

    def _check(self, request: Request, context: Context, files: list[int]) -> None:
        op = request.op
        if not walker.IS_KNOWN or self._config.get("is_image") or context.language != "python":
            raise Refusal(
                "unsupported", f"{op}: only contexts in Python of a template can be copied"
            )
        if context.state != "idle" or context.copying is not None:
            raise Refusal("busy", f"{op}: context {context.name!r} is {context.state}")
        if len(files) != (2 if request.body and op == "copy" else 1):
            raise Refusal("invalid", f"{op}: {len(files)} descriptors came with it")
        threads = len(_threads_of(context.pid))
        if op == "copy" and threads > 1 and not request.flag("drop_threads"):
            raise Refusal(
                "unsupported",
                f"copy: {context.name!r} has {threads - 1} threads beside its own; end them, or "
                "ask for a copy without them (threads='drop')",
            )

    # -- what contexts say ---------------------------------------------------------------------

    def hear(self, context: Context, connection: ContextConnection, header: Header) -> bool:
        """Handle a message about copying; return False if it comes out of turn."""
        copying, event = context.copying, header.get("ev")
        number = header.get("request")
        if copying is None or (copying.is_source and number != copying.request):
            return False
        if event == "copied" and copying.is_source and connection is context.idle_connection:
            return self._on_copied(copying, header)
        if event == "copy" and copying.is_source and not copying.standing:
            context.connections.remove(connection)
            copying.standing.append(connection)
            copying.said.update((name, header.get(name)) for name in _SAID)
            if "refusal" in copying.said:
                connection.close()  # so that it goes on
            elif not copying.alone or "is_back" in copying.said:
                self._stands(copying, self._outline, self._write_down)
            return True
        is_target = not copying.is_source and connection is context.idle_connection
        return is_target and self._hear_target(context, copying, event)

    def _hear_target(self, context: Context, copying: Copying, event: object) -> bool:
        if event == "parked" and context.pid not in self._ready and not copying.said:
            copying.said["is_parked"] = True
            self._stands(copying, self._like_outline, self._make_like)
            return True
        if event == "like" and copying in self._under_way and context.pid in self._ready:
            self._under_way.remove(copying)  # its context belongs to it until it is a copy
            self._channel.send({"ev": "reply", "id": copying.request, "pid": context.pid})
            return True
        return False

    def _stands(
        self,
        copying: Copying,
        prepare: Callable[[Copying], object],
        go_on: Callable[[Copying, Any], None],
    ) -> None:
        """Go on with a context that stands still; first tell the host if it wants to look.

        What `prepare` returns is made while the host looks.
        """
        if copying.is_told:
            pid = b"%d" % (copying.alone or copying.context.pid)
            self._channel.send({"ev": "chunk", "id": copying.request}, pid)
            self._channel.flush()
        try:
            prepared = prepare(copying)
        except _MISREAD as error:
            self._refuse_list(copying, error)
            return
        if copying.is_told:
            copying.said["go_on"] = lambda: go_on(copying, prepared)
        else:
            go_on(copying, prepared)

    def _refuse_list(self, copying: Copying, error: Exception) -> None:
        """Give up a context of which no list can be made."""
        code, why = "internal", f"it cannot be read: {error}"
        if isinstance(error, Unlike):
            code, why = "unsupported", str(error)
        if copying.is_source:
            self._give_up(copying, Refusal(code, f"copy: {why}"))
        else:
            self._fail(copying, Refusal("unsupported", f"make_ready: {error}"))
            copying.context.kill()

    def _go_on(self, request: Request) -> None:
        """Take from the host which pages are the base's."""
        for copying in self._under_way:
            if copying.request == request.id and "go_on" in copying.said:
                go_on = copying.said.pop("go_on")
                if "refusal" in copying.said:
                    return
                if copying.base is not None:
                    copying.base.take_equal(request.body)
                go_on()
                return

    def _on_copied(self, copying: Copying, header: Header) -> bool:
        """Note that the source goes on: all is written, or its clone has still to do it."""
        if "is_back" in copying.said:
            return False
        copying.said["is_back"] = True
        pid, message = header.get("pid"), copying.said.get("message")
        if type(pid) is int and pid > 1:
            self._clones[pid] = copying
        if header.get("held"):
            held = str(header["held"])[:200]
            copying.said.setdefault("refusal", Refusal("busy", f"copy: {held}"))
        if "refusal" in copying.said:
            self._give_up(copying, copying.said["refusal"])
        elif header.get("held") is not None:
            if copying.alone == pid:  # else it has still to say that it stands
                self._stands(copying, self._outline, self._write_down)
        elif type(pid) is not int or message is None or (pid > 1) == (message == b""):
            why = str(header.get("why", "it did not stand still"))
            self._give_up(copying, Refusal("internal", f"copy: {why}"))
        elif pid > 1:
            copying.standing[0].send_raw(message)
        else:
            self._finish(copying)
        return True

    def _write_down(self, copying: Copying, outline: Outline | str) -> None:
        """Tell the source what to write, which stands still."""
        try:
            message, answer, body = self._listed(copying, outline)
        except _MISREAD as error:
            self._refuse_list(copying, error)
            return
        copying.said.update(answer=answer, body=body, message=b"")
        if copying.said.get("is_for_clone") and not copying.alone:
            copying.said["message"] = message
            message = lists.clone_message(int(copying.said["link"]))
        copying.standing[0].send_raw(message)

    def _listed(self, copying: Copying, outline: Outline | str) -> tuple[bytes, Header, bytes]:
        """Return what the source is told, the host's answer, and its body."""
        said, files = copying.said, [int(each) for each in copying.said["files"]]
        if isinstance(outline, str):
            pipes = Pipes(int(said["link"]), files[0], -1)
            with _pagemap_of(copying) as pagemap:
                message, data = lists.base_message(outline, pagemap.fileno(), pipes)
            return message, {}, data
        assert copying.base is not None  # noqa: S101  for the type checker only
        pipes = Pipes(int(said["link"]), *files)
        with _pagemap_of(copying) as pagemap:
            pages = pagemap.fileno()
            alone = bool(copying.alone)
            made = lists.image_message(outline, copying.base, pipes, pages, is_alone=alone)
        said["is_for_clone"] = made.is_for_clone
        answer: Header = {"records": made.records, "strings": made.strings}
        return made.message, {**answer, **said["rest"]}, b""

    def _outline(self, copying: Copying) -> Outline | str:
        """Return what can be said of a source before its pages are looked at.

        Its map only, if it is written down as a base. The rest of the host's answer is kept.
        """
        said, pid = copying.said, copying.alone or copying.context.pid
        maps = _read(f"/proc/{pid}/maps").decode("utf-8", "surrogateescape")
        if copying.base is None:
            return maps
        own = {int(each) for each in (*said["files"], said["link"], *said["own"])}
        opened, left = _files_of(pid, own, copying.numbers)
        source = Source(
            maps=maps,
            files=opened,
            directory=os.readlink(f"/proc/{pid}/cwd"),
            mask=_umask_of(pid),
            tid_address=int(said["tid_address"]),
        )
        made = lists.outline(source, copying.base, copying.numbers[_FILE])
        left += self._others(copying.context)
        left += _threads_left(copying.context.pid, said.get("threads") or [])
        from cellwall.guest.files.areas import are_empty  # only a source needs it

        has_files = not are_empty(str(self._config["home"]))
        boot = boot_id.known(self._config)
        said["rest"] = {"left": left, "boot_id": boot, "has_files": has_files}
        return made

    def _others(self, context: Context) -> list[str]:
        """Return what else runs in the sandbox, and is not copied."""
        names = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        count = len(names - {1, os.getpid(), context.pid, *self._clones})
        return [f"other processes: {count}"] if count else []

    def _like_outline(self, copying: Copying) -> Change:
        assert copying.base  # noqa: S101  for the type checker only
        maps = _read(f"/proc/{copying.context.pid}/maps").decode("utf-8", "surrogateescape")
        return lists.change_to(copying.base, maps)

    def _make_like(self, copying: Copying, change: Change) -> None:
        """Tell a context that stands still how to be like the base."""
        assert copying.base  # noqa: S101  for the type checker only
        pid, numbers = copying.context.pid, copying.numbers
        pipes = Pipes(numbers[_LINK], numbers[_FILE], numbers[_BASE])
        told = encode({"ev": "like"})
        try:
            with _pagemap_of(copying) as pagemap:
                pages = pagemap.fileno()
                message = lists.like_message(change, pages, copying.base, pipes, told)
            self._ready[pid] = Ready(pipes, _lowest_free(pid), [])
        except _MISREAD as error:
            self._refuse_list(copying, error)
            return
        connection = copying.context.idle_connection
        assert connection is not None  # noqa: S101  for the type checker only
        connection.send_raw(message)

    def _become(self, request: Request, context: Context, files: list[int]) -> None:
        """Tell a context that is like the base how to become the copy."""
        ready, copying = self._ready.get(context.pid), context.copying
        if ready is None or ready.becoming or copying is None or copying in self._under_way:
            raise Refusal("invalid", f"become: context {context.name!r} is not ready for it")
        if len(files) != 1:
            raise Refusal("invalid", f"become: {len(files)} descriptors came with it")
        connection = context.idle_connection
        assert connection is not None  # noqa: S101  for the type checker only
        sizes, reseed = _sizes_of(request), request.flag("reseed", default=True)
        try:
            message = lists.become_message(ready.pipes, ready.free, sizes, reseed=reseed)
        except Unlike as error:
            raise Refusal("unsupported", f"become: {error}") from None
        boot_id.take(self._config, request.text("boot_id", ""))
        connection.send_raw(message)
        if not connection.is_sent:
            context.kill()  # it has a part of a list, and would take the next one for the rest
            raise Refusal("busy", "become: the context does not read")
        _hand_over(request.op, context, connection, files)
        ready.becoming.append(request.id)

    def note_idle(self, context: Context) -> None:
        """Report that a context which became a copy waits for work."""
        copying, ready = context.copying, self._ready.get(context.pid)
        if copying is not None and ready is not None and ready.becoming:
            self._done(copying)
            del self._ready[context.pid]
            if ready.becoming[0]:
                self._channel.send({"ev": "reply", "id": ready.becoming[0], "pid": context.pid})

    # -- its end -------------------------------------------------------------------------------

    def on_exit(self, pid: int, end: Exit) -> bool:
        """Handle the end of a process; return True if it was a clone."""
        copying = self._clones.pop(pid, None)
        if copying is None:
            return False
        if copying in self._under_way:
            if end.exit_code or end.signal:
                how = f"signal {end.signal}" if end.signal else f"exit code {end.exit_code}"
                self._fail(copying, Refusal("internal", f"copy: its clone ended by {how}"))
            else:
                self._finish(copying)
        return True

    def _finish(self, copying: Copying) -> None:
        """Report that all is written."""
        self._done(copying)
        for connection in copying.standing:
            connection.close()
        fields = {"ev": "reply", "id": copying.request, **copying.said["answer"]}
        self._channel.send(fields, copying.said["body"])

    def on_context_exit(self, context: Context) -> None:
        """Report the end of a context that was to be copied, or to become a copy."""
        refusal = Refusal("no_context", "copy: the context has ended")
        ready = self._ready.pop(context.pid, None)
        if ready is not None and ready.becoming:
            self._refuse(ready.becoming[0], refusal)
        if context.copying is not None and context.copying in self._under_way:
            context.copying.said["is_back"] = True
            self._give_up(context.copying, refusal)

    def cancel(self, request: int) -> None:
        """End a request that the host no longer waits for."""
        for copying in list(self._under_way):
            if copying.request == request:
                self._give_up(copying, Refusal("cancelled", "copy: it was cancelled"))
        for ready in self._ready.values():
            if request in ready.becoming:
                ready.becoming[:] = [0]  # nothing waits for its end any more
                self._refuse(request, Refusal("cancelled", "become: it was cancelled"))

    def cancel_all(self) -> None:
        """End every request of a host that is gone."""
        for copying in list(self._under_way):
            self._give_up(copying, Refusal("cancelled", "copy: its host is gone"))

    def _give_up(self, copying: Copying, refusal: Refusal) -> None:
        """Refuse, once the source goes on: it gets no other work before.

        It goes on when its connection is closed, and when the host has closed its pipe.
        """
        for connection in copying.standing:
            connection.close()
        if copying.is_source and "is_back" not in copying.said:
            copying.said.setdefault("refusal", refusal)
            return
        for pid, each in self._clones.items():
            if each is copying:
                processes.signal_process(pid, 9)
        self._fail(copying, refusal)

    def _fail(self, copying: Copying, refusal: Refusal) -> None:
        self._done(copying)
        self._refuse(copying.request, refusal)

    def _refuse(self, request: int, refusal: Refusal) -> None:
        self._channel.send(
            {
                "ev": "fail",
                "id": request,
                "code": refusal.code,
                "message": refusal.message[:2000],
            }
        )

    def _done(self, copying: Copying) -> None:
        if copying in self._under_way:
            self._under_way.remove(copying)
        if copying.context.copying is copying:
            copying.context.copying = None


def _pagemap_of(copying: Copying) -> FileIO:
    """Open the page map of the process that stands still. Raises OSError."""
    pid = copying.alone or copying.context.pid
    return open(f"/proc/{pid}/pagemap", "rb", buffering=0)


def _hand_over(op: str, context: Context, connection: ContextConnection, files: list[int]) -> None:
    """Send descriptors to a context that waits for them."""
    try:
        connection.send_files(files)
    except OSError as error:
        context.kill()  # it waits for what will not come
        raise refusal_from(error, f"{op}: hand over its files") from None


def _lowest_free(pid: int) -> int:
    """Return the lowest number of a descriptor that a process does not use."""
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    return next(number for number in range(len(used) + 1) if number not in used)


def _sizes_of(request: Request) -> Sizes:
    names = ("pages", "table", "records", "strings")
    return Sizes(*(request.integer(name, low=0, high=2**40) for name in names))


def _threads_of(pid: int) -> list[int]:
    """Return the numbers of a process's threads."""
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return [pid]


def _threads_left(pid: int, told: list[list[Any]]) -> list[str]:
    """Name the threads beside a context's own; `told` is what it says of those it knows."""
    known = {int(number): (str(name), bool(daemon)) for number, name, daemon in told}
    left = []
    for number in _threads_of(pid):
        name, is_daemon = known.get(number, ("", False))
        if number != pid and number in known:
            left.append(f"thread {name[:60]!r}{' (daemon)' if is_daemon else ''}")
        elif number != pid:
            with contextlib.suppress(OSError):  # it has ended
                name = _read(f"/proc/{pid}/task/{number}/comm").decode("utf-8", "replace")
                left.append(f"thread {name.strip()!r} of a library")
    return left


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read(_MOST_MAPS_BYTES)
    if len(data) == _MOST_MAPS_BYTES:
        raise Unlike("it has too many mappings")
    return data


def _umask_of(pid: int) -> int:
    for line in _read(f"/proc/{pid}/status").decode("ascii", "replace").splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022


def _files_of(pid: int, own: set[int], taken: list[int]) -> tuple[list[OpenFile], list[str]]:
    """Return the open files of a process that its copy gets, and what of them it does not get.

    Raises Unlike for a file that could not be opened again.
    """
    found: list[OpenFile] = []
    left: list[str] = []
    streams = {_identity(pid, number): number for number in (1, 2)}
    for number in sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd")):
        if number in own or number < 3:
            continue
        if number in taken:
            raise Unlike(f"its descriptor {number} is one of the highest; close some files")
        path = os.readlink(f"/proc/{pid}/fd/{number}")
        stream = streams.get(_identity(pid, number), -1)
        if stream < 0 and not path.startswith("/"):
            left.append(f"descriptor {number} ({path.partition(':')[0]})")
            # The number stays in use: the object that has it closes it, and must close nothing
            # else.
            found.append(OpenFile(number, os.devnull, os.O_RDWR | os.O_CLOEXEC, 0))
            continue
        if path.endswith(" (deleted)") and stream < 0:
            raise Unlike(f"it has an open file that was removed: {path[: -len(' (deleted)')]}")
        position, flags = _file_state(pid, number)
        found.append(OpenFile(number, path, flags & ~_MADE_ANEW, position, stream))
    return found, left


def _identity(pid: int, number: int) -> tuple[int, int] | None:
    try:
        found = os.stat(f"/proc/{pid}/fd/{number}")
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISFIFO(found.st_mode) else None


def _file_state(pid: int, number: int) -> tuple[int, int]:
    """Return position and flags of an open file, proc_pid_fdinfo(5)."""
    fields = dict(
        line.split(":", 1)
        for line in _read(f"/proc/{pid}/fdinfo/{number}").decode("ascii", "replace").splitlines()
        if ":" in line
    )
    return int(fields["pos"]), int(fields["flags"], 8)

"""Init: the first process of every sandbox; serves the host, owns everything that runs inside.

The jail and the process runtime call `main` in a process that is already locked down. Init never
runs caller code itself (contexts and commands do), and it does not judge how something ended: it
reports the kernel's evidence and the host decides.

Init must survive everything inside (a broken context dies, a bad request is refused) and must not
survive the host: the end of the channel is the end of the sandbox.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import signal
import stat
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from cellwall.guest.channel.channel import Channel, HostGone
from cellwall.guest.channel.errors import Refusal, refusal_from
from cellwall.guest.channel.frames import FrameError, Header
from cellwall.guest.channel.handshake import PROTOCOL, USUAL_CONTEXTS, ready
from cellwall.guest.channel.init_link import MOST_FILES, Link
from cellwall.guest.channel.loop import READ, Loop
from cellwall.guest.channel.pipes import Sinks
from cellwall.guest.channel.requests import Request
from cellwall.guest.channel.standby import Standby
from cellwall.guest.channel.streams import MOST_GRANTED_BYTES
from cellwall.guest.files import inotify, snapshot, trees
from cellwall.guest.files.child_tasks import Workers
from cellwall.guest.files.files import Files
from cellwall.guest.init.commands import Command, Commands
from cellwall.guest.init.contexts import ContextJob, Contexts
from cellwall.guest.init.families import Families
from cellwall.guest.init.first_program import nothing
from cellwall.guest.init.ports import Connection, Ports
from cellwall.guest.process import processes

if TYPE_CHECKING:
    from cellwall.guest.channel.standing_by import StandingBy
    from cellwall.guest.warm.fast_start import Handoff

_MOST_SIGNAL = 64
_MOST_SCANNED = 1_000_000
_EXIT_HOST_GONE = 0
_EXIT_BROKEN = 70
_CONTEXT_MODULE = "cellwall.guest.context.main"
_prepared: list[Init] = []


class Init:
    """The table of operations, and the objects they operate on."""

    def __init__(
        self,
        run_context: Callable[[Link, dict[str, Any]], Any],
    ) -> None:
        """Build all that does not depend on the sandbox; no descriptor is taken before `run`."""
        self._config: dict[str, Any] = {}
        self._channel = Channel(self._on_frame)
        self._loop = Loop(self._channel.flush)
        sinks = Sinks()
        self._families = Families(self._loop)
        self._contexts = Contexts(
            self._loop, self._channel, sinks, self._config, run_context, self._families
        )
        self._contexts.on_ready = self._on_context_ready
        self._commands = Commands(self._loop, self._channel, sinks, self._config, self._families)
        self._workers = Workers(self._loop, self._channel)
        self._files = Files(self._config)
        self._ports: Ports | None = None
        self._standing_by: StandingBy | None = None
        self._standby = Standby(self._loop, self._on_taken)
        self._lost = (0, 0)
        """Bytes that the host before took, and those that it did not take."""
        self._awaited: list[str] = []
        self._operations = self._table()

    def _table(self) -> dict[str, Callable[[Request], tuple[Header, bytes] | None]]:
        """Return each operation; a returned header and body are sent at once as `reply`."""
        files = self._files
        return {
            "execute": self._contexts.execute,
            "start": self._commands.start,
            "stdin": self._stdin,
            "stdin_close": self._stdin_close,
            "resize": self._resize,
            "credit": self._credit,
            "signal": self._signal,
            "interrupt": self._interrupt,
            "end": self._end,
            "thin": self._thin,
            "shed": self._shed,
            "kin": self._kin,
            "spent": self._spent,
            "answer": self._contexts.answer,
            "context_create": self._context_create,
            "context_close": self._context_close,
            "context_list": self._context_list,
            "copy": self._contexts.copy,
            "make_ready": self._contexts.copy,
            "become": self._contexts.copy,
            "equal": self._contexts.copy,
            "expect_files": self._expect_files,
            "file_read": files.read,
            "file_write": self._file_write,
            "file_stat": files.stat,
            "file_list": files.list,
            "file_mkdir": files.mkdir,
            "file_move": self._move,
            "file_remove": self._remove,
            "tree_put": self._tree_put,
            "tree_get": self._tree_get,
            "root_get": self._root_get,
            "areas_get": self._areas_get,
            "areas_put": self._areas_put,
            "tree_scan": self._tree_scan,
            "tree_restore": self._tree_restore,
            "stand_by": self._stand_by,
            "wake": self._wake,
            "hold": self._hold,
            "release": self._release,
            "port_connect": self._port_connect,
            "port_list": self._port_list,
            "close": self._close,
            "watch": self._watch,
            "chunk": self._chunk,
            "chunk_end": self._chunk_end,
            "take_over": self._take_over,
            "environment": self._environment,
            "take_on": self._commands.take_on,
            "shutdown": self._shutdown,
        }

    def run(
        self,
        channel_fd: int,
        config: dict[str, Any],
        handoff: Handoff | None = None,
        on_forked: Callable[[], None] = nothing,
    ) -> None:
        """Own `channel_fd`, fork the named contexts and serve until the host is gone.

        `handoff` is what `fast_start` already did of that; `on_forked` is called once the contexts
        are forked.
        """
        self._config.update(config)
        self._wakeup_r = processes.await_children() if handoff is None else handoff.wakeup_fd
        self._contexts.open(None if handoff is None else handoff.listener)
        names = config.get("contexts", ())
        program = None if handoff is None else handoff.program
        if program is None and self._contexts.may_run_first and list(names) == USUAL_CONTEXTS:
            program = self._contexts.run_first(channel_fd, self._wakeup_r, on_forked)
        self._loop.open()
        self._channel.open(channel_fd, self._loop, config.get("out_fd", -1))
        self._loop.watch(self._wakeup_r, READ, self._on_child)
        self._contexts.watch()
        if (standby := config.get("standby_fd", -1)) >= 0:
            self._standby.open(standby)
        if program is not None:
            self._contexts.take_over(program)
            self._on_child(0)
            self._channel.take_over(program.unread, program.unsent)
        else:
            self._create(names)
            on_forked()
            if not self._awaited:
                self._announce()
        self._loop.run()

    def _create(self, names: Sequence[str]) -> None:
        self._awaited += [name for name in names if self._contexts.begin(name)]

    def _on_context_ready(self, name: str) -> None:
        if name in self._awaited:
            self._awaited.remove(name)
            if not self._awaited:
                self._announce()

    def _announce(self) -> None:
        self._channel.send(ready(self._contexts.names()))

    # -- requests ------------------------------------------------------------------------------

    def _on_frame(self, header: Header, body: bytes) -> None:
        request = Request(header, body)
        if not request.id:
            return  # without an id no answer can be matched to it
        try:
            operation = self._operations.get(request.op)
            if operation is None:
                raise Refusal("unsupported", f"operation {request.op[:64]!r}: unknown to this init")
            answer = operation(request)
            if answer is not None:
                fields, content = answer
                self._channel.send({"ev": "reply", "id": request.id, **fields}, content)
        except Refusal as refusal:
            self._refuse(request, refusal)
        except OSError as error:
            self._refuse(request, refusal_from(error, _step(request, header)))
        except MemoryError:
            self._refuse(request, Refusal("no_space", f"{request.op}: out of memory in init"))
        except (HostGone, SystemExit):
            raise
        except Exception as error:  # noqa: BLE001  one request must not end the sandbox
            traceback.print_exc()
            self._refuse(request, Refusal("internal", f"{request.op}: {type(error).__name__}"))

    def _refuse(self, request: Request, refusal: Refusal) -> None:
        self._channel.send(
            {
                "ev": "fail",
                "id": request.id,
                "code": refusal.code,
                "message": refusal.message[:2000],
            }
        )

    def _job(self, request: Request) -> Command | ContextJob | Connection | None:
        job = self._contexts.job(request.id) or self._commands.job(request.id)
        return job or self._connection(request)

    def _connection(self, request: Request) -> Connection | None:
        return None if self._ports is None else self._ports.job(request.id)

    def _opened_ports(self) -> Ports:
        # Created on first use: most sandboxes never have a connection.
        if self._ports is None:
            self._ports = Ports(self._loop, self._channel)
        return self._ports

    def _stdin(self, request: Request) -> None:
        job = self._job(request)
        if job is not None and job.feed is not None:
            job.feed.write(request.body)

    def _stdin_close(self, request: Request) -> None:
        job = self._job(request)
        if job is not None:
            job.end_input()

    def _resize(self, request: Request) -> None:
        job = self._job(request)
        rows, columns = request.integer("rows", 24, 1, 65535), request.integer("cols", 80, 1, 65535)
        if job is not None:
            job.resize(rows, columns)

    def _credit(self, request: Request) -> None:
        count = request.integer("bytes", low=1, high=MOST_GRANTED_BYTES)
        job = self._commands.job(request.id) or self._connection(request)
        if job is not None:
            job.grant(count)
        else:
            self._workers.grant(request.id, count)

    def _signal(self, request: Request) -> None:
        number = request.integer("signal", low=1, high=_MOST_SIGNAL)
        job = self._job(request)
        if job is not None:
            job.signal(number)
        elif number == signal.SIGKILL and not self._workers.cancel(request.id):
            self._contexts.cancel_copy(request.id)

    def _interrupt(self, request: Request) -> None:
        self._contexts.interrupt(request.text("context"))

    def _end(self, request: Request) -> None:
        def answer(remains: int) -> None:
            self._channel.send({"ev": "reply", "id": request.id, "remains": remains})

        self._families.end_job(request.integer("of"), answer)

    def _thin(self, request: Request) -> None:
        def answer(job: int, found: int, remains: int) -> None:
            fields = {"of": job, "found": found, "remains": remains}
            self._channel.send({"ev": "reply", "id": request.id, **fields})

        self._families.thin(request.integer("least", low=1), answer)

    def _shed(self, request: Request) -> None:
        def answer(job: int, found: int) -> None:
            self._channel.send({"ev": "reply", "id": request.id, "of": job, "found": found})

        self._families.shed(request.integer("least", low=1, high=2**62), answer)

    def _kin(self, _request: Request) -> tuple[Header, bytes]:
        leaders = {**self._contexts.leaders(), **self._commands.leaders()}
        return {"childless": self._families.childless(leaders)}, b""

    def _spent(self, request: Request) -> tuple[Header, bytes]:
        of = request.integer("of")
        spent = self._families.spent(of)
        job = self._contexts.job(of) or self._commands.job(of)
        if spent is None or job is None:
            raise Refusal("invalid", f"spent: {of} is no execution or command at work")
        led_us = job.processor_us() if self._families.childless({of: job.pid}) else None
        return {"mine_us": spent[0], "others_us": spent[1], "led_us": led_us}, b""

    def _context_create(self, request: Request) -> None:
        self._contexts.create(
            request.text("context"), request.text("language", "python"), request.id
        )

    def _context_close(self, request: Request) -> None:
        self._contexts.close(request.text("context"), request.id)

    def _context_list(self, _request: Request) -> tuple[Header, bytes]:
        return {"contexts": self._contexts.listing()}, b""

    def _expect_files(self, _request: Request) -> tuple[Header, bytes]:
        self._channel.expect_files()
        return {}, b""

    def _file_write(self, request: Request) -> tuple[Header, bytes]:
        count = request.integer("files", 0, 0, 1)
        if not count:
            return self._files.write(request)
        taken = self._channel.take_files(count)
        try:
            if not taken:
                raise Refusal("invalid", "file_write: no descriptor came with it")
            return self._files.write(request, *taken)
        finally:
            for each in taken:
                os.close(each)

    def _move(self, request: Request) -> tuple[Header, bytes] | None:
        try:
            return self._files.move(request)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        source, target = self._files.resolve(request), self._files.resolve(request, "target")
        metadata = self._files.metadata
        leaving = [] if metadata is None else metadata.leaving(source, target)

        def on_end(is_done: bool) -> None:
            if is_done and metadata is not None:
                metadata.arrive(leaving)

        self._workers.start(request.id, trees.relocation(source, target), on_end=on_end)
        return None

    def _remove(self, request: Request) -> tuple[Header, bytes] | None:
        path = self._files.resolve(request)
        if request.flag("recursive") and stat.S_ISDIR(os.lstat(path).st_mode):
            self._workers.start(request.id, trees.removal(path))
            return None
        return self._files.remove(request)

    def _tree_put(self, request: Request) -> None:
        self._workers.start(request.id, trees.arrival(self._files.resolve(request)))

    def _tree_get(self, request: Request) -> None:
        self._workers.start(request.id, trees.departure(self._files.resolve(request)))

    def _root_get(self, request: Request) -> None:
        self._workers.start(request.id, snapshot.snapshot(self._config.get("changes") or "/"))

    def _areas_get(self, request: Request) -> tuple[Header, bytes] | None:
        return self._copy_areas(request, 1)

    def _areas_put(self, request: Request) -> tuple[Header, bytes] | None:
        return self._copy_areas(request, 0)

    def _copy_areas(self, request: Request, stream: int) -> tuple[Header, bytes] | None:
        """Copy files to or from the descriptor that came, as standard `stream` of a worker."""
        from cellwall.guest.files import areas  # most sandboxes are never copied

        taken = self._channel.take_files(request.integer("files", low=0, high=MOST_FILES))
        home = str(self._config["home"])
        try:
            if len(taken) != 1:
                raise Refusal("invalid", f"{request.op}: {len(taken)} descriptors came with it")
            if stream and areas.are_empty(home):
                return {"files": 0, "bytes": 0}, b""
            if stream:
                task = areas.departure(home, self._files.metadata)
                self._workers.start(request.id, task, (-1, taken[0]))
            else:
                areas.take(self._workers, self._files, request.id, home, taken[0])
        finally:
            for number in taken:
                os.close(number)
        return None

    def _tree_scan(self, request: Request) -> None:
        from cellwall.guest.files import tree_scan  # most sandboxes keep no history

        most_files = request.integer("files", low=1, high=_MOST_SCANNED)
        path, content = self._files.resolve(request), request.flag("content")
        self._workers.start(request.id, tree_scan.scan(path, most_files, content))

    def _tree_restore(self, request: Request) -> None:
        from cellwall.guest.files import tree_restore  # as above

        self._workers.start(request.id, tree_restore.restoration(self._files.resolve(request)))

    def _stand_by(self, request: Request) -> None:
        from cellwall.guest.channel.standing_by import StandingBy  # most sandboxes are never copied

        def signal_all(is_stop: bool) -> bool:
            return self._signal_all(signal.SIGSTOP if is_stop else signal.SIGCONT)

        if self._standing_by is None:
            self._standing_by = StandingBy(self._loop, self._channel, signal_all)
        self._standing_by.begin(request, self._contexts, self._commands, self._ports)
        if self._files.metadata is not None:
            self._files.metadata.stand_by()

    def _wake(self, request: Request) -> tuple[Header, bytes]:
        if self._standing_by is None:
            raise Refusal("invalid", "wake: nothing stands by")
        answer = self._standing_by.end(request, self._contexts, self._commands, self._ports)
        if self._files.metadata is not None:
            is_elsewhere = request.flag("copy") or request.flag("renewed")
            self._files.metadata.wake(is_elsewhere=is_elsewhere)
        return answer

    def _hold(self, _request: Request) -> tuple[Header, bytes]:
        return {"held": self._signal_all(signal.SIGSTOP)}, b""

    def _release(self, _request: Request) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: int) -> bool:
        """Signal every other process; only pid 1 can: elsewhere they are not the sandbox's own."""
        if os.getpid() != 1:
            return False
        with contextlib.suppress(ProcessLookupError):  # there is none
            os.kill(-1, number)  # all but this process: kill(2)
        return True

    def _port_connect(self, request: Request) -> None:
        self._opened_ports().connect(request)

    def _port_list(self, request: Request) -> tuple[Header, bytes]:
        return self._opened_ports().listing(request)

    def _close(self, request: Request) -> None:
        connection = self._connection(request)
        if connection is not None:
            connection.close()

    def _watch(self, request: Request) -> None:
        task = inotify.watching(self._files.resolve(request), request.flag("recursive"))
        window_bytes = request.integer("window", low=0, high=MOST_GRANTED_BYTES)
        self._workers.watch(request.id, task, window_bytes)

    def _chunk(self, request: Request) -> None:
        self._workers.chunk(request.id, request.body)

    def _chunk_end(self, request: Request) -> None:
        self._workers.chunk_end(request.id)

    # -- another host --------------------------------------------------------------------------

    def _on_taken(self, fd: int, next_standby: int, data: bytes) -> None:
        """Have the standby line as the channel from now on, and forget the host before."""
        sent = self._channel.sent_bytes
        self._lost = (sent, self._channel.replace(fd))
        self._commands.wait_for_host()
        self._contexts.cancel_copies()
        self._workers.cancel_all()
        if self._ports is not None:
            self._ports.reset_all()
        if next_standby >= 0:
            self._standby.open(next_standby)
        self._channel.take_over(data, b"")

    def _take_over(self, _request: Request) -> tuple[Header, bytes]:
        sent, unsent = self._lost
        return {
            "protocol": PROTOCOL,
            "contexts": self._contexts.listing(),
            "executions": list(self._contexts.leaders()),
            "commands": list(self._commands.leaders()),
            "sent_bytes": sent,
            "unsent_bytes": unsent,
            "can_again": self._standby.is_open,
        }, b""

    def _environment(self, _request: Request) -> tuple[Header, bytes]:
        """Tell the variables of this sandbox to a host that has taken it over."""
        return {}, json.dumps(self._config["env"]).encode()

    def _shutdown(self, _request: Request) -> NoReturn:
        raise HostGone

    # -- children ------------------------------------------------------------------------------

    def _on_child(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):  # the byte was read in an earlier round
            os.read(self._wakeup_r, 4096)
        while (pid := processes.ended_child()) is not None:
            # One at a time: a process that ends later may send something until it does.
            self._contexts.hear_the_dying()
            session = processes.session_of(pid)
            _, status, usage = os.wait4(pid, 0)
            end = processes.exit_from(status, usage)
            self._families.note_end(pid, session, end.rusage)
            # In no table: an orphan that became init's child. Reaping it was all there is to do.
            for table in (self._contexts, self._commands, self._workers):
                if table.on_exit(pid, end):
                    break
        self._families.look()


def _step(request: Request, header: Header) -> str:
    path = header.get("path")
    return f"{request.op} {path!r}" if isinstance(path, str) else request.op


def main(
    channel_fd: int,
    config: dict[str, Any],
    run_context: Callable[[Link, dict[str, Any]], Any] | None = None,
    handoff: Handoff | None = None,
    on_forked: Callable[[], None] = nothing,
) -> NoReturn:
    """Run init on `channel_fd` until the host is gone; `run_context` replaces the Python context.

    `handoff` is what `fast_start` already did of that; `on_forked` is called when the contexts that
    exist from the start have been forked.
    """
    code = _EXIT_BROKEN
    try:
        if handoff is None:
            _settle()
        _made(run_context).run(channel_fd, config, handoff, on_forked)
    except (HostGone, BrokenPipeError, ConnectionResetError):
        code = _EXIT_HOST_GONE  # also raised on `first_program`'s path, which has no `Channel`
    except FrameError as error:
        _complain(f"cellwall init: channel: {error}\n")
    except OSError as error:
        _complain(f"cellwall init: cannot go on: {error}\n")
    except BaseException:  # noqa: BLE001  the outermost frame of the process
        _complain(traceback.format_exc())
    finally:
        _leave(code)


def prepare() -> None:
    """Build an init once, in a fork-server; its forks only set descriptors and a name.

    A fork does not write to pages that were filled here, and every page that a fork writes to is
    copied.
    """
    processes.settle()
    _prepared[:] = [_made(None)]


def _made(run_context: Callable[[Link, dict[str, Any]], Any] | None) -> Init:
    if run_context is not None:
        return Init(run_context)
    if _prepared:
        return _prepared[0]
    # Imported before the fork of a context, so that all of them share the pages.
    return Init(importlib.import_module(_CONTEXT_MODULE).main)


def _settle() -> None:
    if _prepared:
        processes.confine()  # `prepare` did the rest, and this process is pid 1
    else:
        processes.become_init()


def _complain(text: str) -> None:
    # Init's descriptor 2 belongs to the process that built the sandbox; caller code never has it.
    try:
        os.write(2, text.encode("utf-8", "backslashreplace"))
    except OSError:
        return


def _leave(code: int) -> NoReturn:
    if os.getpid() != 1:
        # The end of pid 1 ends every process of its namespace; elsewhere init must kill them
        # itself.
        processes.kill_descendants()
    os._exit(code)

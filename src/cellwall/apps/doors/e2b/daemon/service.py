"""The daemon's routes, over what it remembers of its sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.apps.doors.e2b.daemon import files, filesystem, watch
from cellwall.apps.doors.e2b.daemon.calls import client_stream, server_stream, unary
from cellwall.apps.doors.e2b.daemon.connect import messages
from cellwall.apps.doors.e2b.daemon.process import ProcessService
from cellwall.apps.doors.e2b.daemon.process_table import Processes
from cellwall.apps.doors.e2b.daemon.watch import Watchers
from cellwall.apps.doors.e2b.seat import SeatRoute

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cellwall.apps.doors.e2b.seat import Seat

    Handler = Callable[[Seat], Awaitable[None]]

_MOST_INPUT_BYTES = 64 * 1024 * 1024


class Daemon:
    """The daemon of all sandboxes of one server."""

    def __init__(self) -> None:
        self._processes = Processes()
        self._watchers = Watchers()

    def routes(self) -> list[SeatRoute]:
        """Return its routes."""
        services = {
            "process.Process": _process_methods(ProcessService(self._processes)),
            "filesystem.Filesystem": _filesystem_methods(self._watchers),
        }
        return [
            SeatRoute("GET", "/files", files.read),
            SeatRoute("POST", "/files", files.write),
            *(
                SeatRoute("POST", f"/{service}/{method}", handler)
                for service, methods in services.items()
                for method, handler in methods.items()
            ),
        ]

    async def aclose(self) -> None:
        """Let go of what clients have left open."""
        await self._watchers.aclose()
        await self._processes.aclose()


def _process_methods(process: ProcessService) -> dict[str, Handler]:
    return {
        "Start": server_stream(messages.START, messages.EVENT, process.start, is_bounded=False),
        "Connect": server_stream(messages.SELECT, messages.EVENT, process.connect),
        "List": unary(messages.EMPTY, messages.PROCESSES, process.list),
        "SendInput": unary(
            messages.SEND_INPUT, messages.EMPTY, process.send_input, _MOST_INPUT_BYTES
        ),
        "StreamInput": client_stream(messages.STREAM_INPUT, messages.EMPTY, process.stream_input),
        "CloseStdin": unary(messages.SELECT, messages.EMPTY, process.close_stdin),
        "SendSignal": unary(messages.SEND_SIGNAL, messages.EMPTY, process.send_signal),
        "Update": unary(messages.UPDATE, messages.EMPTY, process.update),
    }


def _filesystem_methods(watchers: Watchers) -> dict[str, Handler]:
    return {
        "Stat": unary(messages.PATH, messages.ENTRY, filesystem.stat),
        "ListDir": unary(messages.LIST_DIR, messages.ENTRIES, filesystem.list_dir),
        "MakeDir": unary(messages.PATH, messages.ENTRY, filesystem.make_dir),
        "Move": unary(messages.MOVE, messages.ENTRY, filesystem.move),
        "Remove": unary(messages.PATH, messages.EMPTY, filesystem.remove),
        "CreateWatcher": unary(messages.WATCH, messages.WATCHER, watchers.create),
        "GetWatcherEvents": unary(messages.WATCHER, messages.CHANGES, watchers.events),
        "RemoveWatcher": unary(messages.WATCHER, messages.EMPTY, watchers.remove),
        "WatchDir": server_stream(messages.WATCH, messages.WATCHED, watch.watch_dir),
    }

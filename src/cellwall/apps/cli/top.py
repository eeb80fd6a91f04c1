"""`cellwall top`: a server's sandboxes and what they use, live.

Not a monitor for machines (`--json` once, or `GET /stats`, is). Called by `main`. Invariant: it
only looks; a sandbox that ends between two questions is left out, never an error.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellwall.apps.cli.console.remote import AsJson, Key, Url, duration, mebibytes
from cellwall.apps.cli.console.terminal import visible
from cellwall.model.errors import NotFound, SandboxUnavailable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cellwall.client.asynchronous import AsyncClient
    from cellwall.client.sandbox import AsyncSandbox

SHOWN = 12
"""Characters of an id; every command takes so much of it, too."""
_MOST_ASKED = 200
"""Sandboxes whose counters are read for one picture, the newest ones."""


@dataclass(frozen=True, slots=True)
class Row:
    """One sandbox at one moment."""

    id: str
    name: str
    template: str
    cpu_s: float
    cpus: float | None
    """CPUs used since the picture before; None in the first one."""
    memory_bytes: int
    memory_limit_bytes: int
    processes_peak: int | None
    executions: int
    commands: int
    ends_in_s: float
    status: str


@dataclass(frozen=True, slots=True)
class Picture:
    """What the server said at one moment."""

    url: str
    stats: dict[str, Any]
    rows: tuple[Row, ...]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("top", short_help="Watch the sandboxes of a server.")(top)


def top(
    interval: Annotated[
        float, typer.Option("--interval", "-n", min=0.2, help="Seconds between two pictures.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="One picture, then end.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """Watch the sandboxes of a server and what they use; Ctrl-C ends.

    \b
    cellwall top
    cellwall top --interval 0.5
    cellwall top --once --json
    """
    is_live = not once and not as_json and sys.stdout.isatty()
    asyncio.run(_watch(url, key, interval) if is_live else _print_once(url, key, as_json))


async def _print_once(url: str | None, key: str | None, as_json: bool) -> None:
    from cellwall.client import aconnect

    async with await aconnect(url, key) as client:
        picture = await Camera(client).take()
    if as_json:
        shown = {"server": picture.stats, "sandboxes": [asdict(row) for row in picture.rows]}
        typer.echo(json.dumps(shown, indent=2))
        return
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160)
    console.print(drawn(picture))


async def _watch(url: str | None, key: str | None, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from cellwall.client import aconnect

    async with await aconnect(url, key) as client:
        camera = Camera(client)
        with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
            while True:
                live.update(drawn(await camera.take()), refresh=True)
                await asyncio.sleep(interval)


class Camera:
    """Asks the server, and remembers the time before."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._before: dict[str, float] = {}
        self._taken_s = 0.0

    async def take(self) -> Picture:
        """Return how things are now, who uses most CPU first."""
        stats = await self._client.statistics()
        sandboxes = await self._client.sandboxes(state="live")
        now_s = time.monotonic()
        since_s, self._taken_s = now_s - self._taken_s, now_s
        before, self._before = self._before, {}
        asked = await asyncio.gather(
            *(self._row(each, before, since_s) for each in sandboxes[:_MOST_ASKED])
        )
        rows = [row for row in asked if row is not None]
        rows.sort(key=lambda row: (row.cpus or 0.0, row.memory_bytes), reverse=True)
        return Picture(self._client.url, stats, tuple(rows))

    async def _row(
        self, sandbox: AsyncSandbox, before: dict[str, float], since_s: float
    ) -> Row | None:
        try:
            metrics = await sandbox.metrics()
        except (SandboxUnavailable, NotFound):
            return None
        cpu_s = float(metrics["cpu_s"])
        self._before[sandbox.id] = cpu_s
        used = None if sandbox.id not in before else (cpu_s - before[sandbox.id]) / since_s
        return Row(
            id=sandbox.id,
            name=sandbox.name or "",
            template=sandbox.template,
            cpu_s=cpu_s,
            cpus=used,
            memory_bytes=metrics["memory_bytes"],
            memory_limit_bytes=sandbox.limits.memory_bytes,
            processes_peak=metrics["processes_peak"],
            executions=metrics["executions"],
            commands=metrics["commands"],
            ends_in_s=sandbox.ends_at - time.time(),
            status=metrics["status"],
        )


def drawn(picture: Picture) -> RenderableType:
    """Return the picture as it is shown."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("ID", no_wrap=True, min_width=SHOWN)
    for column in ("NAME", "TEMPLATE"):
        table.add_column(column, no_wrap=True)
    for column in ("CPU", "TIME", "MEMORY", "PIDS", "CELLS", "CMDS", "ENDS"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in picture.rows:
        table.add_row(*(Text(visible(cell)) for cell in _cells(row)))
    return Group(*(Text(line) for line in _head(picture)), table)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.id[:SHOWN],
        row.name,
        row.template,
        _used(row),
        f"{row.cpu_s:.1f}s",
        f"{mebibytes(row.memory_bytes)}/{mebibytes(row.memory_limit_bytes)}",
        "" if row.processes_peak is None else str(row.processes_peak),
        str(row.executions),
        str(row.commands),
        duration(row.ends_in_s),
    )


def _used(row: Row) -> str:
    if row.status in ("paused", "hibernated"):
        return row.status
    return "" if row.cpus is None else f"{row.cpus * 100:.0f}%"


def _head(picture: Picture) -> list[str]:
    stats, server = picture.stats, picture.stats["server"]
    lines = [
        f"{picture.url}   cellwall {stats['version']}   up {duration(stats['uptime_s'])}   "
        f"yours: {stats['sandboxes']} sandboxes, {stats['snapshots']} snapshots, "
        f"{stats['executions']} executions"
    ]
    if server is not None:
        pool, copies = server["pool"], server["copies"]
        lines.append(
            f"server: {server['sandboxes']} sandboxes, {server['paused']} paused, "
            f"{server['hibernated']} hibernated, "
            f"{server['running']} running, "
            f"{server['queued']} queued, {server['requests']} requests, {server['runs']} runs   "
            f"pool: {pool['parked']} parked, {pool['starting']} starting"
        )
        lines.append(
            f"copies: {copies['forks']} forks, {copies['restores']} restores, "
            f"{copies['hibernations']} hibernations, "
            f"{sum(copies['refused'].values())} refused   snapshots: {copies['snapshots']} kept, "
            f"{mebibytes(copies['snapshots_bytes'])}"
        )
    return lines

"""`cellwall sandbox cp`: files and directories into and out of a sandbox on a server.

Called by `sandbox`. Invariant: what comes from inside is written under the name that was given
here, directories only into new or empty ones.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cellwall.apps.cli.console.remote import Key, Url, connected, found
from cellwall.apps.cli.console.terminal import visible
from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from cellwall.client.blocking import Client
    from cellwall.surface.shared.callbacks import OnProgress

_THERE = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,63}):(.*)", re.DOTALL)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("cp", short_help="Copy files into a sandbox, or out of it.")(copy)


def copy(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A path, or SANDBOX:PATH.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A path, or SANDBOX:PATH.")],
    url: Url = None,
    key: Key = None,
) -> None:
    """Copy a file or a directory into a sandbox, or out of it.

    One side is SANDBOX:PATH. A target that ends with / (or is empty) keeps the source's name. A
    local path with a colon is written ./so:mehow.

    \b
    cellwall sandbox cp data.csv build:
    cellwall sandbox cp src/ build:work
    cellwall sandbox cp build:report.pdf /tmp/
    """
    inward, outward = _THERE.fullmatch(target), _THERE.fullmatch(source)
    if (inward is None) == (outward is None):
        raise UsageError(
            "cp: one of the two must be in a sandbox", remedy="write that one SANDBOX:PATH"
        )
    with connected(url, key) as client, _progress() as on_progress:
        if inward is not None:
            _send(client, Path(source), inward[1], inward[2], on_progress)
        elif outward is not None:
            _fetch(client, outward[1], outward[2], target, on_progress)


def _send(
    client: Client, source: Path, word: str, target: str, on_progress: OnProgress | None
) -> None:
    files = found(client, word).files
    target = _named(target, source.resolve().name)
    if source.is_dir():
        files.mkdir(target)
        files.upload_dir(source, target, on_progress=on_progress)
    else:
        mode = 0o755 if source.exists() and source.stat().st_mode & 0o100 else None
        files.upload(source, target, mode=mode, on_progress=on_progress)


def _fetch(
    client: Client, word: str, source: str, target: str, on_progress: OnProgress | None
) -> None:
    files = found(client, word).files
    name = source.rstrip("/").rpartition("/")[2] or "files"
    place = Path(target)
    if target.endswith("/") or place.is_dir():
        place /= name
    if files.stat(source or ".").type == "directory":
        files.download_dir(source or ".", place, on_progress=on_progress)
    else:
        files.download(source, place, on_progress=on_progress)


def _named(target: str, name: str) -> str:
    return f"{target}{name}" if not target or target.endswith("/") else target


@contextmanager
def _progress() -> Iterator[OnProgress | None]:
    """Show a bar on our terminal, if stderr is one."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(visible("copy"), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)

"""`cellwall run --artifacts`: what a program left in a folder, into a new folder of the caller's.

Called by `run`. Names and contents are hostile. The invariant: they are written by `Arrival` only,
which opens nothing outside of the new folder and overwrites nothing.
"""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections.abc import Mapping
from pathlib import Path

from cellwall.model.errors import FileError, UsageError
from cellwall.surface.trees.tar_unpack import Arrival


def place_of(folder: str | None, into: Path | None) -> Path | None:
    """Return where files of `folder` go, or None for nowhere; `UsageError` if it is not free.

    Asked before the program runs, so that nothing is lost for a name.
    """
    if folder is None:
        if into is not None:
            raise UsageError("run: --into without --artifacts", remedy="add --artifacts FOLDER")
        return None
    place = into or Path(Path(folder).name)
    try:
        is_free = not place.exists() or not any(place.iterdir())
    except OSError as error:
        raise UsageError(
            f"run: --artifacts into {place}: {error.strerror}", remedy="give --into DIRECTORY"
        ) from error
    if not is_free:
        raise UsageError(
            f"run: --artifacts: {place} is not empty", remedy="give --into a new or empty directory"
        )
    return place


def save(place: Path, folder: str, files: Mapping[str, bytes]) -> int:
    """Write `files`, which lie below `folder`, to `place`; return how many there are.

    `UsageError` where the caller's disk does not take them, `Conflict` if another program was
    faster.
    """
    if not files:
        return 0
    top = f"{posixpath.normpath(folder)}/"
    inner = {name.removeprefix(top): data for name, data in files.items()}
    try:
        arrival = Arrival(place, sum(map(len, files.values())))
        try:
            for name, data in inner.items():
                arrival.feed(_packed(name, data))
            arrival.feed(bytes(1024))
            return arrival.finish()
        finally:
            arrival.close()
    except FileError:
        raise  # it says already what there is to be done
    except OSError as error:
        raise UsageError(
            f"run: --artifacts into {place}: {error.strerror}", remedy="give --into DIRECTORY"
        ) from error


def _packed(name: str, data: bytes) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    out = io.BytesIO()
    out.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
    out.write(data)
    out.write(bytes(-len(data) % tarfile.BLOCKSIZE))
    return out.getvalue()

"""A notebook of SandboxFusion: its cells in one fresh sandbox, which ends with the answer.

The invariants: the sandbox is destroyed however the notebook ends, and files that are fetched are
bounded together, whatever their announced sizes.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors import exchange
from cellwall.apps.doors.fusion import answers
from cellwall.apps.doors.fusion.bodies import files_of, memory_of, wall_of
from cellwall.apps.doors.stages import TIMES
from cellwall.model.errors import FileError, UsageError

if TYPE_CHECKING:
    from cellwall.apps.doors.fusion.bodies import NotebookBody
    from cellwall.client.asynchronous import AsyncClient
    from cellwall.client.sandbox import AsyncSandbox
    from cellwall.model.limits import Limits

FETCHED_BYTES = 64 * 1024 * 1024
"""Maximum bytes of the files of one answer."""
_SHORTEST_S = 0.001


async def run_notebook(client: AsyncClient, body: NotebookBody, most: Limits) -> dict[str, Any]:
    """Return the answer about the notebook. Raises UsageError, CapacityError."""
    files = files_of(body.files)
    limits = {
        **wall_of(body, "total_timeout", most),
        **memory_of(body.memory_limit_MB, most),
    }
    async with await client.create_sandbox(limits=limits) as sandbox:
        for path, data in files.items():
            await sandbox.files.write(path, data)
        began = time.monotonic()
        cells = await _cells(sandbox, body, began + limits["wall_s"])
        seconds = time.monotonic() - began
        if cells is None:
            driver = answers.driver_of(answers.TIMED_OUT, seconds)
            return answers.notebook_answer("Failed", driver, [], {})
        driver = answers.driver_of(answers.FINISHED, seconds)
        fetched = await _fetched(sandbox, body.fetch_files)
    return answers.notebook_answer("Success", driver, cells, fetched)


async def _cells(
    sandbox: AsyncSandbox, body: NotebookBody, until: float
) -> list[dict[str, Any]] | None:
    """Return the results of the cells in order; None if one did not end in time."""
    found: list[dict[str, Any]] = []
    for code in body.cells:
        left_s = max(_SHORTEST_S, until - time.monotonic())
        timeout_s = min(left_s, body.cell_timeout) if body.cell_timeout > 0 else left_s
        execution = await sandbox.run(code, timeout=timeout_s)
        if execution.verdict in TIMES:
            return None
        found.append(answers.cell_of(execution))
        if sandbox.status == "stopped":
            break
    return found


async def _fetched(sandbox: AsyncSandbox, paths: list[str]) -> dict[str, str]:
    """Return the files that there are, as base64 by the path asked for."""
    found: dict[str, str] = {}
    left = FETCHED_BYTES
    for path in paths:
        data = bytearray()
        with contextlib.suppress(FileError):
            async for piece in sandbox.files.read_stream(path):
                data += piece
                if len(data) > left:
                    raise _too_large(path)
            left -= len(data)
            found[path] = exchange.as_base64(bytes(data))
    return found


def _too_large(path: str) -> UsageError:
    return UsageError(
        f"fetch_files: with {path[:200]!r} there are more than {FETCHED_BYTES} bytes",
        remedy="fetch less at once",
    )

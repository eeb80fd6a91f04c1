"""Work: one item becomes a call of the engine, and its end a result as JSON.

Not when an item is done (`desk`). Sandboxes of sessions are held here, by their ids. The invariant:
whatever a call ends with becomes a result; an exception of the engine is never passed on as an
object.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cellwall.engine.programs.requests import Request
from cellwall.fleet.wire.failures import failure
from cellwall.fleet.wire.items import Json, data_of, options_of, text_of
from cellwall.model.errors import CapacityError, CellwallError, SandboxUnavailable
from cellwall.wire.answer import answer, one_line

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine
    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.fleet.node.ledger import Ledger
    from cellwall.model.execution import Execution

_log = logging.getLogger("cellwall")


class Work:
    """The work of one node."""

    def __init__(self, engine: Engine, ledger: Ledger) -> None:
        self._engine = engine
        self._ledger = ledger
        self._sandboxes: dict[str, AsyncSandbox] = {}

    async def do(self, item: Json) -> bytes:
        """Do one item and return its result."""
        result: Json = {"id": item["id"]}
        try:
            result["value"] = await self._called(item)
        except CellwallError as error:
            result["failure"] = failure(error)
            if item["op"] == "program" and isinstance(error, CapacityError):
                self._ledger.withdraw(item["id"])  # there was no sandbox to begin in
                result["refused"] = True
        except Exception as error:  # noqa: BLE001 - it crosses as JSON
            _log.exception("fleet: an item failed: %s", item["op"])
            result["failure"] = failure(error)
        return one_line(result).encode("ascii")

    async def _called(self, item: Json) -> Any:  # noqa: ANN401 - JSON
        body = item["body"]
        if item["op"] == "program":
            self._ledger.begin(item["id"])
            return executed(await self._engine.execute(Request(**options_of(body))))
        if item["op"] == "open":
            return await self._open(body)
        sandbox = self._sandbox(item["sandbox"])
        return await _IN_SANDBOX[item["op"]](self, sandbox, body)

    # -- sandboxes -------------------------------------------------------------------------

    async def _open(self, body: Json) -> Json:
        sandbox = await self._engine.create_sandbox(**body)
        self._sandboxes[sandbox.id] = sandbox
        sandbox.on_ended(lambda _reason: None)
        return {
            "id": sandbox.id,
            "template": sandbox.template,
            "created_at": sandbox.created_at,
            "limits": asdict(sandbox.limits),
            "isolation": sandbox.isolation.as_json(),
        }

    def _sandbox(self, sandbox_id: str) -> AsyncSandbox:
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None:
            raise SandboxUnavailable(
                f"sandbox {sandbox_id}: it was closed", remedy="make a new one"
            )
        return sandbox

    async def _close(self, sandbox: AsyncSandbox, _body: Json) -> None:
        del self._sandboxes[sandbox.id]
        await sandbox.close()

    async def _run(self, sandbox: AsyncSandbox, body: Json) -> Json:
        return executed(await sandbox.run(**options_of(body)))

    async def _command(self, sandbox: AsyncSandbox, body: Json) -> Json:
        done = await sandbox.commands.run(**options_of(body))
        return {"stdout": done.stdout, "stderr": done.stderr, "outcome": done.outcome.as_json()}

    async def _read(self, sandbox: AsyncSandbox, body: Json) -> str:
        return text_of(await sandbox.files.read(body["path"], text=False))

    async def _write(self, sandbox: AsyncSandbox, body: Json) -> int:
        return await sandbox.files.write(
            body["path"], data_of(body["content_b64"]), mode=body["mode"]
        )

    async def _append(self, sandbox: AsyncSandbox, body: Json) -> None:
        await sandbox.files.append(body["path"], data_of(body["content_b64"]))

    async def _list(self, sandbox: AsyncSandbox, body: Json) -> list[Json]:
        return [asdict(entry) for entry in await sandbox.files.list(**body)]

    async def _stat(self, sandbox: AsyncSandbox, body: Json) -> Json:
        return asdict(await sandbox.files.stat(body["path"]))

    async def _mkdir(self, sandbox: AsyncSandbox, body: Json) -> None:
        await sandbox.files.mkdir(**body)

    async def _move(self, sandbox: AsyncSandbox, body: Json) -> None:
        await sandbox.files.move(**body)

    async def _remove(self, sandbox: AsyncSandbox, body: Json) -> None:
        await sandbox.files.remove(**body)


_IN_SANDBOX: dict[str, Callable[[Work, AsyncSandbox, Json], Awaitable[Any]]] = {
    "close": Work._close,
    "run": Work._run,
    "command": Work._command,
    "read": Work._read,
    "write": Work._write,
    "append": Work._append,
    "list": Work._list,
    "stat": Work._stat,
    "mkdir": Work._mkdir,
    "move": Work._move,
    "remove": Work._remove,
}


def executed(execution: Execution) -> Json:
    """Return an execution as JSON, with the time of its start."""
    return {**answer(execution), "started": execution.started_at}

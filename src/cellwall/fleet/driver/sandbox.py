"""Sandbox of a fleet: a session on one node, by the names of the library's sandbox.

Every call goes to its node. The invariant: no call is made twice; when the node is lost, each call
that was under way and all later ones raise NodeLost.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

from cellwall.fleet.driver.results import executed
from cellwall.fleet.wire.failures import raised
from cellwall.fleet.wire.items import check_crosses, data_of, text_of
from cellwall.model.errors import FileError, NodeLost, SandboxUnavailable, UsageError
from cellwall.model.files import FileEntry
from cellwall.surface.shared.arguments import check_path
from cellwall.surface.trees import local_files
from cellwall.wire import asking
from cellwall.wire.reading import command_result_of, isolation_of, limits_of

if TYPE_CHECKING:
    from cellwall.fleet.driver.results import FleetExecution
    from cellwall.fleet.wire.items import Json
    from cellwall.model.execution import CommandResult
    from cellwall.model.limits import Limits
    from cellwall.model.outcome import Isolation

Call = Callable[[str, Mapping[str, Any]], Awaitable[tuple[str, "Json"]]]
"""Has the sandbox's node do something: name and body of a call; gives the node's name, a result."""

_MOST_BYTES = 32 * 1024 * 1024
_NO_STREAMS = "run code in sandboxes of `cellwall serve`, which streams"


class FleetSandbox:
    """One live sandbox on a node."""

    def __init__(self, node: str, facts: Json, call: Call, on_ended: Callable[[], None]) -> None:
        """Called by `Fleet.sandbox`; `on_ended` when it is known to be there no longer."""
        self._on_ended = on_ended
        self.node = node
        """Name of its node."""
        self._facts = facts
        self._call = call
        self._has_ended = False
        self.files = FleetFiles(self._asked)
        self.commands = FleetCommands(self._asked)

    @property
    def id(self) -> str:
        """Id of the sandbox."""
        return str(self._facts["id"])

    @property
    def template(self) -> str:
        """Name of its template."""
        return str(self._facts["template"])

    @property
    def limits(self) -> Limits:
        """Limits that apply."""
        return limits_of(self._facts["limits"])

    @property
    def isolation(self) -> Isolation:
        """Isolation that is in force."""
        return isolation_of(self._facts["isolation"])

    @property
    def status(self) -> Literal["running", "stopped"]:
        """Whether it was there at the last call."""
        return "stopped" if self._has_ended else "running"

    async def run(
        self,
        code: str,
        language: str | None = None,
        context: str = "main",
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - a limit of the sandbox, not of the await
        **more: Any,  # noqa: ANN401 - refused by name
    ) -> FleetExecution:
        """Run a cell in a context, or a program of a language that keeps no state beside it."""
        _check_options(more)
        body = {
            "code": asking.source(code)["code"],
            "context": context,
            **asking.stdin(stdin),
            **asking.given(language=language, timeout=timeout),
        }
        return executed(*await self._told("run", body))

    def stream(self, code: str, **_options: object) -> NoReturn:
        """Raise UsageError: a fleet does not stream."""
        raise UsageError("stream: a fleet does not stream", remedy=_NO_STREAMS)

    async def close(self) -> None:
        """Destroy the sandbox. Idempotent; also if its node is lost, which has destroyed it."""
        if self._has_ended:
            return
        with contextlib.suppress(SandboxUnavailable, NodeLost):
            await self._asked("close", {})
        self._end()

    def _end(self) -> None:
        self._has_ended = True
        self._on_ended()

    async def _told(self, op: str, body: Mapping[str, Any]) -> tuple[str, Json]:
        try:
            node, result = await self._call(op, body)
        except NodeLost:
            self._end()
            raise
        if result.get("failure", {}).get("code") == SandboxUnavailable.code:
            self._end()
        return node, result

    async def _asked(self, op: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
        node, result = await self._told(op, body)
        if "failure" in result:
            raise raised(result["failure"], node)
        return result["value"]

    async def __aenter__(self) -> FleetSandbox:
        """Enter a context manager that closes the sandbox."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the sandbox."""
        await self.close()


def _check_options(more: Mapping[str, Any]) -> None:
    check_crosses(more)
    if more:
        raise UsageError(f"run: {min(more)}: there is no such argument", remedy="leave it out")


Ask = Callable[[str, Mapping[str, Any]], Awaitable[Any]]


class FleetCommands:
    """Commands of one sandbox, in the foreground."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - a limit of the sandbox, not of the await
        **more: Any,  # noqa: ANN401 - refused by name
    ) -> CommandResult:
        """Run a command (a string goes to a shell) and return its result."""
        _check_options(more)
        asking.command(command)
        body = {
            "command": command if isinstance(command, str) else list(command),
            **asking.stdin(stdin),
            **asking.given(cwd=cwd, env=asking.env(env), timeout=timeout),
        }
        return command_result_of(await self._ask("command", body))


class FleetFiles:
    """Files of one sandbox. Relative paths start at the working directory."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    @overload
    async def read(self, path: str, *, text: Literal[True] = True) -> str: ...
    @overload
    async def read(self, path: str, *, text: Literal[False]) -> bytes: ...
    async def read(self, path: str, *, text: bool = True) -> str | bytes:
        """Return a file's content, decoded as UTF-8 (bad bytes replaced) or as bytes."""
        data = data_of(await self._ask("read", {"path": check_path(path)}))
        return data.decode("utf-8", "replace") if text else data

    async def write(self, path: str, content: str | bytes, *, mode: int | None = None) -> int:
        """Write a whole file of at most 32 MiB and create its parents. Return its size."""
        body = {"path": check_path(path), "content_b64": _content(path, content), "mode": mode}
        return int(await self._ask("write", body))

    async def append(self, path: str, content: str | bytes) -> None:
        """Append to a file, creating it if necessary."""
        body = {"path": check_path(path), "content_b64": _content(path, content)}
        await self._ask("append", body)

    async def stat(self, path: str) -> FileEntry:
        """Describe one file; links are described, not followed."""
        return FileEntry(**await self._ask("stat", {"path": check_path(path)}))

    async def exists(self, path: str) -> bool:
        """Report whether a file, directory or link of that name exists."""
        try:
            await self.stat(path)
        except FileError as error:
            if error.reason in ("not_found", "not_directory"):
                return False
            raise
        return True

    async def list(
        self, path: str = ".", *, depth: int = 1, limit: int = 1000
    ) -> builtins.list[FileEntry]:
        """List a directory, `depth` levels down, at most `limit` entries."""
        body = {"path": check_path(path), "depth": depth, "limit": limit}
        return [FileEntry(**entry) for entry in await self._ask("list", body)]

    async def mkdir(self, path: str, *, parents: bool = True) -> None:
        """Make a directory."""
        await self._ask("mkdir", {"path": check_path(path), "parents": parents})

    async def move(self, path: str, target: str) -> None:
        """Rename or move."""
        await self._ask("move", {"path": check_path(path), "target": check_path(target)})

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, an empty directory or, if `recursive`, a whole tree."""
        await self._ask("remove", {"path": check_path(path), "recursive": recursive})


def _content(path: str, content: str | bytes) -> str:
    data = local_files.check_content(content)
    if len(data) > _MOST_BYTES:
        raise UsageError(
            f"files: content of {path!r} has {len(data)} bytes, above {_MOST_BYTES}",
            remedy="append it in pieces",
        )
    return text_of(data)

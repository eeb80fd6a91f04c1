"""A sandbox provider for Inspect: `Task(…, sandbox="cellwall")`, or `sandbox=("cellwall", "data")`.

Needs `inspect-ai`; `pip install 'cellwall[inspect]'`. Inspect finds it by cellwall's entry point.
Each sample has a sandbox of its own, destroyed at its end. On a template commands run as `user`; on
an image (`CellwallSandboxConfig(image="./task.tar", user="root")`) as the image's user or the one
that is named, and root inside may run them as any other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, overload

import cellwall
from cellwall.integrations.shared.extras import missing

try:
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxEnvironment,
        SandboxEnvironmentConfigType,
        SandboxEnvironmentLimits,
        SandboxUnavailableError,
        SandboxUserUnsupportedError,
        sandboxenv,
    )
    from pydantic import BaseModel
except ModuleNotFoundError as error:
    raise missing("inspect", error) from None

if TYPE_CHECKING:
    from cellwall.surface.sync.protocols import AnySandbox

_USERS = frozenset({"user", "1000"})
_WHO = "id -u; id -un 2>/dev/null || true"


class CellwallSandboxConfig(BaseModel, frozen=True, extra="forbid"):
    """`SandboxEnvironmentSpec("cellwall", CellwallSandboxConfig(…))`; all fields have defaults."""

    template: str = "python"
    image: str | None = None
    """A container image as the root, such as `./task.tar` or `python:3.12-slim`; tools of Inspect
    that run as root (`bash_session`, `text_editor`) need one, and `user="root"`."""
    user: str | None = None
    """A user of the image; None: the image's own."""
    volumes: tuple[str, ...] = ()
    """Volumes that samples see, such as `data:/data:ro`; one sample at a time may write to one."""
    limits: dict[str, int | float] = {}
    """Differences from `Limits.agent()`: an hour for a command and a day for a sample."""
    isolation: str = "namespace"
    runtime: str | None = None
    env: dict[str, str] = {}
    url: str | None = None
    """URL of the server that has the sandboxes; its key is taken from CELLWALL_API_KEY."""


@sandboxenv(name="cellwall")
class CellwallSandboxEnvironment(SandboxEnvironment):
    """One sandbox of one sample."""

    def __init__(
        self,
        sandbox: AnySandbox,
        client: Any = None,  # noqa: ANN401 - of `aconnect`
        *,
        is_image: bool = False,
    ) -> None:
        """Own both; called by `sample_init`."""
        super().__init__()
        self.sandbox = sandbox
        self._own_names = frozenset[str]() if is_image else _USERS
        """Name and number of the user that commands run as; empty until an image was asked."""
        self._client = client

    @classmethod
    async def sample_init(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        metadata: dict[str, str],
    ) -> dict[str, SandboxEnvironment]:
        """Create a sample's sandbox."""
        wanted = _config(config)
        client = None if wanted.url is None else await cellwall.aconnect(wanted.url)
        maker: Any = cellwall.AsyncSandbox if client is None else client.AsyncSandbox
        try:
            sandbox = await maker.create(
                wanted.template,
                limits=cellwall.Limits.agent(**{"output_kb": _output_kb(), **wanted.limits}),
                isolation=wanted.isolation,
                runtime=wanted.runtime,
                env=wanted.env,
                image=wanted.image,
                user=wanted.user,
                volumes=wanted.volumes or None,
            )
        except BaseException:
            if client is not None:
                await client.aclose()
            raise
        return {"default": cls(sandbox, client, is_image=wanted.image is not None)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Destroy a sample's sandbox."""
        for environment in environments.values():
            await environment.as_type(cls).close()

    async def close(self) -> None:
        """Destroy the sandbox; idempotent."""
        try:
            await self.sandbox.close()
        finally:
            client, self._client = self._client, None
            if client is not None:
                await client.aclose()

    @classmethod
    def default_concurrency(cls) -> int | None:
        """Return four samples for each processor: most of them wait for their models."""
        return 4 * (os.cpu_count() or 1)

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Return the configuration that a log was written with."""
        return CellwallSandboxConfig(**config)

    async def exec(  # noqa: PLR0913, PLR0917 - theirs
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,  # noqa: ASYNC109 - a limit of the command, not of the await
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command; one that ran out of time is not tried again."""
        with _translated():
            whom = None if user is None else await self._other(user)
            try:
                result = await self.sandbox.commands.run(
                    cmd, stdin=input, cwd=cwd, env=env, user=whom, timeout=timeout
                )
            except cellwall.NotFound as error:
                return ExecResult(False, 127, "", f"{error.message}\n")
        return _exec_result(result)

    async def _other(self, user: str) -> str | None:
        """Return `user`, or None if it is the sandbox's own, which alone can become no other."""
        if not self._own_names:
            said = await self.sandbox.commands.run(_WHO)
            self._own_names = frozenset(said.stdout.split())
        if user in self._own_names:
            return None
        if "0" not in self._own_names:
            own = ", ".join(sorted(self._own_names))
            raise SandboxUserUnsupportedError(
                f"the sandbox's user ({own}) cannot become {user!r}; make it with an image and "
                "user='root' in CellwallSandboxConfig"
            )
        return user

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a whole file and create its parents; refuse a read-only one, as Inspect wants."""
        files = self.sandbox.files
        with _translated():
            if await files.exists(file) and not (await files.stat(file)).mode & 0o200:
                raise cellwall.FileError(f"write {file!r}: read-only", reason="permission")
            await files.write(file, contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...
    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Return a file's content, as strict UTF-8 or as bytes."""
        most = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        with _translated():
            entry = await self.sandbox.files.stat(file)
            data = b"" if entry.size > most else await self.sandbox.files.read_bytes(file)
        if max(entry.size, len(data)) > most:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else data


def _config(config: SandboxEnvironmentConfigType | None) -> CellwallSandboxConfig:
    if config is None:
        return CellwallSandboxConfig()
    if isinstance(config, str):
        return CellwallSandboxConfig(template=config)
    if isinstance(config, CellwallSandboxConfig):
        return config
    raise cellwall.UsageError(
        f"sandbox: {type(config).__name__} is not a configuration of cellwall's",
        remedy="give the name of a template or a CellwallSandboxConfig",
    )


def _output_kb() -> int:
    return max(1, SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE // 1024)


def _exec_result(result: cellwall.CommandResult) -> ExecResult[str]:
    outcome, verdict = result.outcome, result.outcome.verdict
    if verdict is cellwall.Verdict.WALL_TIME:
        raise _timed_out(result)
    if verdict is cellwall.Verdict.SANDBOX_ERROR:
        raise SandboxUnavailableError("; ".join(outcome.notes) or "the sandbox has ended")
    if outcome.truncated:
        raise OutputLimitExceededError(
            SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.stdout + result.stderr
        )
    notes = "" if result.ok or not outcome.notes else f"[{'; '.join(outcome.notes)}]\n"
    return ExecResult(result.ok, result.status, result.stdout, result.stderr + notes)


def _timed_out(result: cellwall.CommandResult) -> TimeoutError:
    """Return an error that carries the output; Inspect shows it to the model."""
    error = TimeoutError("; ".join(result.outcome.notes) or "its time was over")
    said = result.stdout + result.stderr
    if said:
        setattr(error, "truncated_output", said)  # noqa: B010 - Inspect looks for it on any of these
    return error


@contextmanager
def _translated() -> Iterator[None]:
    """Translate errors to those of Inspect's contract; a file's are of the right kinds already."""
    try:
        yield
    except cellwall.SandboxUnavailable as error:
        raise SandboxUnavailableError(error.message) from error
    except cellwall.FileError as error:
        if error.reason != "too_large":
            raise
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
        raise OutputLimitExceededError(limit, None) from error

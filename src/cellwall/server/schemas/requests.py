"""Strict schemas of everything a caller may send; what they become for the engine is in `decode`.

Not the answers (`responses`). Strict: a field of the wrong type or an unknown name is refused.
Upper bounds of limits are not here: above the operator's ceiling a request is clipped and told.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Json, model_validator

from cellwall.engine.policy.arguments import SOURCE_CAP_BYTES, STDIN_CAP_BYTES
from cellwall.model.files import check_metadata
from cellwall.server.schemas.base import Name, StrictModel
from cellwall.server.schemas.images import ImageName, UserName
from cellwall.server.schemas.network import NetworkField
from cellwall.server.schemas.tools import ToolsBody
from cellwall.server.schemas.volumes import VolumeName, VolumePath

TemplateName = Annotated[str, Field(min_length=1, max_length=128)]
PathText = Annotated[str, Field(min_length=1, max_length=4096)]
Base64 = Annotated[str, Field(max_length=STDIN_CAP_BYTES * 4 // 3 + 4)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
Environment = Annotated[
    dict[VariableName, Annotated[str, Field(max_length=32_768)]], Field(max_length=256)
]
OnDisconnect = Literal["cancel", "detach"]
Scan = Literal["off", "warn", "block"]
Seconds = Annotated[float, Field(gt=0)]


class LimitsBody(StrictModel):
    """Limits of a sandbox; what is absent has the operator's default."""

    wall_s: Annotated[float, Field(ge=0.001)] | None = None
    cpu_s: Annotated[float, Field(ge=0.001)] | None = None
    cpus: Annotated[float, Field(ge=0.01)] | None = None
    memory_mb: Annotated[int, Field(ge=16)] | None = None
    processes: Annotated[int, Field(ge=1)] | None = None
    disk_mb: Annotated[int, Field(ge=1)] | None = None
    inodes: Annotated[int, Field(ge=64)] | None = None
    file_mb: Annotated[int, Field(ge=1)] | None = None
    output_kb: Annotated[int, Field(ge=1)] | None = None
    open_files: Annotated[int, Field(ge=16)] | None = None
    idle_s: Annotated[float, Field(ge=1)] | None = None
    life_s: Annotated[float, Field(ge=1)] | None = None


class FileBody(StrictModel):
    """A file that is not text."""

    content_b64: Base64


class _Coded(StrictModel):
    """Has code to run."""

    code: Annotated[str, Field(max_length=SOURCE_CAP_BYTES)] | None = Field(
        None, description="The program; exactly one of `code` and `code_b64`."
    )
    code_b64: Base64 | None = Field(None, description="The program's UTF-8 bytes in base64.")
    empty_ok: bool = Field(
        False,
        description="Code that is empty, or only white space, is a program that does nothing; "
        "without this it is refused as a mistake.",
    )
    language: Name | None = None
    lang: Name | None = Field(None, description="Older name of `language`.")
    stdin: Annotated[str, Field(max_length=STDIN_CAP_BYTES)] | None = None
    stdin_b64: Base64 | None = None
    timeout: Seconds | None = Field(None, description="Short for `limits.wall_s`.")
    on_disconnect: OnDisconnect | None = Field(
        None, description="What happens when the client goes away before the end."
    )
    scan: Scan = Field("off", description="A look at the source; advice, not a boundary.")
    tools: ToolsBody | None = Field(
        None, description="Functions of the client's that the code may call."
    )

    @model_validator(mode="after")
    def _one_of_each(self) -> _Coded:
        if (self.code is None) == (self.code_b64 is None):
            raise ValueError("give the program as `code` or as `code_b64`")
        if self.stdin is not None and self.stdin_b64 is not None:
            raise ValueError("give stdin as `stdin` or as `stdin_b64`")
        if self.language is not None and self.lang is not None:
            raise ValueError("give the language once")
        return self


class CellBody(_Coded):
    """Code for a context of a sandbox."""

    context: Name = Field(
        "main",
        description="Each language has a default context, called as it is; `main` stands for it.",
    )


Requirements = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=1000)]], Field(max_length=1000)
]


class _Placed(StrictModel):
    """Says where something runs."""

    limits: LimitsBody | None = None
    max_memory: Annotated[str, Field(pattern=r"^[0-9]{1,9}[kmgKMG]?$")] | None = Field(
        None, description="Older name of `limits.memory_mb`: bytes, or with k, m or g."
    )
    isolation: Literal["process", "namespace", "kernel", "vm"] | None = Field(
        None, description="The weakest acceptable level; without it the operator's default."
    )
    trust: Literal["untrusted", "semi", "trusted"] | None = Field(
        None, description="Instead of a level or a runtime; the operator says what it stands for."
    )
    runtime: Name | None = Field(None, description="By name; `auto` is the fastest that fits.")
    mode: Name | None = Field(None, description="Older name of `runtime`.")
    demand_hard: bool = False
    start: Literal["fork", "exec"] = "fork"
    template: TemplateName = Field(
        "python",
        description="One of the operator's, or one that you built, such as `task:1`; GET "
        "/templates lists both.",
    )
    image: ImageName | None = Field(
        None,
        description="The container image whose tree is the root, by a name that the operator "
        "permits, such as `python:3.12-slim`, or by its id.",
    )
    user: UserName | None = Field(
        None, description="A user of the image, such as `root`; without it the image's own."
    )
    volumes: Annotated[dict[VolumeName, VolumePath], Field(max_length=4)] | None = Field(
        None,
        description="Volumes by name, each with its path inside: `/data`, or `/data:ro` to read.",
    )
    network: NetworkField = Field(
        "none",
        description="Where it may connect to: nothing, rules, `packages` (the package broker "
        "alone), or `open` if permitted.",
    )
    packages: Requirements = Field(
        [], description="Python packages to install first, such as `requests` or `pandas>=2`."
    )
    env: Environment | None = None
    secrets: Annotated[list[Name], Field(max_length=32)] = Field(
        [], description="Names of the tenant's secrets; inside, variables have placeholders."
    )

    @model_validator(mode="after")
    def _one_runtime(self) -> _Placed:
        if self.runtime is not None and self.mode is not None:
            raise ValueError("give the runtime once")
        if self.env is not None and sum(map(len, self.env.values())) > 131_072:
            raise ValueError("env: more than 128 KiB")
        return self


class ExecuteBody(_Coded, _Placed):
    """One program for one fresh sandbox."""

    arguments: dict[str, Any] | None = Field(None, description="A JSON object the program sees.")
    args: Annotated[list[Annotated[str, Field(max_length=131_072)]], Field(max_length=1024)] = (
        Field([])
    )
    files: Annotated[dict[PathText, str | FileBody], Field(max_length=1000)] | None = None
    collect: Annotated[list[PathText], Field(max_length=100)] = Field(
        [], description="Files that come back as artifacts."
    )
    artifacts: PathText | None = Field(
        None, description="A folder of the working directory; all files in it come back."
    )
    compile_options: Annotated[list[Name], Field(max_length=32)] = Field(
        [], description="For the compiler; each has to be on its language's list."
    )
    compile_limits: LimitsBody | None = Field(
        None, description="Limits of the compile stage, which has defaults of its own."
    )
    webhook: Annotated[str, Field(max_length=2048)] | None = Field(
        None, description="A URL that is told of the end, if the operator allows that."
    )
    background: bool = Field(
        False, description="Answer at once, with 202, when it is accepted and on disk."
    )

    @model_validator(mode="after")
    def _nobody_waits(self) -> ExecuteBody:
        if self.background and self.on_disconnect == "cancel":
            raise ValueError("background: nobody's connection is there to be cancelled with")
        if self.background and self.tools is not None:
            raise ValueError("background: nobody's connection is there to answer calls to tools")
        return self


class BatchBody(StrictModel):
    """Many programs; `executions` is checked one by one."""

    executions: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=10_000)]
    concurrency: Annotated[int, Field(ge=1, le=1024)] | None = None


FileMetadata = Annotated[dict[str, str], AfterValidator(check_metadata)]
Metadata = Annotated[dict[Name, Annotated[str, Field(max_length=512)]], Field(max_length=32)]


class SandboxBody(_Placed):
    """A sandbox to create."""

    language: Name | None = None
    lang: Name | None = Field(None, description="Older name of `language`.")
    profile: Literal["default", "debug"] = Field(
        "default",
        description="With `debug` its programs may trace one another, as strace and gdb do, if the "
        "operator permits it.",
    )
    idle_s: Annotated[float, Field(ge=1)] | None = None
    life_s: Annotated[float, Field(ge=1)] | None = None
    auto_pause_s: Annotated[float, Field(ge=1, le=604_800)] | None = Field(
        None,
        description="Seconds without activity after which it pauses instead of ending, at most the "
        "limit `idle_s`.",
    )
    hibernate_s: Annotated[float, Field(ge=1, le=604_800)] | None = Field(
        None,
        description="Seconds of a pause after which its session is written to disk and its "
        "processes end, as far as nothing is lost; the next request brings it back.",
    )
    resume: Literal["auto", "manual"] = Field(
        "auto", description="`manual`: a request to it while it is paused is refused with 409."
    )
    name: Name | None = None
    metadata: Metadata = Field({})


class PackagesBody(StrictModel):
    """Packages to install."""

    packages: Annotated[Requirements, Field(min_length=1)] = Field(
        description="Names, each maybe with versions: `pandas>=2`."
    )
    timeout: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Seconds of wall time; without it 120."
    )


class SandboxChange(StrictModel):
    """What may change in a sandbox's life."""

    life_s: Annotated[float, Field(ge=1)] | None = None
    name: Name | None = None
    metadata: Metadata | None = None


class HibernateBody(StrictModel):
    """How a sandbox is hibernated."""

    drop: bool = Field(
        False,
        description="Whether what an image has not, such as commands that run, may end; else it is "
        "refused with 409 while there is some.",
    )
    keep: Literal["session", "files"] = Field(
        "session",
        description="`files`: all that runs ends, the session and executions under way, too; a "
        "fresh sandbox with its files goes on.",
    )


class ContextBody(StrictModel):
    """A context to create."""

    name: Name | None = None
    language: Name = "python"


class Window(StrictModel):
    """A terminal's size."""

    rows: Annotated[int, Field(ge=1, le=1000)]
    cols: Annotated[int, Field(ge=1, le=1000)]


class CommandBody(StrictModel):
    """A command to start."""

    argv: (
        Annotated[
            list[Annotated[str, Field(max_length=131_072)]], Field(min_length=1, max_length=4096)
        ]
        | None
    ) = None
    command: Annotated[str, Field(min_length=1, max_length=SOURCE_CAP_BYTES)] | None = Field(
        None, description="A line for a shell inside; exactly one of `argv` and `command`."
    )
    cwd: PathText | None = None
    env: Environment | None = None
    user: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        None, description="A user of the image; only where the sandbox's own user is root."
    )
    stdin: Annotated[str, Field(max_length=STDIN_CAP_BYTES)] | None = None
    stdin_b64: Base64 | None = None
    timeout: Seconds | None = None
    merge_stderr: bool = Field(
        False, description="What it writes to stderr comes as stdout, in the order of writing."
    )
    background: bool = False
    on_disconnect: OnDisconnect | None = None

    @model_validator(mode="after")
    def _one_of_each(self) -> CommandBody:
        if (self.argv is None) == (self.command is None):
            raise ValueError("give `argv` or `command`")
        if self.stdin is not None and self.stdin_b64 is not None:
            raise ValueError("give stdin as `stdin` or as `stdin_b64`")
        return self


class SignalBody(StrictModel):
    """A signal for a command."""

    signal: Annotated[int, Field(ge=1, le=64)] | Annotated[str, Field(pattern="^[A-Z0-9+-]{2,12}$")]


class MkdirBody(StrictModel):
    """A directory to make."""

    path: PathText
    parents: bool = True


class MoveBody(StrictModel):
    """A file to move."""

    path: PathText
    target: PathText


class SignBody(StrictModel):
    """A file that a client without a key may read or write once known the address."""

    path: PathText
    operation: Literal["read", "write"]
    expires_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    max_bytes: Annotated[int, Field(ge=0)] | None = None


class PortSignBody(StrictModel):
    """A port that a client without a key may reach."""

    port: Annotated[int, Field(ge=1, le=65_535)]
    expires_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0


class Query(BaseModel):
    """What every query is: text that becomes what it says, no unknown names."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class KeyBody(StrictModel):
    """A new API key."""

    tenant: Name
    scope: Literal["run", "manage", "admin"] = "run"
    name: Name | None = None
    expires_s: Seconds | None = Field(
        None, description="Seconds from now until it ends; without it, when it is revoked."
    )


class SecretBody(StrictModel):
    """A secret, which is bound to hosts and never shown."""

    value: Annotated[str, Field(max_length=4096)] = Field(
        description="8 to 4096 printable ASCII characters.",
        json_schema_extra={"writeOnly": True},
    )
    hosts: Annotated[list[Annotated[str, Field(max_length=300)]], Field(max_length=64)] = Field(
        description="Names of hosts that get it over TLS, with `:PORT` unless it is 443. A "
        "scheme of http before one means a server without TLS."
    )
    places: list[Literal["header", "query", "basic"]] | None = Field(
        None, description="Where in a request it may stand; without this, in all of these."
    )


class WaitQuery(Query):
    """How long to hold the answer."""

    wait: Annotated[float, Field(ge=0, le=60)] = 0.0


class AfterQuery(Query):
    """Where to continue."""

    after: Annotated[int, Field(ge=0, le=10**15)] | None = None


class ListQuery(BaseModel):
    """Filters of the list of sandboxes; `metadata.KEY=VALUE` may be added."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)
    state: Literal["running", "paused", "hibernated", "live", "stopped"] | None = Field(
        None, description="`live`: running, paused or hibernated."
    )
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    after: Annotated[str, Field(max_length=64)] | None = None

    @model_validator(mode="after")
    def _known(self) -> ListQuery:
        for name in self.model_extra or {}:
            if not name.startswith("metadata.") or len(name) == len("metadata."):
                raise ValueError(f"{name[:40]!r} is not a filter")
        return self


class LogQuery(AfterQuery):
    """A part of a sandbox's log."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class PathQuery(Query):
    """A file."""

    path: PathText


class FolderQuery(Query):
    """A directory."""

    path: PathText = "."


class WriteQuery(PathQuery):
    """A file to write."""

    mode: Annotated[str, Field(pattern="^0?[0-7]{3}$")] | None = None
    append: bool = False
    metadata: Json[FileMetadata] | None = None

    @model_validator(mode="after")
    def _fits(self) -> WriteQuery:
        if self.append and self.metadata is not None:
            raise ValueError("metadata: an append changes none")
        return self


class RemoveQuery(PathQuery):
    """Something to remove."""

    recursive: bool = False


class FilesQuery(FolderQuery):
    """A directory to list."""

    depth: Annotated[int, Field(ge=1, le=64)] = 1
    limit: Annotated[int, Field(ge=1, le=10_000)] = 1000


class WatchQuery(FolderQuery):
    """A directory to watch."""

    recursive: bool = True


class StdinQuery(Query):
    """Whether the input ends."""

    close: bool = False


class TerminalQuery(Query):
    """A terminal to open."""

    rows: Annotated[int, Field(ge=1, le=1000)] = 24
    cols: Annotated[int, Field(ge=1, le=1000)] = 80
    cwd: PathText | None = None
    user: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    command: Annotated[str, Field(min_length=1, max_length=131_072)] | None = None
    detach_s: Annotated[float, Field(ge=0, le=604_800, allow_inf_nan=False)] = 0.0
    """Seconds that it waits for a client when it has none; 0: it is hung up at once."""


class AttachQuery(Query):
    """A terminal that runs, to be taken by this client."""

    rows: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Without a size the terminal keeps the one it has."""
    cols: Annotated[int, Field(ge=1, le=1000)] | None = None

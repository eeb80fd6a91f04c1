"""Arguments of each tool: closed models that give the input schemas and check the input.

`tools` carries the calls out. Models read the field descriptions, so these tell what to give and
when. The invariant: an unknown argument of a tool is refused with the names of the known ones.
"""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cellwall.model.errors import UsageError
from cellwall.model.snapshot import DAY_S, MOST_EXPIRES_S, NAME_PATTERN, Threads

Id = Annotated[str, Field(description="Id that create_sandbox returned.")]
Code = Annotated[
    str,
    Field(
        description="The program. In Python the value of a last expression is shown as in a "
        "notebook, tables and matplotlib figures too; print what else you want to see.",
    ),
]
Path = Annotated[
    str,
    Field(
        min_length=1,
        description="A path inside the sandbox; relative ones start at /home/user.",
    ),
]
Timeout = Annotated[
    float | None,
    Field(gt=0, description="Seconds it may take, 30 by default; ask for more for long work."),
]
Stdin = Annotated[str | None, Field(description="Text for its standard input.")]
Env = Annotated[dict[str, str] | None, Field(description="Environment variables.")]
SnapshotWord = Annotated[
    str, Field(min_length=1, max_length=64, description="The snapshot's name, or its id.")
]
Reseed = Annotated[
    bool,
    Field(description="New random seeds, so that copies differ; false repeats the same numbers."),
]

ThreadsWord = Annotated[
    Threads,
    Field(description="If its session has threads: refuse, or drop for copies without them."),
]


class LimitArguments(BaseModel):
    """Limits that a caller may choose; an absent one has the default."""

    model_config = ConfigDict(extra="forbid", strict=True)

    cpu_s: float | None = Field(None, gt=0, description="CPU seconds of one execution.")
    cpus: float | None = Field(None, gt=0, description="Share of CPUs, 1.0 is one core.")
    memory_mb: int | None = Field(None, ge=16, description="MiB of memory, 512 by default.")
    processes: int | None = Field(None, ge=1, description="Processes and threads.")
    disk_mb: int | None = Field(None, ge=1, description="MiB of files, 256 by default.")
    file_mb: int | None = Field(None, ge=1, description="MiB of the largest file.")
    output_kb: int | None = Field(None, ge=1, description="KiB kept of stdout and of stderr.")
    idle_s: float | None = Field(None, ge=1, description="A sandbox ends after so long unused.")
    life_s: float | None = Field(None, ge=1, description="A sandbox ends after this time.")

    def given(self) -> dict[str, Any]:
        """Return the limits that were given."""
        return self.model_dump(exclude_none=True)


Limits = Annotated[LimitArguments | None, Field(description="Other limits than the defaults.")]


class Arguments(BaseModel):
    """Base of every tool's arguments."""

    model_config = ConfigDict(extra="forbid", strict=True)


class RunCode(Arguments):
    """Arguments of `run_code`."""

    code: Code
    language: str | None = Field(None, description="Its language; python by default.")
    template: str | None = Field(None, description="What is installed, see the tool's description.")
    stdin: Stdin = None
    files: dict[str, str] | None = Field(
        None, description="Text files by relative path, written before it starts."
    )
    args: list[str] | None = Field(None, description="Words for the program's command line.")
    env: Env = None
    collect: list[str] | None = Field(
        None, description="Relative paths of files to return when it has ended."
    )
    timeout: Timeout = None
    limits: Limits = None


class CreateSandbox(Arguments):
    """Arguments of `create_sandbox`."""

    template: str | None = Field(None, description="What is installed, see the tool's description.")
    env: Env = None
    limits: Limits = None
    auto_pause_s: float | None = Field(
        None,
        ge=1,
        description="Seconds unused after which it pauses instead of ending; a call resumes it.",
    )


class Execute(Arguments):
    """Arguments of `execute`."""

    sandbox_id: Id
    code: Code
    language: str | None = Field(None, description="Its language; that of the context by default.")
    context: str = Field(
        "main", description="The interpreter that keeps the variables; a new name makes a new one."
    )
    stdin: Stdin = None
    timeout: Timeout = None


class RunCommand(Arguments):
    """Arguments of `run_command`."""

    sandbox_id: Id
    command: str = Field(min_length=1, description="A shell command line, run by bash.")
    cwd: str | None = Field(None, description="Where it runs; /home/user by default.")
    env: Env = None
    stdin: Stdin = None
    timeout: Timeout = None


class ReadFile(Arguments):
    """Arguments of `read_file`."""

    sandbox_id: Id
    path: Path
    first_line: int = Field(1, ge=1, description="Line of a text file to begin with.")
    lines: int | None = Field(None, ge=1, description="How many lines; all by default.")


class WriteFile(Arguments):
    """Arguments of `write_file`."""

    sandbox_id: Id
    path: Path
    content: str = Field(description="The whole text of the file.")
    append: bool = Field(False, description="Add to the end of what is there.")


class ListFiles(Arguments):
    """Arguments of `list_files`."""

    sandbox_id: Id
    path: str = Field(".", min_length=1, description="The directory; /home/user by default.")
    depth: int = Field(1, ge=1, le=20, description="How many levels down.")
    limit: int = Field(200, ge=1, le=1000, description="Most entries to return.")


class Upload(Arguments):
    """Arguments of `upload`."""

    sandbox_id: Id
    path: Path
    blob: str | None = Field(None, description="The file's bytes as base64.")
    uri: str | None = Field(
        None,
        description="Or where they are: a data: URI, or cellwall://sandbox/<id>/files/<path> "
        "of another sandbox of yours.",
    )


class Download(Arguments):
    """Arguments of `download`."""

    sandbox_id: Id
    path: Path


class DestroySandbox(Arguments):
    """Arguments of `destroy_sandbox`."""

    sandbox_id: Id


class ForkSandbox(Arguments):
    """Arguments of `fork_sandbox`."""

    sandbox_id: Id
    count: int = Field(1, ge=1, le=64, description="How many copies.")
    reseed: Reseed = True
    threads: ThreadsWord = "refuse"


class SnapshotSandbox(Arguments):
    """Arguments of `snapshot_sandbox`."""

    sandbox_id: Id
    name: str | None = Field(
        None,
        pattern=NAME_PATTERN,
        description="A name to find it by: letters, digits, '.', '_', '-'; made up by default.",
    )
    expires_s: float = Field(
        DAY_S, gt=0, le=MOST_EXPIRES_S, description="Seconds for which it is kept."
    )
    threads: ThreadsWord = "refuse"


class RestoreSnapshot(Arguments):
    """Arguments of `restore_snapshot`."""

    snapshot: SnapshotWord
    reseed: Reseed = True


class ListSnapshots(Arguments):
    """Arguments of `list_snapshots`."""


class DeleteSnapshot(Arguments):
    """Arguments of `delete_snapshot`."""

    snapshot: SnapshotWord


Tool = Literal[
    "run_code",
    "create_sandbox",
    "execute",
    "run_command",
    "read_file",
    "write_file",
    "list_files",
    "upload",
    "download",
    "destroy_sandbox",
    "fork_sandbox",
    "snapshot_sandbox",
    "restore_snapshot",
    "list_snapshots",
    "delete_snapshot",
]
BY_TOOL: dict[str, type[Arguments]] = {
    "run_code": RunCode,
    "create_sandbox": CreateSandbox,
    "execute": Execute,
    "run_command": RunCommand,
    "read_file": ReadFile,
    "write_file": WriteFile,
    "list_files": ListFiles,
    "upload": Upload,
    "download": Download,
    "destroy_sandbox": DestroySandbox,
    "fork_sandbox": ForkSandbox,
    "snapshot_sandbox": SnapshotSandbox,
    "restore_snapshot": RestoreSnapshot,
    "list_snapshots": ListSnapshots,
    "delete_snapshot": DeleteSnapshot,
}


def checked(tool: str, given: dict[str, Any]) -> Arguments:
    """Return the arguments of a call; `UsageError` names the wrong one and the known ones."""
    model = BY_TOOL[tool]
    try:
        return model.model_validate(given)
    except ValidationError as error:
        faults = [_fault(model, each) for each in error.errors(include_url=False)[:3]]
        raise UsageError(
            f"{tool}: {'; '.join(faults)}"[:1000], remedy=f"call it as {_signature(tool, model)}"
        ) from None


def _fault(model: type[Arguments], fault: Any) -> str:  # noqa: ANN401 - of pydantic
    place = ".".join(str(part)[:60] for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(fault["loc"][-1]), _names(model, fault["loc"]), 1, 0.5)
        return f"there is no argument {place!r}" + (f", did you mean {near[0]!r}?" if near else "")
    if fault["type"] == "missing":
        return f"argument {place!r} is missing"
    said = str(fault["msg"])
    return f"argument {place!r}: {said[:1].lower()}{said[1:]}, not {_shown(fault['input'])}"


def _names(model: type[Arguments], place: tuple[Any, ...]) -> list[str]:
    return list(LimitArguments.model_fields if len(place) > 1 else model.model_fields)


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:40]}..."


def _signature(tool: str, model: type[Arguments]) -> str:
    fields = model.model_fields.items()
    words = [name if field.is_required() else f"{name}?" for name, field in fields]
    return f"{tool}({', '.join(words)})"

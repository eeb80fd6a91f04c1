"""Schemas of everything the server answers; for the OpenAPI document and its tests only.

Not used while answering: answers are built by `wire` and the records, and a test holds every one
of them against these. The invariant: closed, so that an undocumented key is a failing test.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Verdict = Literal[
    "ok", "exception", "nonzero_exit", "signalled", "wall_time", "cpu_time", "memory", "processes",
    "disk", "output", "syscall", "cancelled", "interrupted", "compile_error",
    "sandbox_error",
]  # fmt: skip
Trust = Literal["untrusted", "semi", "trusted"]
Status = Literal["success", "error", "timeout", "queued", "running"]


class Shown(BaseModel):
    """What every answer is: closed. Built when the document is first asked for."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class Health(Shown):
    """The server answers."""

    status: Literal["ok"]
    version: str


class Finding(Shown):
    """One thing a look at the source found."""

    rule: str
    line: int
    column: int
    message: str


class Fault(Shown):
    """What went wrong."""

    code: str
    message: str
    remedy: str | None
    request_id: str
    reason: str | None = None
    findings: list[Finding] | None = None
    quota: str | None = None
    position: int | None = None


class Error(Shown):
    """The one shape of every error."""

    error: Fault


class Scanned(Shown):
    """What a look at the source found."""

    findings: list[Finding]


class Isolation(Shown):
    """Which isolation really ran."""

    runtime: str
    level: Literal["process", "namespace", "kernel", "vm"]
    posture: str
    limits: dict[str, str]
    ids: Literal["own", "shared"] = "shared"
    profile: Literal["default", "debug"] = "default"


class NetworkUsage(Shown):
    """What passed the egress proxy."""

    connections: int
    refused: int
    sent_bytes: int
    received_bytes: int


class SandboxNetwork(Shown):
    """A sandbox's network."""

    policy: dict[str, Any]
    usage: NetworkUsage


class Installed(Shown):
    """What an installation added."""

    installed: list[str]


class NetworkLog(Shown):
    """Connections and refusals."""

    records: list[dict[str, Any]]


class Usage(Shown):
    """What was used."""

    wall_s: float
    cpu_s: float
    memory_peak_bytes: int
    processes_peak: int | None
    stdout_bytes: int
    stderr_bytes: int
    network: NetworkUsage | None = None


class Truncated(Shown):
    """Bytes that were produced and not kept."""

    stdout: int
    stderr: int
    display: int


class Outcome(Shown):
    """How it ended, and the evidence."""

    verdict: Verdict
    exit_code: int | None
    signal: int | None
    exit_status: int | None = None
    usage: Usage
    truncated: Truncated
    isolation: Isolation
    notes: list[str]


class Limits(Shown):
    """The limits that applied."""

    wall_s: float
    cpu_s: float
    cpus: float
    memory_mb: int
    processes: int
    disk_mb: int
    inodes: int
    file_mb: int
    output_kb: int
    open_files: int
    idle_s: float
    life_s: float


class Raised(Shown):
    """An uncaught exception."""

    name: str
    value: str
    traceback: str
    line: int | None


class Artifact(Shown):
    """A file that was asked for."""

    name: str
    mime_type: str
    size: int
    sha256: str
    content_b64: str


class Compilation(Shown):
    """The compile stage; without an outcome if an earlier product was taken."""

    version: str
    cached: bool
    stdout: str
    stderr: str
    outcome: Outcome | None
    limits: Limits


class Execution(Shown):
    """One execution; while it runs, what is not known yet is null or empty."""

    execution_id: str
    sandbox_id: str | None
    template: str
    language: str
    status: Status
    verdict: Verdict | None
    stdout: str
    stderr: str
    result: Any
    results: list[dict[str, Any]]
    exit_code: int | None
    signal: int | None
    exit_status: int | None = None
    error: str | None
    exception: Raised | None
    oom_killed: bool
    time_ms: float
    execution_time: float
    artifacts: list[Artifact]
    truncated: Truncated
    usage: Usage | None
    isolation: Isolation | None
    trust: Trust | None
    limits: Limits | None
    clipped: dict[str, float]
    notes: list[str]
    compile: Compilation | None
    scan: Scanned | None
    started_at: str | None
    failure: Fault | None = None


class Sandbox(Shown):
    """One sandbox."""

    id: str
    name: str | None
    status: Literal["running", "paused", "hibernated", "stopped"]
    language: str
    template: str
    created_at: str
    expires_at: str
    isolation: Isolation
    trust: Trust | None
    image: str | None = None
    user: str | None = None
    volumes: dict[str, str] | None = None
    limits: Limits
    clipped: dict[str, float]
    metadata: dict[str, str]
    network: dict[str, Any] = {}
    auto_pause_s: float | None = None
    hibernate_s: float | None = None
    resume: Literal["auto", "manual"] = "auto"
    stays_because: str | None = None
    """Why the present pause has not become a hibernation, if it should have."""
    hibernated_bytes: int | None = None
    """Bytes of disk that it takes while it is hibernated."""
    hibernated_keeps: Literal["session", "files"] | None = None
    """What it comes back with while it is hibernated."""
    hibernated_durable: bool | None = None
    """Whether it goes on after an end of its server, too, while it is hibernated."""
    ended_because: str | None


class Hibernated(Sandbox):
    """A sandbox that has no processes, and what ended with these for good."""

    left_behind: list[str]


class SandboxList(Shown):
    """A page of sandboxes."""

    sandboxes: list[Sandbox]
    next: str | None


class Done(Shown):
    """It was done, to the thing of that id."""

    message: str
    id: str


class NamedDone(Shown):
    """It was done, to the thing of that name."""

    message: str
    name: str


class PathDone(Shown):
    """It was done, to that path."""

    message: str
    path: str


class Context(Shown):
    """One context."""

    name: str
    language: str


class ContextList(Shown):
    """The contexts that are alive."""

    contexts: list[Context]


class TerminalSize(Shown):
    """A terminal's size."""

    rows: int
    cols: int


class Command(Shown):
    """One command; what has not ended has no outcome."""

    id: str
    argv: list[str]
    status: Literal["running", "ended"]
    pid: int | None
    started_at: str | None
    terminal: TerminalSize | None
    kept: bool = False
    """Whether it goes on if the server is restarted."""
    verdict: Verdict | None
    exit_code: int | None
    signal: int | None
    exit_status: int | None = None
    outcome: Outcome | None
    stdout: str | None
    stderr: str | None
    last_event: int = 0
    """Number of its latest event, for a reader that wants only what comes after."""
    failure: Fault | None = None


class CommandList(Shown):
    """The commands of a sandbox."""

    commands: list[Command]


class Written(Shown):
    """What was taken."""

    written: int


class File(Shown):
    """A file that was written."""

    path: str
    size: int


class FileList(Shown):
    """Files that were written."""

    files: list[File]


class Entry(Shown):
    """A file as the inside describes it."""

    name: str
    path: str
    type: str
    size: int
    mode: int
    mtime: float
    target: str | None
    uid: int | None = None
    gid: int | None = None
    metadata: dict[str, str] = {}


class Entries(Shown):
    """A directory's content."""

    entries: list[Entry]
    truncated: bool


class Unpacked(Shown):
    """What an archive held."""

    files: int
    bytes: int


class Signed(Shown):
    """An address that works without a key."""

    url: str
    method: Literal["GET", "PUT"]
    expires_at: str


class PortSigned(Shown):
    """A token that opens one port."""

    token: str
    url: str
    expires_at: str


class Metrics(Shown):
    """A sandbox's counters, from the kernel."""

    id: str
    status: Literal["running", "paused", "hibernated", "stopped"]
    cpu_s: float
    memory_bytes: int
    memory_peak_bytes: int
    processes_peak: int | None
    oom_kills: int
    disk_full: bool
    executions: int
    commands: int


class LogRecord(BaseModel):
    """One thing that happened to a sandbox; further keys depend on it."""

    seq: int
    time: str
    event: str


class AuditRecord(Shown):
    """One audit record, as it is chained."""

    v: str
    seq: int
    time: str
    mono_ns: int
    tenant: str
    actor: str
    action: str
    object: str
    parameters: str
    decision: str
    runtime: str
    posture: str
    result: str
    usage: str
    details: str
    request: str
    prev: str
    hash: str


class AuditPage(Shown):
    """A part of the audit, oldest first."""

    records: list[AuditRecord]
    next: int | None


class Logs(Shown):
    """A part of a sandbox's log."""

    records: list[LogRecord]
    next: int | None

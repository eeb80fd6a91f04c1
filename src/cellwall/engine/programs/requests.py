"""One-shot requests: check the arguments of `run` and make a plan, or raise `UsageError`.

Pure; nothing here touches a sandbox. Every mistake that a caller can make is found here, before a
sandbox is claimed, and every message names the argument and a remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cellwall.engine.policy.arguments import (
    check_arguments,
    check_compile_options,
    check_env,
    check_files,
    check_folder,
    check_inner_path,
    check_limits,
    check_source,
    check_stdin,
    check_tools,
    check_words,
)
from cellwall.engine.policy.levels import NO_FLOOR, Floor, IsolationRequest
from cellwall.languages import lookup
from cellwall.model.errors import UsageError
from cellwall.model.limits import Limits

if TYPE_CHECKING:
    from cellwall.languages.entries.language import Language
    from cellwall.surface.tools.tools import Offer, Tools


@dataclass(frozen=True, slots=True)
class Request:
    """All arguments of one `run`."""

    code: str
    language: str = "python"
    stdin: str | bytes | None = None
    arguments: Mapping[str, Any] | None = None
    files: Mapping[str, str | bytes] | None = None
    timeout: float | None = None
    limits: Limits | Mapping[str, Any] | None = None
    template: str = "python"
    runtime: str | None = None
    isolation: str | None = None
    """Isolation level; None: the operator's default."""
    trust: str | None = None
    """`untrusted`, `semi` or `trusted`, instead of a level or a runtime."""
    floor: Floor = NO_FLOOR
    """Operator's demand on this tenant; set by the server's interfaces, never by callers."""
    demand_hard: bool = False
    start: str = "fork"
    """`exec`: an interpreter started for this program, which shares no hash seed and no addresses;
    slower."""
    env: Mapping[str, str] | None = None
    args: Sequence[str] = ()
    collect: Sequence[str] = ()
    artifacts: str | None = None
    """Folder of the working directory whose files are all returned."""
    compile_options: Sequence[str] = ()
    """Options for the compiler, each on its language's list."""
    compile_limits: Limits | Mapping[str, Any] | None = None
    """Limits of the compile stage; an absent one has a default of its own."""
    tenant: str = ""
    """Tenant of the request: a compiled product is found again by the same tenant only."""
    tools: Tools | None = None
    """Functions of the caller that the program may call as `tools.name(…)`."""
    network: object = None
    """What `NetworkPolicy.of` takes; None is no network. A compile stage never has one."""
    secrets: object = None
    """What `secrets_of` takes, such as a list of `Secret`, or names of those that a server keeps.
    The values never enter the sandbox."""
    volumes: object = None
    """What `model.volume.mounts_of` takes, such as `{"data": "/data"}`: volumes that exist, which
    the program sees; a compile stage does not."""
    packages: Sequence[str] = ()
    """Python packages that are installed before the program runs, such as `requests>=2`."""
    image: str | None = None
    """What `images.reference.parse` takes, such as `python:3.12-slim`: its tree is the root."""
    user: str | None = None
    """A user of the image; None: the image's own."""

    @property
    def isolation_request(self) -> IsolationRequest:
        """Isolation that the request asks for."""
        return IsolationRequest(self.isolation, self.runtime, self.trust, self.floor)


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked request."""

    language: Language
    source: bytes
    stdin: bytes | None
    arguments: Mapping[str, Any] | None
    files: tuple[tuple[str, bytes], ...]
    limits: Limits
    env: Mapping[str, str]
    args: tuple[str, ...]
    collect: tuple[str, ...]
    artifacts: str | None
    file_name: str
    """File name of the source inside the sandbox."""
    compile_options: tuple[str, ...]
    compile_limits: Limits
    tools: Offer | None

    @property
    def is_warm(self) -> bool:
        """Whether a warm context runs it; otherwise it is a command."""
        if self.language.context == "javascript":
            return self.arguments is None
        return self.language.context in {"python", "sql"}

    @property
    def spoken(self) -> str:
        """Language of the contexts of its sandbox."""
        return str(self.language.context) if self.is_warm else "python"


def plan(request: Request, defaults: Limits) -> Plan:
    """Check `request`; raise `UsageError` or `NotFound` (an unknown language)."""
    language = lookup.find(request.language)
    if not language.run and language.context != "sql":
        raise UsageError(
            f"language {language.name!r}: it runs in sessions only",
            remedy=f"make a sandbox and call its run(code, language={language.name!r})",
        )
    files = check_files(request.files or {})
    source = check_source(request.code)
    file_name = language.name_of(request.code)
    if language.context != "python" and file_name in dict(files):
        raise UsageError(
            f"files: {file_name!r} is the name of the program itself",
            remedy="name the file differently",
        )
    found = Plan(
        language=language,
        source=source,
        stdin=check_stdin(request.stdin),
        arguments=check_arguments(request.arguments),
        files=files,
        limits=check_limits(request.limits, request.timeout, usual_limits(language, defaults)),
        env=check_env(request.env or {}),
        args=check_words(request.args, "args"),
        collect=tuple(
            check_inner_path(path, "collect") for path in check_words(request.collect, "collect")
        ),
        artifacts=None if request.artifacts is None else check_folder(request.artifacts),
        file_name=file_name,
        compile_options=check_compile_options(request.compile_options, language),
        compile_limits=check_limits(request.compile_limits, None, compile_defaults(defaults)),
        tools=check_tools(request.tools, language),
    )
    if request.image is not None or request.user is not None:
        _check_image(request, found)
    if found.tools is not None and not found.is_warm:
        raise UsageError(
            f"tools: this program in {language.name} runs as a command, and those cannot call them",
            remedy="make a sandbox with tools and call its run(code, language=…)",
        )
    return found


def _check_image(request: Request, found: Plan) -> None:
    """Raise `UsageError` for a program that an image cannot run."""
    if request.image is None:
        raise UsageError("user: it is one of an image", remedy="name an image, too")
    language = found.language
    if language.compile or (found.is_warm and language.context != "python"):
        raise UsageError(
            f"language {language.name!r}: its tools are a template's, and this is an image",
            remedy="make a sandbox on the image and run the image's own tools as commands",
        )


def usual_limits(language: Language, defaults: Limits) -> Limits:
    """Return the limits of a program that names none: some languages need more than others."""
    wanted = {name: max(value, getattr(defaults, name)) for name, value in language.limits.items()}
    return defaults.with_changes(wanted)


@lru_cache(maxsize=256)
def compile_defaults(defaults: Limits) -> Limits:
    """Return the limits of a compile stage that names none.

    A compiler needs more memory than most programs, and more time to start.
    """
    least = {"wall_s": 60.0, "cpu_s": 60.0, "memory_mb": 1024}
    return defaults.with_changes(
        {name: max(value, getattr(defaults, name)) for name, value in least.items()}
    )

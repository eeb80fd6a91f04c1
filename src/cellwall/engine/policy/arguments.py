"""Checks of single arguments, for the library and every server interface: a value or `UsageError`.

Pure. `programs.requests` checks which arguments go together. Every message names the argument and a
remedy.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
from signal import NSIG
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import UsageError
from cellwall.model.limits import Limits
from cellwall.model.nesting import MOST_ARGUMENT_LEVELS, is_nested
from cellwall.model.unicode import utf8

if TYPE_CHECKING:
    from cellwall.languages.entries.language import Language
    from cellwall.model.outcome import Profile
    from cellwall.runtimes.base import Start
    from cellwall.surface.tools.tools import Offer, Tools

SOURCE_CAP_BYTES = 16 * 1024 * 1024
STDIN_CAP_BYTES = 64 * 1024 * 1024
FILE_CAP_BYTES = 32 * 1024 * 1024
ARGUMENTS_CAP_BYTES = 512 * 1024
"""Maximum size in bytes: `arguments` travel in a frame's header together with `args`, and init
reads headers up to 1 MiB."""
_CALLING = frozenset({"python", "javascript", "typescript"})
"""Contexts whose code can call tools of the host."""


def check_compile_options(options: Sequence[str], language: Language) -> tuple[str, ...]:
    """Return the options if all are on the language's list."""
    words = check_words(options, "compile_options")
    for word in words:
        if not language.allows(word):
            raise UsageError(
                f"compile_options: {word[:80]!r} is not allowed for {language.name}",
                remedy=f"allowed are: {', '.join(language.options)}"
                if language.options
                else f"{language.name} takes none; leave it out",
            )
    return words


def may_call(language: Language) -> bool:
    """Report whether code of that language can call tools."""
    return language.context in _CALLING


def offered(tools: Tools | None) -> Offer | None:
    """Return what a caller gave as `tools=` as a box; None for none. Raises UsageError."""
    if tools is None:
        return None
    from cellwall.surface.tools.tools import box_of  # most callers offer none

    return box_of(tools)


def check_tools(tools: Tools | None, language: Language) -> Offer | None:
    """Return the tools that a program of that language may call."""
    box = offered(tools)
    if box is not None and not may_call(language):
        raise UsageError(
            f"tools: a program in {language.name} cannot call them",
            remedy="write it in python or javascript",
        )
    return box


def check_start(start: str) -> Start:
    """Return the way in which the interpreter starts."""
    known: dict[str, Start] = {"fork": "fork", "exec": "exec"}
    if start in known:
        return known[start]
    raise UsageError(
        f"start: {start!r} is not a way to start",
        remedy="say 'fork' (warm, the default) or 'exec' (an interpreter of its own)",
    )


def check_profile(profile: str, permitted: Sequence[str]) -> Profile:
    """Return the profile of system calls; `permitted` are those besides the default."""
    if profile == "default":
        return "default"
    if profile == "debug" and profile in permitted:
        return "debug"
    if profile != "debug":
        raise UsageError(f"profile: {profile!r} is not one", remedy="say 'debug', or leave it out")
    raise UsageError(
        "profile: the operator does not permit 'debug'",
        remedy='permit it: CELLWALL_PROFILES=debug, or [engine] profiles = ["debug"]',
    )


def check_source(code: str) -> bytes:
    """Return the source as bytes; an empty program is allowed and ends successfully."""
    if not isinstance(code, str):
        raise UsageError(
            f"code: {type(code).__name__} is not text", remedy="give the program as a string"
        )
    if "\0" in code:
        raise UsageError("code: it contains a NUL character", remedy="remove it")
    source = utf8(code, "code")
    if len(source) > SOURCE_CAP_BYTES:
        raise UsageError(
            f"code: {len(source)} bytes is above {SOURCE_CAP_BYTES}",
            remedy="put data into `files` or stdin",
        )
    return source


def check_stdin(stdin: str | bytes | None) -> bytes | None:
    """Return stdin as bytes; None means that there is none."""
    if stdin is None:
        return None
    if not isinstance(stdin, (str, bytes)):
        raise UsageError(
            f"stdin: {type(stdin).__name__} is not text", remedy="give a string or bytes"
        )
    data = utf8(stdin, "stdin", escapes=True) if isinstance(stdin, str) else stdin
    if len(data) > STDIN_CAP_BYTES:
        raise UsageError(
            f"stdin: {len(data)} bytes is above {STDIN_CAP_BYTES}", remedy="send it as a file"
        )
    return data


def check_arguments(arguments: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return `arguments` if they are a JSON object."""
    if arguments is None:
        return None
    if not isinstance(arguments, Mapping) or not all(isinstance(key, str) for key in arguments):
        raise UsageError(
            "arguments: not an object with text keys", remedy="give a dict like {'n': 3}"
        )
    try:
        size = len(json.dumps(dict(arguments), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"arguments: not JSON: {error}", remedy="give plain JSON values") from None
    if size > ARGUMENTS_CAP_BYTES:
        raise UsageError(
            f"arguments: {size} bytes of JSON is above {ARGUMENTS_CAP_BYTES}",
            remedy="send large data with `files` or stdin",
        )
    if is_nested(dict(arguments), MOST_ARGUMENT_LEVELS):
        raise UsageError(
            f"arguments: nested deeper than {MOST_ARGUMENT_LEVELS} levels",
            remedy="give them flatter, or as text",
        )
    return dict(arguments)


def check_limits(
    limits: Limits | Mapping[str, Any] | None, timeout: float | None, defaults: Limits
) -> Limits:
    """Return the limits that apply; `timeout` is short for `wall_s` and takes precedence."""
    if limits is None:
        found = defaults
    elif isinstance(limits, Limits):
        found = limits
    elif isinstance(limits, Mapping):
        found = defaults.with_changes(dict(limits))
    else:
        raise UsageError(
            f"limits: {type(limits).__name__} is not a Limits object",
            remedy="give Limits(...) or a dict of its fields",
        )
    return found if timeout is None else found.with_changes({"wall_s": timeout})


def check_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that the kernel accepts."""
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise UsageError(
                f"env: {name!r} is not a variable name", remedy="use letters, digits and _"
            )
        if not isinstance(value, str) or "\0" in value:
            raise UsageError(f"env: the value of {name} is not text", remedy="give strings")
        utf8(name, f"env: the name {name!r}", escapes=True)
        utf8(value, f"env: the value of {name}", escapes=True)
    return dict(env)


def check_words(words: Sequence[str], what: str) -> tuple[str, ...]:
    """Return command arguments that the kernel accepts."""
    if isinstance(words, (str, bytes)) or not all(
        isinstance(word, str) and "\0" not in word for word in words
    ):
        raise UsageError(f"{what}: not a list of strings without NUL", remedy="give ['a', 'b']")
    for word in words:
        utf8(word, what, escapes=True)
    return tuple(words)


def check_signal(signal: int) -> int:
    """Return the number of a signal that Linux has."""
    if not isinstance(signal, int) or not 1 <= signal < NSIG:
        raise UsageError(
            f"signal: {signal!r} is none", remedy=f"give a number from 1 to {NSIG - 1}"
        )
    return int(signal)


def check_inner_path(path: str, what: str) -> str:
    """Return `path` if it names something below the working directory."""
    if not isinstance(path, str) or not path or "\0" in path:
        raise UsageError(f"{what}: {path!r} is not a file name", remedy="use a relative path")
    if path.startswith("/") or ".." in path.split("/") or path.endswith("/"):
        raise UsageError(
            f"{what}: {path!r} leads out of the working directory",
            remedy="use a relative path without `..`",
        )
    utf8(path, f"{what}: {path!r}", escapes=True)
    return path


def check_folder(path: str) -> str:
    """Return the folder that `artifacts` names, normalised."""
    folder = path.rstrip("/") if isinstance(path, str) else path
    return posixpath.normpath(check_inner_path(folder, "artifacts"))


def check_files(files: Mapping[str, str | bytes]) -> tuple[tuple[str, bytes], ...]:
    """Return paths and contents as bytes."""
    checked = []
    for path, content in files.items():
        check_inner_path(path, "files")
        if not isinstance(content, (str, bytes, bytearray, memoryview)):
            raise UsageError(
                f"files: content of {path!r} is {type(content).__name__}",
                remedy="give a string or bytes",
            )
        data = (
            utf8(content, f"files: content of {path!r}")
            if isinstance(content, str)
            else bytes(content)
        )
        if len(data) > FILE_CAP_BYTES:
            raise UsageError(
                f"files: {path!r} has {len(data)} bytes, above {FILE_CAP_BYTES}",
                remedy="use a sandbox and files.upload_dir",
            )
        checked.append((path, data))
    return tuple(checked)

"""`tools` inside a context: functions whose bodies are on the host.

`context/main.py` installs them for every execution that comes with some. Checks here only save a
round trip: caller code can write to init's socket without this module, and the host knows that.

A call is a connection of its own, open for as long as it lasts. Threads call in parallel; a process
that caller code forked cannot call, because init knows callers by their pid.
"""

from __future__ import annotations
import __future__

import builtins
import json
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from cellwall.guest.display.json_value import encode_value

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

    from cellwall.guest.channel.init_link import Link

_NAME = "tools"
_ANY_ARGUMENTS = "(**arguments)"


class ToolError(Exception):
    """A host tool gave no result.

    `kind` says why: `raised` (the tool did, `type` is the name of its exception), `invalid` (the
    arguments), `unknown`, `denied`, `timeout`, `too_large`, `busy` (too many calls at once),
    `limit` (too many in all), `ended` (the execution), `unavailable` (in a child process).
    """

    def __init__(self, message: str, tool: str = "", kind: str = "raised", type: str = "") -> None:
        """`message` is for people, the rest for code."""
        super().__init__(message)
        self.tool = tool
        self.kind = kind
        self.type = type


ToolError.__module__ = _NAME


class Tools(ModuleType):
    """The module `tools`: one function for each host tool, made when it is first looked at."""

    def __init__(self, link: Link, manifest: dict[str, Any]) -> None:
        """`manifest` is the field `tools` of `execute`."""
        super().__init__(_NAME, "Functions of the host that this code may call.")
        state = vars(self)
        state["ToolError"] = ToolError
        state["_manifest"] = manifest
        state["_line"] = _Callers(link, manifest)
        self.__all__ = [*manifest["functions"]]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Build the function of that name."""
        function = vars(self)["_manifest"]["functions"].get(name)
        if function is None:
            known = ", ".join(vars(self)["_manifest"]["functions"])
            raise AttributeError(f"tools has no {name!r}; there are: {known}")
        made = vars(self)[name] = _function(name, function, vars(self)["_line"].call)
        return made

    def __dir__(self) -> list[str]:
        """Return the names that can be called."""
        return [*self.__all__, "ToolError", "__doc__", "__name__"]

    def __repr__(self) -> str:
        """Return the calls as a program would write them."""
        functions = vars(self)["_manifest"]["functions"]
        return f"<tools: {', '.join(name + each['head'] for name, each in functions.items())}>"


class _Callers:
    """The calls of all threads of this process."""

    def __init__(self, link: Link, manifest: dict[str, Any]) -> None:
        import threading

        self._link = link
        self._owner_pid = os.getpid()
        self._functions = manifest["functions"]
        # Init would refuse more.
        self._seats = threading.Semaphore(manifest["at_once"])
        # Init accepts few connections on which nothing has been sent yet.
        self._speaking = threading.RLock()

    def call(self, tool: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401  JSON
        """Ask the host and wait for its answer. Raises ToolError."""
        if os.getpid() != self._owner_pid:
            raise ToolError(
                f"{tool}: a child process cannot call tools; call in the process of the program",
                tool,
                "unavailable",
            )
        given = {name: value for name, value in arguments.items() if value is not ...}
        header, body = encode_value(given)
        if not body:
            raise ToolError(
                f"{tool}: arguments are not JSON: {header['unserialisable']}", tool, "invalid"
            )
        most_bytes = self._functions[tool]["bytes"]
        if len(body) > most_bytes:
            raise ToolError(
                f"{tool}: {len(body)} bytes of arguments; the limit is {most_bytes}",
                tool,
                "too_large",
            )
        with self._seats:
            is_ok, answer = self._exchange(tool, body)
        if is_ok:
            return json.loads(answer)
        raise _error(tool, json.loads(answer))

    def _exchange(self, tool: str, body: bytes) -> tuple[bool, bytes]:
        link = self._link.another()
        try:
            with self._speaking:
                link.send({"ev": "call", "tool": tool}, body)
            header, answer = link.receive()
        except OSError:
            message = f"{tool}: the sandbox hung up; the execution may be over"
            raise ToolError(message, tool, "ended") from None
        finally:
            link.close()
        return bool(header.get("ok")), answer


def install(manifest: dict[str, Any] | None, link: Link) -> None:
    """Put `tools` where the code of the next execution finds it, or remove the last one."""
    known = sys.modules.get(_NAME)
    is_ours = isinstance(known, Tools)
    if manifest is None:
        if is_ours:
            del sys.modules[_NAME]
            for name in (_NAME, "ToolError"):
                vars(builtins).pop(name, None)
        return
    if not is_ours or vars(known)["_manifest"] != manifest:
        known = Tools(link, manifest)
        sys.modules[_NAME] = known
    # Builtins, not names of `__main__`: every module sees them, and a program's own win.
    vars(builtins).update(tools=known, ToolError=ToolError)


def _function(
    name: str, described: dict[str, Any], call: Callable[[str, dict[str, Any]], Any]
) -> Callable[..., Any]:
    """Return a real function, so that it has a function's signature, help and TypeErrors."""
    head = described["head"]
    try:
        code = _compiled(name, head, "arguments" if head == _ANY_ARGUMENTS else "_locals()")
    except (SyntaxError, ValueError):  # from a remote client, whose text was not parsed on the host
        code = _compiled(name, _ANY_ARGUMENTS, "arguments")
    namespace: dict[str, Any] = {"_call": call, "_locals": locals, "__name__": _NAME}
    exec(code, namespace)  # noqa: S102  what it may do, the code around it may
    function: Callable[..., Any] = namespace[name]
    function.__doc__ = described["doc"]
    words = function.__annotations__
    function.__annotations__ = {each: _Annotation(text) for each, text in words.items()}
    return function


def _compiled(name: str, head: str, given: str) -> CodeType:
    source = f"def {name}{head}:\n    return _call({name!r}, {given})\n"
    # Annotations stay texts: the names in them need not exist here.
    flags = __future__.annotations.compiler_flag
    code: CodeType = compile(source, "<tools>", "exec", flags, True)
    return code


class _Annotation(str):
    """An annotation that `help` shows as it was written, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _error(tool: str, said: dict[str, Any]) -> ToolError:
    kind, name, message = said["kind"], said["type"], said["message"]
    shown = f"{name}: {message}" if name and message else name or message
    return ToolError(f"{tool}: {shown}", tool, kind, name)

"""Host tools: the functions that a caller offers to the code inside, and their bounds.

Callers make them (`Tool`, `ToolBox`); the engine or the SDK uses them when it runs the callers'
code. The schema is in `schema`, the view from inside in `stubs`, a call in `calls`. The invariant:
everything that a caller can get wrong about a tool is an error here, before any code that could
call it runs.
"""

from __future__ import annotations

import asyncio
import keyword
import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cellwall.model.errors import UsageError
from cellwall.surface.tools.schema import Check, check_of
from cellwall.surface.tools.stubs import head_of

if TYPE_CHECKING:
    from cellwall.surface.tools.calls import Answer

MOST_BYTES = 1024 * 1024
"""Maximum bytes of arguments or result: a frame out of a sandbox carries no more (design/0002)."""
MOST_TOOLS = 64
MOST_AT_ONCE = 64
MOST_CALLS = 1_000_000
MOST_NAME_CHARACTERS = 64
MOST_DOC_CHARACTERS = 4096
# fmt: off
_TAKEN = frozenset({
    "ToolError", "_manifest", "_line", "_call", "_locals", "__all__", "__annotate__",
    "__annotations__", "__builtins__", "__cached__", "__copy__", "__deepcopy__", "__file__",
    "__getattr__", "__loader__", "__package__", "__path__", "__spec__", "__test__",
    "__type_params__", "__wrapped__", "__proto__", "__defineGetter__", "__defineSetter__",
    "__lookupGetter__", "__lookupSetter__",
})
# fmt: on
"""Names that `tools` inside already has, or that its language asks any module or object for."""
_ASKED_FOR = ("_repr_", "_ipython_")
"""Prefixes of names that a notebook asks of every object that it shows."""


class ToolError(Exception):
    """Raised by a tool to tell the code inside something, word for word.

    Of other exceptions the code learns the name and the message, without anything that looks like a
    path.
    """


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that waits for approval; its arguments fit the schema."""

    tool: str
    arguments: Mapping[str, Any]
    """Arguments as they came, in JSON's types."""


Approve = Callable[[ToolCall], "bool | Awaitable[bool]"]


@dataclass(frozen=True, slots=True)
class Tool:
    """One function of the host's, and its bounds."""

    function: Callable[..., Any]
    """Called with keywords; may be `async`. A function that is not runs on a thread of its own."""
    schema: Mapping[str, Any] | None = None
    """JSON schema of the arguments, an object; None: made from the function's type hints."""
    timeout_s: float = 30.0
    """Seconds that the function may take. The wall clock of the execution goes on meanwhile."""
    max_bytes: int = 256 * 1024
    """Maximum bytes of JSON, for the arguments and for the result."""
    needs_approval: bool | Approve = False
    """Function that is asked before each call; True: the `approve` of the tool box."""
    description: str | None = None
    """Text that `help` shows inside; None: the function's docstring."""

    def __post_init__(self) -> None:
        """Refuse what can never work."""
        if not callable(self.function):
            raise UsageError(
                f"tool: {type(self.function).__name__} is not a function",
                remedy="give a function, or Tool(function, …)",
            )
        if not 0 < self.timeout_s <= 86_400:
            raise UsageError(
                f"tool: timeout_s {self.timeout_s!r} is no time", remedy="give seconds, up to a day"
            )
        if not 1 <= self.max_bytes <= MOST_BYTES:
            raise UsageError(
                f"tool: max_bytes {self.max_bytes!r} is out of range",
                remedy=f"give 1 to {MOST_BYTES}",
            )


@dataclass(frozen=True, slots=True)
class Known:
    """A named tool that is ready to be called."""

    name: str
    tool: Tool
    check: Check
    head: str
    doc: str


class Incoming(NamedTuple):
    """A call as it comes out of a sandbox: nothing in it is checked."""

    number: int
    """Number of the call within its execution: 1, 2, …"""
    tool: str
    size_bytes: int
    """Bytes of its arguments, as JSON."""
    read: Callable[[], object]
    """Parses the arguments, or raises ValueError."""


class Answering(Protocol):
    """Answers the calls of one execution."""

    async def answer(self, call: Incoming) -> Answer:
        """Do a call; a caller that gives the call up cancels it."""


class Offer(ABC):
    """Tools as the carrier of their calls sees them: in this process, or over a connection."""

    manifest: Mapping[str, Any]
    """Description of the tools that is sent inside."""
    calls: int
    """Number of calls that an execution may make."""
    at_once: int
    """Number of those calls that may be under way at once."""

    @abstractmethod
    def handler(self) -> Answering:
        """Return the object that answers one execution's calls, on the loop that it serves."""


Tools = Offer | Mapping[str, Any] | Iterable[Any]
"""Values that a caller may give as `tools=`."""


class ToolBox(Offer):
    """Tools, and the settings that all of them share. Make one and use it for many sandboxes."""

    def __init__(
        self,
        tools: Mapping[str, Any] | Iterable[Any],
        *,
        approve: Approve | None = None,
        calls: int = 1000,
        at_once: int = 8,
    ) -> None:
        """Take functions or `Tool`s by name, or a list of them.

        `calls`: how many an execution may make; `at_once`: how many of them in parallel. Raises
        `UsageError`.
        """
        self.approve = approve
        self.calls = _number("calls", calls, MOST_CALLS)
        self.at_once = _number("at_once", at_once, MOST_AT_ONCE)
        named = _named(tools)
        if len(named) > MOST_TOOLS:
            raise UsageError(f"tools: {len(named)} of them", remedy=f"give up to {MOST_TOOLS}")
        self._seats: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )
        self._known = {name: self._checked(name, tool) for name, tool in named.items()}
        self.manifest = {
            "functions": {
                name: {"head": each.head, "doc": each.doc, "bytes": each.tool.max_bytes}
                for name, each in self._known.items()
            },
            "at_once": self.at_once,
            "in_all": self.calls,
        }

    def _checked(self, name: str, tool: Tool) -> Known:
        if tool.needs_approval is True and self.approve is None:
            raise UsageError(
                f"tool {name!r}: needs approval, and nobody is there to ask",
                remedy="give approve= to the ToolBox, or a function as needs_approval",
            )
        check = check_of(name, tool.function, tool.schema)
        doc = tool.description or tool.function.__doc__ or ""
        return Known(
            name, tool, check, head_of(tool.function, check.schema), doc[:MOST_DOC_CHARACTERS]
        )

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """The JSON schema of each tool's arguments, by name."""
        return {name: each.check.schema for name, each in self._known.items()}

    def find(self, name: str) -> Known | None:
        """Return the tool of that name."""
        return self._known.get(name)

    def seats(self) -> asyncio.Semaphore:
        """Return the bound on threads of the running loop: a function that hangs keeps its seat."""
        loop = asyncio.get_running_loop()
        return self._seats.setdefault(loop, asyncio.Semaphore(self.at_once))

    def handler(self) -> Answering:
        """Return the object that answers one execution's calls, on the loop that it serves."""
        from cellwall.surface.tools.calls import ToolCallHandler

        return ToolCallHandler(self)

    def __bool__(self) -> bool:
        """Report whether there is any tool."""
        return bool(self._known)


def box_of(tools: Tools | None) -> Offer | None:
    """Return what a caller gave as `tools=` as a box; None for none."""
    if tools is None:
        return None
    if isinstance(tools, Offer) and not isinstance(tools, ToolBox):
        return tools
    box = tools if isinstance(tools, ToolBox) else ToolBox(tools)
    return box or None


def check_name(name: object) -> str:
    """Return the name of a tool. Raises `UsageError`."""
    if (
        not isinstance(name, str)
        or not name.isidentifier()
        or keyword.iskeyword(name)
        or len(name) > MOST_NAME_CHARACTERS
        or (name.startswith("_") and not _is_free(name))
        or name in _TAKEN
    ):
        raise UsageError(
            f"tools: {name!r} cannot be the name of one",
            remedy="give a Python name of up to 64 characters that no module has by itself",
        )
    return name


def _is_free(name: str) -> bool:
    """Report whether a name with a leading _ means nothing to Python or a notebook yet.

    `__name` is not free: in a class, Python reads it as another name.
    """
    is_mangled = name.startswith("__") and not name.endswith("__")
    is_taken = hasattr(ModuleType, name) or name.startswith(_ASKED_FOR)
    return not is_mangled and not is_taken and bool(name.strip("_"))


def _named(tools: Mapping[str, Any] | Iterable[Any]) -> dict[str, Tool]:
    if isinstance(tools, (str, bytes)) or not isinstance(tools, Iterable):
        raise UsageError(
            f"tools: {type(tools).__name__} is not a dict of functions",
            remedy="give {'search': search}",
        )
    named: dict[str, Tool] = {}
    for name, given in _pairs(tools):
        if name in named:
            raise UsageError(f"tools: {name!r} comes twice", remedy="give a dict with other names")
        check_name(name)
        named[name] = given if isinstance(given, Tool) else Tool(given)
    return named


def _pairs(tools: Iterable[Any]) -> list[tuple[Any, Any]]:
    if isinstance(tools, Mapping):
        return list(tools.items())
    found = []
    for given in tools:
        function = given.function if isinstance(given, Tool) else given
        found.append((getattr(function, "__name__", None), given))
    return found


def _number(what: str, value: int, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise UsageError(f"tools: {what} {value!r} is out of range", remedy=f"give 1 to {most}")
    return value

"""The small programs that run another language's code for a context, one file for each.

They are data for `interpreter.py`; they do not run in this process. Each is started with the paths
of two pipes (requests, answers), sends `ready`, and then answers one request after another. The
protocol is design/0010's. The invariant: no driver has a pipe open while caller code runs.

Their text is read when this module is imported, because the bundle may be out of sight later.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Tuple


class Driver(NamedTuple):
    """How one language's interpreter is started; evaluated on Python 3.8."""

    argv: Tuple[str, ...]
    """Command line; `{text}` stands for the driver itself, `{path}` for a file that holds it."""
    text: bytes
    flavour: str = ""
    """A third argument, for a driver that supports more than one language."""
    tools: bytes = b""
    """Code with which the driver calls host tools; sent with the first execution that has some."""
    late: str = "cell"
    """Kind of a cell after an interrupted one, which may still have work inside the interpreter."""
    title: str = ""
    """Path by which a cell's source is opened, with `%s` for its number; empty for none.

    It is for an interpreter that shows the path in its errors.
    """


def _text(name: str) -> bytes:
    loader: Any = __spec__.loader
    data: bytes = loader.get_data(f"{__path__[0]}/{name}")
    return data


_NODE = ("node", "--expose-internals", "-e", "{text}")
_R = ("R", "--no-echo", "--no-save", "--no-restore", "--file={path}", "--args")
_JAVA = (
    *("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
    *("--add-modules", "jdk.jshell", "--source", "17", "{path}"),
)
_JAVASCRIPT = _text("driver.js")
_JAVASCRIPT_TOOLS = _text("tools.js")

DRIVERS = {
    "javascript": Driver(_NODE, _JAVASCRIPT, tools=_JAVASCRIPT_TOOLS, late="late"),
    "typescript": Driver(_NODE, _JAVASCRIPT, "typescript", _JAVASCRIPT_TOOLS, "late"),
    "bash": Driver(
        ("bash", "--norc", "--noprofile", "-c", "{text}", "bash"),
        _text("driver.sh"),
        title="/tmp/.cell-%s",  # noqa: S108 - our mount
    ),
    "ruby": Driver(("ruby", "-e", "{text}"), _text("driver.rb")),
    "r": Driver(_R, _text("driver.R")),
    "java": Driver(_JAVA, _text("Driver.java")),
}
"""Drivers by the name that a language's entry gives as its `context`."""

_JUPYTER = _text("jupyter.py")
_JUPYTER_MARK = "jupyter:"


def find(language: str) -> Driver | None:
    """Return the driver of `language`, which may name a Jupyter kernel; None if there is none."""
    if language.startswith(_JUPYTER_MARK):
        name = language[len(_JUPYTER_MARK) :]
        return Driver(("python", "-c", "{text}"), _JUPYTER, name)
    return DRIVERS.get(language)

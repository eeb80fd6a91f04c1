"""The server's own log: one record per line, and no record can imitate another one.

Output of sandboxes and the audit are not part of it. Records are data until a thread writes them:
redacted, escaped, as JSON or for a terminal. The invariants: logging never waits for the sink;
records that the sink does not take are counted, and the count is logged; control characters, line
ends and characters that change the direction of text are escaped at the sink, whatever their
source.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from cellwall.model.errors import UsageError
from cellwall.server.core.request_context import ORIGIN
from cellwall.server.core.times import rfc3339
from cellwall.server.observability.log_sink import Sink
from cellwall.server.observability.redaction import Redactor

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_PLAIN = re.compile(r"[\w./:@+%,{}*-]+", re.ASCII)
_ASKING = "_asking"
"""Name of a field that is never shown: the tenant for which the logging code was working."""
_LONGEST = 4096
"""Longest text of a record in characters; a program's source must not get into a log whole."""


def escaped(text: str) -> str:
    """Return `text` on one line, with every character that a terminal might interpret escaped."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


# -- taking records ------------------------------------------------------------------------


class _Way:
    """Passes records on: to the sink if there is one, else to the standard library's log."""

    def __init__(self) -> None:
        self.sink: Sink | None = None

    def put(self, record: dict[str, Any]) -> None:
        if self.sink is not None:
            self.sink.put(record)
            return
        level = logging.getLevelNamesMapping()[record["level"].upper()]
        words = " ".join(f"{name}={value}" for name, value in record.items() if name != "level")
        logging.getLogger("cellwall.server").log(level, "%s", escaped(words))

    debug = info = warning = error = critical = put


_way = _Way()


def _stamped(_logger: object, level: str, record: Any) -> Any:  # noqa: ANN401 - structlog's types
    record["time"] = time.time()
    record["level"] = level
    return (record,), {}


def logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return a logger; `logger(__name__).info("what happened", field=value)`."""
    door: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        _way,
        processors=[_stamped],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
    )
    return door.bind(logger=name)


class _Bridge(logging.Handler):
    """Takes records of the standard library's logging: those of `server` and those of libraries."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {
            "event": _message(record),
            "logger": record.name,
            "time": record.created,
            "level": record.levelname.lower(),
        }
        origin = ORIGIN.get()
        if origin is not None and origin.tenant is not None:
            fields[_ASKING] = origin.tenant
        if record.exc_info:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        _way.put(fields)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - a bad format must not end the caller
        return f"{record.msg!r} (cannot be formatted: {type(error).__name__})"


# -- writing records -----------------------------------------------------------------------


_NAMES = frozenset(
    {"logger", "method", "route", "tenant", "execution_id", "rule", "who", "action", "kind"}
)
"""Fields with a word or an id of cellwall: no value of a caller's is taken out of them."""


def rendered(record: dict[str, Any], redactor: Redactor, render: Callable[..., str]) -> str:
    """Return the line of a record, without line end.

    Values that a tenant gave are taken out of the record's texts if the record is about that
    tenant.
    """
    asking = record.pop(_ASKING, None)
    tenant = record.get("tenant") or asking
    when = rfc3339(record.pop("time"))
    head = {"time": when, "level": record.pop("level"), "event": _text(record, "event")}
    clean = {}
    for name, value in record.items():
        whose = None if name in _NAMES else tenant
        if isinstance(value, str):
            # Redact first, then cut: half a secret would not be recognized.
            clean[name] = redactor.clean(value[: 4 * _LONGEST], whose)[:_LONGEST]
        else:
            clean[name] = redactor.clean_all(value, whose)
    head["event"] = redactor.clean(str(head["event"])[: 4 * _LONGEST], asking)[:_LONGEST]
    return render({**head, **clean})


def _text(record: dict[str, Any], name: str) -> str:
    return str(record.pop(name, ""))


def as_json(record: dict[str, Any]) -> str:
    """Return a record as strict JSON, in ASCII."""
    return json.dumps(record, separators=(",", ":"), default=str).replace("\x7f", "\\u007f")


def as_words(record: dict[str, Any]) -> str:
    """Return a record for people: time, level, event, then `name=value`."""
    head = [record.pop("time"), f"{record.pop('level'):<7}", record.pop("event")]
    rest = [f"{name}={_word(value)}" for name, value in record.items() if value is not None]
    return escaped(" ".join([*head, *rest]))


def _word(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


# -- setting up --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Log:
    """The log of this process, and the secrets that are kept out of it."""

    sink: Sink
    redactor: Redactor

    def close(self, wait_s: float = 1.0) -> None:
        """Write the remaining records, for at most `wait_s` seconds; later ones are not written."""
        _way.sink = None
        self.sink.close(wait_s)


def set_up(level: str = "info", form: str = "auto") -> Log:
    """Send everything that is logged in this process to stderr, until the log is closed.

    `form` is one of `json`, `console`, `auto`: console on a terminal, JSON elsewhere.
    """
    redactor = Redactor()
    is_console = form == "console" or (form == "auto" and sys.stderr.isatty())
    render = as_words if is_console else as_json
    levels = logging.getLevelNamesMapping()
    if level.upper() not in levels:
        raise UsageError(
            f"log: there is no level {level[:40]!r}", remedy="say debug, info, warning or error"
        )
    wanted = frozenset(name.lower() for name in levels if levels[name] >= levels[level.upper()])
    sink = Sink(
        sys.stderr.fileno(),
        lambda record: rendered(record, redactor, render),
        lambda record: record["level"] in wanted,
    )
    _way.sink = sink
    bridge = _Bridge()
    for name, chosen in (("", "WARNING"), ("cellwall", level.upper()), ("uvicorn", "CRITICAL")):
        target = logging.getLogger(name)
        target.handlers = [bridge]
        target.propagate = False
        target.setLevel(chosen)
    logging.captureWarnings(True)
    return Log(sink, redactor)

"""Fields of a submission: checked, decoded, and turned into the options of an execution.

Pure. Faults are `{field: [message]}` in the words of Judge0's framework. The invariant: a field
that cannot be honoured is a fault, except where its value is Judge0's own default.
"""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.judge0 import encoding
from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.apps.doors.judge0.languages import JudgeLanguage
    from cellwall.model.limits import Limits

_TEXT_CHARACTERS = 512
_MOST_RUNS = 20
_BLANK = "can't be blank"
_NOT_HERE = "cannot be set on this server"
DEFAULTS: Mapping[str, Any] = {
    "number_of_runs": 1,
    "cpu_time_limit": 5.0,
    "cpu_extra_time": 1.0,
    "wall_time_limit": 10.0,
    "memory_limit": 128_000,
    "stack_limit": 64_000,
    "max_processes_and_or_threads": 60,
    "enable_per_process_and_thread_time_limit": False,
    "enable_per_process_and_thread_memory_limit": False,
    "max_file_size": 1024,
    "redirect_stderr_to_stdout": False,
    "enable_network": False,
}
_FIXED = (
    "stack_limit",
    "enable_per_process_and_thread_time_limit",
    "enable_per_process_and_thread_memory_limit",
)
TEXTS = ("source_code", "stdin", "expected_output")
"""Fields that are base64 if the request says so."""
_PLAIN = ("compiler_options", "command_line_arguments", "callback_url")


class Invalid(UsageError):
    """The submission has faults."""

    def __init__(self, faults: dict[str, list[str]]) -> None:
        """Keep the faults by field."""
        super().__init__("; ".join(f"{name} {each[0]}" for name, each in faults.items()))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked submission."""

    values: Mapping[str, Any]
    """Every field, with its default; texts are decoded."""
    language: JudgeLanguage
    options: Mapping[str, Any]
    """Options of `submit`."""

    @property
    def size(self) -> int:
        """Length of its texts and unpacked files together: what keeping it costs."""
        texts = sum(len(each) for each in self.values.values() if isinstance(each, str))
        return texts + sum(len(each) for each in (self.options.get("files") or {}).values())

    def without_program(self) -> Asked:
        """Return what answers show of it; it can no longer be run."""
        return replace(self, options={})


def asked_of(
    body: object,
    languages: Mapping[int, JudgeLanguage],
    most: Limits,
    *,
    is_base64: bool,
) -> Asked:
    """Return a checked submission. Raises Invalid."""
    given = body if isinstance(body, dict) else {}
    reading = _Reading(given, is_base64)
    values: dict[str, Any] = {name: reading.text(name, decodes=True) for name in TEXTS}
    values |= {name: reading.text(name) for name in _PLAIN}
    values["additional_files"] = reading.text("additional_files")
    values |= reading.numbers(most)
    language = reading.language(languages)
    if not values["source_code"]:
        reading.fault("source_code", _BLANK)
    compile_options = reading.words("compiler_options", values)
    args = reading.words("command_line_arguments", values)
    if language is not None:
        for option in compile_options:
            if not language.language.allows(option):
                reading.fault("compiler_options", f"{option[:80]} is not permitted on this server")
    files = reading.files(values["additional_files"])
    if reading.faults or language is None:
        raise Invalid(reading.faults)
    values["language_id"] = language.id
    options = {
        "language": language.language.name,
        "stdin": reading.stdin(),
        "args": args,
        "files": files or None,
        "limits": _limits(values, most),
        **({"compile_options": compile_options} if compile_options else {}),
    }
    return Asked(values, language, options)


def _limits(values: Mapping[str, Any], most: Limits) -> dict[str, Any]:
    kib = math.ceil(values["max_file_size"])
    return {
        "cpu_s": min(max(values["cpu_time_limit"], 0.001), most.cpu_s),
        "wall_s": min(values["wall_time_limit"], most.wall_s),
        "memory_mb": min(math.ceil(values["memory_limit"] / 1024), most.memory_mb),
        "processes": min(int(values["max_processes_and_or_threads"]), most.processes),
        "file_mb": min(max(1, math.ceil(kib / 1024)), most.file_mb),
        "output_kb": min(max(1, kib), most.output_kb),
    }


class _Reading:
    """The fields of one body, and the faults found so far."""

    def __init__(self, given: Mapping[str, Any], is_base64: bool) -> None:
        self._given = given
        self._is_base64 = is_base64
        self._stdin: str | bytes | None = None
        self.faults: dict[str, list[str]] = {}

    def fault(self, name: str, message: str) -> None:
        """Note a fault."""
        self.faults.setdefault(name, []).append(message)

    def text(self, name: str, *, decodes: bool = False) -> str | None:
        """Return a text, decoded if the request says so."""
        value = self._given.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            self.fault(name, "is not a text")
            return None
        if name == "stdin":
            self._stdin = value
        if not (decodes and self._is_base64):
            return value
        try:
            data = encoding.from_base64(value)
            if name == "stdin":
                self._stdin = data
                return data.decode("utf-8", "replace")
            return data.decode()
        except ValueError as error:
            why = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
            self.fault(name, why)
            return None

    def stdin(self) -> str | bytes | None:
        """Return standard input as it was sent, which need not be text."""
        return self._stdin

    def numbers(self, most: Limits) -> dict[str, Any]:
        """Return the fields of `DEFAULTS`, each within its bounds."""
        known = bounds(most)
        found: dict[str, Any] = {}
        for name, default in DEFAULTS.items():
            value = self._given.get(name)
            if value is None:
                most_of_it = known.get(name, (default, default))[1]
                found[name] = default if isinstance(default, bool) else min(default, most_of_it)
            elif isinstance(default, bool):
                found[name] = self._flag(name, value)
            else:
                found[name] = self._number(name, value, known.get(name))
        for name in _FIXED:
            if found[name] != DEFAULTS[name]:
                self.fault(name, _NOT_HERE)
        if found["enable_network"]:
            self.fault("enable_network", "enabling network is not allowed")
        return found

    def _flag(self, name: str, value: object) -> bool:
        if value not in (True, False, "true", "false", "1", "0", 1, 0):
            self.fault(name, "is not a boolean")
        return value in (True, "true", "1", 1)

    def _number(self, name: str, value: object, bounds: tuple[float, float] | None) -> float:
        try:
            number = float(value) if not isinstance(value, bool) else math.nan  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            self.fault(name, "is not a number")
            return float(DEFAULTS[name])
        if bounds is not None and number < bounds[0]:
            self.fault(name, f"must be greater than or equal to {bounds[0]:g}")
        if bounds is not None and number > bounds[1]:
            self.fault(name, f"must be less than or equal to {bounds[1]:.15g}")
        is_whole = isinstance(DEFAULTS[name], int) and number == int(number)
        return int(number) if is_whole else number

    def language(self, languages: Mapping[int, JudgeLanguage]) -> JudgeLanguage | None:
        """Return the language; None after a fault."""
        value = self._given.get("language_id")
        if value is None or value == "":
            self.fault("language_id", _BLANK)
            return None
        text = str(value)[:20]
        found = languages.get(int(text)) if text.isascii() and text.isdecimal() else None
        if found is None or isinstance(value, bool):
            self.fault("language_id", f"language with id {text} doesn't exist")
            return None
        return found

    def words(self, name: str, values: Mapping[str, Any]) -> list[str]:
        """Return the words of a line as a shell would split it."""
        line = values[name] or ""
        if len(line) > _TEXT_CHARACTERS:
            self.fault(name, f"is too long (maximum is {_TEXT_CHARACTERS} characters)")
            return []
        try:
            return shlex.split(line)
        except ValueError as error:
            self.fault(name, f"cannot be split: {error}")
            return []

    def files(self, text: str | None) -> dict[str, bytes]:
        """Return the files of `additional_files`."""
        if not text:
            return {}
        try:
            return encoding.unpacked(encoding.from_base64(text))
        except ValueError as error:
            self.fault("additional_files", str(error))
            return {}


def bounds(most: Limits) -> dict[str, tuple[float, float]]:
    """Return the bounds of the numbers: the operator's ceilings."""
    return {
        "number_of_runs": (1, _MOST_RUNS),
        "cpu_time_limit": (0, most.cpu_s),
        "cpu_extra_time": (0, most.cpu_s),
        "wall_time_limit": (1, most.wall_s),
        "memory_limit": (16 * 1024, most.memory_mb * 1024),
        "stack_limit": (0, 10**9),
        "max_processes_and_or_threads": (1, most.processes),
        "max_file_size": (1, min(most.file_mb * 1024, most.output_kb)),
    }

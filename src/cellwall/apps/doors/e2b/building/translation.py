"""From E2B's steps of a template to a Dockerfile of ours, and which of its lines are which step.

Pure. A step's words are arguments of a program or one quoted word, so that none of them becomes an
instruction. The invariant: a step that cannot be done as it is meant is refused with its number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cellwall.apps.doors.e2b.answers import refused
from cellwall.apps.doors.e2b.building import scripts
from cellwall.apps.doors.e2b.templates.built_facts import (
    LABEL,
    MOST_VARIABLES,
    VARIABLE,
    BuiltFacts,
)

if TYPE_CHECKING:
    from cellwall.apps.doors.e2b.building.bodies import Step

USER, HOME = "user", "/home/user"
"""User and directory with which a template begins that is made of an image."""
_FORCED = "e2b.forced"
"""Label by whose value a step and those behind it are new to the builder."""
_BASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}")
_OWNER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,31})?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_MODE = re.compile(r"[0-7]{3,4}")
_MOST_LABEL = 30_000


@dataclass(frozen=True, slots=True)
class Base:
    """What a template begins with."""

    name: str
    """An image, or a template of the tenant's own."""
    facts: BuiltFacts | None = None
    """Facts of the template; None: it is an image."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A build of ours."""

    dockerfile: str
    steps: Mapping[int, int]
    """Step of E2B's by line; 0 is the base."""
    commands: Mapping[int, str]
    """Command of each step that runs one."""
    files: tuple[str, ...]
    """Hashes of the archives that it needs."""


@dataclass(slots=True)
class _Writing:
    """A Dockerfile on its way."""

    user: str
    """User of the steps that name none."""
    nonce: str
    lines: list[str] = field(default_factory=list)
    steps: dict[int, int] = field(default_factory=dict)
    commands: dict[int, str] = field(default_factory=dict)
    files: dict[str, None] = field(default_factory=dict)
    variables: dict[str, None] = field(default_factory=dict)
    """Names of the variables of the steps."""
    number: int = 0
    is_forced: bool = False
    _as_user: str = ""
    """What the last `USER` said."""

    def say(self, line: str) -> None:
        self.lines.append(line)
        self.steps[len(self.lines)] = self.number

    def run(self, user: str, argv: Sequence[str], flags: str = "") -> None:
        """Have a program run as a user."""
        self.become(user)
        self.say(f"RUN {flags}{json.dumps(list(argv))}")

    def script(self, name: str, text: str, *words: str, flags: str = "") -> None:
        """Have a program of ours run as root."""
        self.run("root", ["/bin/sh", "-c", text, name, *words], flags)

    def become(self, user: str) -> None:
        if user != self._as_user:
            self._as_user = user
            self.say(f"USER {user}")

    def force(self) -> None:
        """Have this step and all that follow be done again."""
        if not self.is_forced:
            self.is_forced = True
            self.say(f"LABEL {_FORCED}={_quoted(self.nonce)}")

    def wrong(self, why: str) -> Exception:
        return refused(f"steps[{self.number - 1}]", why)


def plan(base: Base, steps: Sequence[Step], facts: BuiltFacts, nonce: str, *, force: bool) -> Plan:
    """Return the build. `nonce` differs from build to build, for steps that are forced.

    `facts`: what the client says of the template; its user is found here. Raises the 400.
    """
    if not _BASE.fullmatch(base.name):
        raise refused("fromImage", f"{base.name[:80]!r} is no name of an image")
    writing = _Writing(USER, nonce)
    writing.say(f"FROM {base.name}")
    if force:
        writing.force()
    if base.facts is None:
        writing.script("user", scripts.USER, USER)
        writing.say(f"WORKDIR {HOME}")
    else:
        writing.user = base.facts.user or "root"
        for name, value in base.facts.env.items():
            writing.variables[name] = None
            writing.say(f"ENV {name}={_quoted(value)}")
    for number, step in enumerate(steps, 1):
        writing.number = number
        if step.force:
            writing.force()
        _check(writing, step)
        _STEPS[step.type](writing, step)
    writing.number = len(steps)
    writing.become("root")
    inherited = base.facts or BuiltFacts()
    whole = {
        **inherited.model_dump(exclude_none=True),
        **facts.model_dump(exclude_none=True),
        "user": writing.user,
    }
    label = BuiltFacts.model_validate(whole).kept()
    if len(label) > _MOST_LABEL:
        raise refused("startCmd", "it is too long, with readyCmd")
    for name in writing.variables:
        # Expanded by the builder, which knows the variables of the image.
        writing.say(f'LABEL {VARIABLE}{name}="${name}"')
    writing.say(f"LABEL {_FORCED}={_quoted('')} {LABEL}={_quoted(label)}")
    text = "\n".join([*writing.lines, ""])
    return Plan(text, writing.steps, writing.commands, tuple(writing.files))


def _check(writing: _Writing, step: Step) -> None:
    least, most = _ARGUMENTS[step.type]
    if not least <= len(step.args) <= most:
        raise writing.wrong(f"args: {step.type} has {len(step.args)}")
    if any("\0" in each for each in step.args):
        raise writing.wrong("args: a NUL character")
    if (step.files_hash is not None) != (step.type == "COPY"):
        raise writing.wrong("filesHash: it belongs to COPY, and COPY needs it")


def _run(writing: _Writing, step: Step) -> None:
    command, user = step.args[0], step.args[1] if len(step.args) > 1 else ""
    if user and not _OWNER.fullmatch(user):
        raise writing.wrong(f"{user[:40]!r} is no name of a user")
    writing.commands[writing.number] = command
    writing.run(user or writing.user, ["/bin/bash", "-l", "-c", command])


def _env(writing: _Writing, step: Step) -> None:
    names, values = step.args[::2], step.args[1::2]
    if len(names) != len(values):
        raise writing.wrong("args: ENV has a name without a value")
    said = []
    for name, value in zip(names, values, strict=True):
        if not _VARIABLE.fullmatch(name):
            raise writing.wrong(f"{name[:40]!r} is no name of a variable")
        if "\n" in value or "\r" in value:
            raise writing.wrong(f"{name}: a value of several lines is not to be had")
        said.append(f"{name}={_quoted(value, expands=True)}")
        writing.variables[name] = None
    if len(writing.variables) > MOST_VARIABLES:
        raise writing.wrong(f"args: the template has more than {MOST_VARIABLES} variables")
    writing.say(f"ENV {' '.join(said)}")


def _user(writing: _Writing, step: Step) -> None:
    name = step.args[0]
    if not _USER.fullmatch(name):
        raise writing.wrong(f"{name[:40]!r} is no name of a user")
    if len(step.args) > 1 and step.args[1] not in {"", "false"}:
        raise writing.wrong("args: sudo gives nothing here; let commands name the user root")
    if not name.isdecimal():
        writing.script("user", scripts.USER, name)
    writing.user = name


def _workdir(writing: _Writing, step: Step) -> None:
    path = step.args[0]
    if not path or "\n" in path or "\r" in path:
        raise writing.wrong("args: no directory on one line")
    writing.script("workdir", scripts.WORKDIR, path, writing.user)
    writing.say(f"WORKDIR {_quoted(path)}")


def _copy(writing: _Writing, step: Step) -> None:
    source, target, owner, mode = (*step.args, "", "")[:4]
    if not source or not target:
        raise writing.wrong("args: COPY has no source or no target")
    if ".." in source.split("/"):
        raise writing.wrong(f"{source[:80]!r} leads out of the files")
    if owner and not _OWNER.fullmatch(owner):
        raise writing.wrong(f"{owner[:40]!r} is no owner")
    if mode and not _MODE.fullmatch(mode):
        raise writing.wrong(f"{mode[:20]!r} is no octal mode")
    digest = step.files_hash or ""
    writing.files[digest] = None
    flags = f"--mount=type=bind,source={digest},target={scripts.PLACE} "
    words = (source, target, owner or writing.user, mode, scripts.PLACE)
    writing.script("copy", scripts.COPY, *words, flags=flags)


_STEPS: Mapping[str, Callable[[_Writing, Step], None]] = {
    "RUN": _run, "ENV": _env, "USER": _user, "WORKDIR": _workdir, "COPY": _copy,
}  # fmt: skip
_ARGUMENTS = {"RUN": (1, 2), "ENV": (2, 512), "USER": (1, 2), "WORKDIR": (1, 1), "COPY": (2, 4)}


def _quoted(value: str, *, expands: bool = False) -> str:
    """Return one word; with `expands` variables in it are those of the build."""
    for special in '\\"' if expands else '\\"$':
        value = value.replace(special, f"\\{special}")
    return f'"{value}"'

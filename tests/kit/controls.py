"""Positive controls: the same probes where their guard is off, and the judging of both.

Not a sandbox. Three places, all harmless by what the probes ask for: `user` is a throw-away
unprivileged process, `space` is root of a user namespace made for the occasion (mounts and
namespaces can be had there and die with it), `root` is this process's own user, for calls whose
arguments are poisoned and for files the test made. The invariant: a probe that reaches nothing
anywhere proves nothing, so every attempt is compared with its control.
"""

from __future__ import annotations

import json
import os
import re
import resource
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cellwall.linux import seccomp
from kit.arena import CONTROL_UID, Arena

ABSENT = frozenset({"ENOSYS", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "ENODEV"})
"""What a kernel says that was built without the thing an optional attempt asks for."""
_PROBES = Path(__file__).parent / "probes"
_OF_THE_KIT = re.compile(r"^from kit\.probes\.probe_kit import (\([^)]*\)|.*)$", re.MULTILINE)
"""The kit's text stands in front of a probe's instead."""


@dataclass(frozen=True)
class Tried:
    """One attempt's line."""

    case: str
    what: str
    control: str
    word: str
    detail: str

    @property
    def reached(self) -> bool:
        return self.word == "REACHED"


def source(name: str, setting: Mapping[str, str], control: str = "") -> str:
    """The kit and one probe file as a single program."""
    numbers = seccomp.syscall_numbers(os.uname().machine)
    body = _OF_THE_KIT.sub("", (_PROBES / f"{name}.py").read_text())
    kit = (_PROBES / "probe_kit.py").read_text()
    facts = f"SETTING.update({dict(setting)!r})\nNR.update({numbers!r})\nCONTROL = {control!r}\n"
    whole = "\n".join((kit, facts, body, "main()"))
    return whole.replace("from __future__ import annotations\n", "")


def parse(stdout: str) -> dict[tuple[str, str], Tried]:
    """Read the lines below the nonce."""
    tried = [Tried(**json.loads(line)) for line in stdout.splitlines()[1:]]
    assert len({(t.case, t.what) for t in tried}) == len(tried), "two attempts of one name"
    return {(t.case, t.what): t for t in tried}


def _bounded() -> None:
    resource.setrlimit(resource.RLIMIT_NPROC, (300, 300))
    resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.RLIM_INFINITY))


def become_user() -> None:
    """Leave root for the throw-away user, if we are root."""
    _bounded()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(CONTROL_UID, CONTROL_UID, CONTROL_UID)
        os.setresuid(CONTROL_UID, CONTROL_UID, CONTROL_UID)


PLACES: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {
    "user": (become_user, ()),
    "space": (become_user, ("unshare", "--fork", "-UrmipunC", "--kill-child")),
    "root": (_bounded, ()),
}
"""What happens before the exec, and the words in front of the command."""


def run_in(
    place: str, code: str, fds: tuple[int, ...] = (), env: Mapping[str, str] | None = None
) -> str:
    """Run a program in one of the places; its output starts with a nonce, or this raises."""
    before, words = PLACES[place]
    nonce = secrets.token_hex(8)
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    done = subprocess.run(
        [*words, python, "-I", "-c", f"print({nonce!r}, flush=True)\n" + code],
        check=False,
        capture_output=True,
        text=True,
        timeout=40,
        cwd="/",
        env={"PATH": "/usr/bin:/bin", **(env or {})},
        pass_fds=fds,
        preexec_fn=before,
        start_new_session=True,
    )
    if not done.stdout.startswith(nonce):
        raise AssertionError(f"the control did not run: {done}")
    return done.stdout


@dataclass(frozen=True)
class Both:
    """One probe file, inside and in its controls."""

    inside: dict[tuple[str, str], Tried]
    outside: dict[tuple[str, str], Tried]
    said_inside: str

    def denied(
        self, case: str, words: str, *, poisoned: bool = False, optional: bool = False
    ) -> None:
        """Hold every attempt of `case` to one of `words`, and its control to have reached more.

        `poisoned`: the control's arguments are wrong on purpose, so that it is enough if the
        kernel complains of them instead of refusing. `optional`: this kernel may lack the thing.
        """
        attempts = [tried for (name, _), tried in self.inside.items() if name == case]
        assert attempts, f"no attempt of {case} ran"
        for tried in attempts:
            control = self.outside[case, tried.what]
            assert tried.word in words.split(), tried
            if optional and control.word in ABSENT:
                continue
            assert control.reached or (poisoned and control.word != tried.word), control
            assert control.word != "BROKEN", control


def both(
    arena: Arena,
    name: str,
    setting: Mapping[str, Mapping[str, str]],
    fds: tuple[int, ...] = (),
    env: Mapping[str, str] | None = None,
    limits: Mapping[str, int] | None = None,
) -> Both:
    """Run a probe file in a sandbox and in every place; `setting` by place, `inside` for ours."""
    execution = arena.run(source(name, setting["inside"]), timeout=30, limits=dict(limits or {}))
    assert execution.exit_code == 0, (execution.outcome, execution.stderr)
    outside: dict[tuple[str, str], Tried] = {}
    for place in PLACES:
        code = source(name, setting.get(place, setting["outside"]), place)
        outside.update(parse(run_in(place, code, fds, env)))
    return Both(parse(execution.stdout), outside, execution.stdout + execution.stderr)

"""An image described in Python, step by step; the text of a Dockerfile comes of it.

Pure data: `engine.images.builder` builds it. The invariant: what a caller passes as a value is one
word of the Dockerfile, whatever characters it has; only `run` with a text is the shell's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cellwall.model.errors import UsageError

_PIP = "PIP_BREAK_SYSTEM_PACKAGES=1 exec python3 -m pip install --no-cache-dir"
_APT = "apt-get update && apt-get install -y --no-install-recommends"


@dataclass(frozen=True, slots=True)
class ImageSteps:
    """Steps that make an image: each method returns new ones with one step more.

    `base` is what `image=` takes, or `scratch`. `Images().build(steps, name="task")` builds them;
    `str(steps)` is the Dockerfile.
    """

    base: str
    lines: tuple[str, ...] = ()

    def run(self, command: str | Sequence[str]) -> ImageSteps:
        """Run a command as root: a text by `/bin/sh`, or a program with its arguments."""
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        return self._with(f"RUN {json.dumps(words)}")

    def copy(self, source: str, target: str, owner: str | None = None) -> ImageSteps:
        """Copy a file or a directory of the build's context; `owner` is `user` or `user:group`."""
        flag = "" if owner is None else f"--chown={_word('owner', owner)} "
        words = [each.replace("\\", "\\\\").replace("$", "\\$") for each in (source, target)]
        return self._with(f"COPY {flag}{json.dumps(words)}")

    def env(self, **variables: str) -> ImageSteps:
        """Set environment variables, for the steps that follow and for the image."""
        said = " ".join(f"{_word('env', name)}={_quoted(v)}" for name, v in variables.items())
        return self._with(f"ENV {said}") if variables else self

    def workdir(self, path: str) -> ImageSteps:
        """Set the directory in which the steps that follow, and the image's programs, start."""
        return self._with(f"WORKDIR {_word('workdir', path)}")

    def user(self, name: str) -> ImageSteps:
        """Set the user of the image; the last step, because steps run as root."""
        return self._with(f"USER {_word('user', name)}")

    def command(self, *words: str) -> ImageSteps:
        """Set the program that starts if a caller names none."""
        return self._with(f"CMD {json.dumps(list(words))}")

    def pip_install(self, *packages: str) -> ImageSteps:
        """Install Python packages with the image's own pip; the build needs a network."""
        return self.run(["/bin/sh", "-c", f'{_PIP} "$@"', "pip", *_packages(packages)])

    def apt_install(self, *packages: str) -> ImageSteps:
        """Install Debian packages with the image's own apt-get; the build needs a network."""
        words = ["/bin/sh", "-c", f'{_APT} -- "$@" && rm -rf /var/lib/apt/lists/*', "apt"]
        return self.run([*words, *_packages(packages)])

    def npm_install(self, *packages: str) -> ImageSteps:
        """Install packages of npm for every user; the build needs a network."""
        return self.run(["npm", "install", "--global", *_packages(packages)])

    def __str__(self) -> str:
        """Return the Dockerfile."""
        return "\n".join([f"FROM {_word('base', self.base)}", *self.lines, ""])

    def _with(self, line: str) -> ImageSteps:
        return ImageSteps(self.base, (*self.lines, line))


def _packages(names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if not isinstance(name, str) or not name or name.startswith("-"):
            raise UsageError(f"image: {name!r} is no name of a package", remedy="name a package")
    if not names:
        raise UsageError("image: no package is named", remedy="name one, or leave the step out")
    return names


def _word(what: str, value: Any) -> str:  # noqa: ANN401 - of a caller
    if not isinstance(value, str) or not value or set(value) & set(" \t\r\n\\\"'$=#"):
        raise UsageError(
            f"image: {what}: {value!r} is no single word",
            remedy="use letters, digits and the characters . : / - _ @ +",
        )
    return value


def _quoted(value: Any) -> str:  # noqa: ANN401 - of a caller
    if not isinstance(value, str) or "\n" in value or "\r" in value:
        raise UsageError(f"image: env: {value!r} is no single line of text", remedy="use one line")
    for special in '\\"$':
        value = value.replace(special, f"\\{special}")
    return f'"{value}"'

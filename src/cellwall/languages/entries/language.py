"""What cellwall knows about a language: one entry, as data.

Not how a program is started (`engine`), not whether the tool is here (`tools`) and not the list
(`registry`). Pure: an entry answers with argument vectors and patterns, it touches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

BUILD = ".cellwall/build"
"""Where a compiler puts what it makes, below the working directory."""
CALLER = ".cellwall"
"""Where the small program that passes arguments and result lies."""
_NAME_LOOK_CHARACTERS = 64 * 1024
_MEMORY_MB = 512


@dataclass(frozen=True, slots=True)
class Sample:
    """A program that ends by an uncaught error, and what is to be said of it."""

    code: str
    error: str = ""
    """The error's name; empty where the language has none and the kernel's word is all there is."""
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Language:
    """One language, as data.

    In argument vectors, `{file}` stands for the program's path, `{stem}` for its name without
    ending, `{sources}` (a part of its own) for the given files of the language and then the
    program, `{options}` for compile options, `{build}` for the directory of what was compiled,
    `{memory}` for the memory limit in MiB and `{caller}` for the file that passes arguments.
    """

    name: str
    aliases: tuple[str, ...]
    """Other names callers use; lower case, unique over all languages."""
    extensions: tuple[str, ...]
    """File name endings with the dot, lower case, the usual one first."""
    file_name: str
    """What the source is called inside, in the working directory."""
    run: tuple[str, ...]
    """Argument vector of the program; its own arguments come after it."""
    context: str | None
    """How a stateful context runs: `python` is the warm interpreter, None means there is none."""
    version: tuple[str, ...]
    """Argument vector that prints the version; its first part is the tool that must be there."""
    install: str
    """How to get all its tools on a Debian or Ubuntu host."""
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Environment its programs and its compiler need beyond the template's."""
    template: str = "python"
    """The template that has what it needs, where a caller at a terminal names none."""
    compile: tuple[str, ...] = ()
    """Argument vector of the compiler, which writes below `{build}`; empty: there is none."""
    options: tuple[str, ...] = ()
    """Patterns; a compile option is allowed if one of them matches all of it."""
    needs: tuple[str, ...] = ()
    """Further programs that have to be there, as a linker."""
    limits: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Limits of its programs where a caller names none, if the usual ones are too low."""
    named_by: tuple[str, ...] = ()
    """Patterns, in order, whose first group names the file, where the source decides that."""
    call: tuple[str, ...] = ()
    """Argument vector of a program that is given `arguments`; empty: it reads the file itself."""
    caller: str = ""
    """The file of `languages/callers` that `call` needs."""
    pictures: str = ""
    """What a program's pictures are called that it draws without naming a file, counted from 1
    (`%03d`): shown as displays. Empty: it has no such."""
    error: str = ""
    """Pattern of an uncaught error on stderr, with groups `name`, `value` and perhaps `line`."""
    error_status: tuple[int, ...] = (1,)
    """Exit statuses of a program that an uncaught error ended; empty: any but 0. What it printed
    says nothing where the kernel says that it ended otherwise."""
    line: str = ""
    """Pattern of the place where it happened, with a group `line`, if `error` has none."""
    hello: str = ""
    """A program that prints `hello` and a line end."""
    failing: Sample = field(default_factory=lambda: Sample(""))

    @property
    def tool(self) -> str:
        """The program that has to be installed."""
        return self.version[0]

    @property
    def tools(self) -> tuple[str, ...]:
        """Every program that has to be there."""
        started = (argv[0] for argv in (self.compile, self.run) if argv)
        found = (self.tool, *self.needs, *(each for each in started if "{" not in each))
        return tuple(dict.fromkeys(found))

    @property
    def packages(self) -> tuple[str, ...]:
        """The Debian packages it is installed from."""
        return tuple(self.install.split()[2:])

    def name_of(self, source: str) -> str:
        """Return the source's file name: for Java, its public class decides."""
        for pattern in self.named_by:
            found = re.search(pattern, source[:_NAME_LOOK_CHARACTERS], re.MULTILINE)
            if found is not None:
                return found[1] + self.extensions[0]
        return self.file_name

    def command(
        self,
        file: str,
        arguments: Sequence[str] = (),
        *,
        memory_mb: int = _MEMORY_MB,
        build: str = BUILD,
        is_call: bool = False,
    ) -> list[str]:
        """Return the argument vector that runs the source `file` with `arguments`."""
        parts = self.call if is_call and self.call else self.run
        return self._filled(parts, file, memory_mb, build) + list(arguments)

    def compile_command(
        self,
        file: str,
        files: Sequence[str] = (),
        options: Sequence[str] = (),
        *,
        memory_mb: int = _MEMORY_MB,
        build: str = BUILD,
    ) -> list[str]:
        """Return the argument vector that compiles `file` and what of `files` is of its kind."""
        # A compiler takes a name with a dash in front for an option, and not every one is allowed.
        sources = [
            f"./{name}" if name.startswith("-") else name
            for name in files
            if name.lower().endswith(self.extensions)
        ]
        several = {"{sources}": [*sources, file], "{options}": list(options)}
        command: list[str] = []
        for part in self.compile:
            command += several.get(part) or (
                [] if part in several else self._filled((part,), file, memory_mb, build)
            )
        return command

    def allows(self, option: str) -> bool:
        """Report whether a compile option is on the list."""
        return any(re.fullmatch(pattern, option) for pattern in self.options)

    def _filled(self, parts: Sequence[str], file: str, memory_mb: int, build: str) -> list[str]:
        stem = file.rpartition("/")[2].rpartition(".")[0]
        values = {
            "{file}": file,
            "{stem}": stem,
            "{build}": build,
            "{memory}": str(memory_mb),
            "{caller}": f"{CALLER}/{self.caller}",
        }

        def value(found: re.Match[str]) -> str:
            return values[found[0]]

        return [re.sub(r"\{(?:file|stem|build|memory|caller)\}", value, part) for part in parts]

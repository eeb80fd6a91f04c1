"""What a program is given on the command line: local files, `PATH[:NAME]`, and variables.

The invariants: everything is read before anything runs, and a folder is bounded, so that a wrong
word does not read a whole disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from cellwall.model.errors import UsageError

_MOST_FILES = 10_000
_MOST_BYTES = 256 * 1024 * 1024
_FEWER = "give only what the program needs, or a volume"


def files_of_words(words: Sequence[str]) -> dict[str, bytes]:
    """Return contents by path in the working directory, as `--file` gives them.

    Raises `UsageError` for what cannot be read, for two files of one name, and for too much.
    """
    files: dict[str, bytes] = {}
    size = 0
    for word in words:
        for name, path in _named(word):
            if name in files:
                raise _wrong(f"two files are named {name}", "name one of them: --file PATH:NAME")
            size += _size(path)
            if len(files) == _MOST_FILES or size > _MOST_BYTES:
                most = f"{_MOST_FILES} files or {_MOST_BYTES >> 20} MiB"
                raise _wrong(f"{word} is more than {most}", _FEWER)
            files[name] = _read(path)
    return files


def _named(word: str) -> Iterator[tuple[str, Path]]:
    """Yield each file that a word names, with its path inside."""
    path, name = _split(word)
    if not path.is_dir():
        yield name, path
        return
    for top, folders, found in os.walk(path, onerror=_refuse):
        links = [each for each in folders if os.path.islink(os.path.join(top, each))]
        for each in links + found:
            file = Path(top, each)
            if not file.is_file():
                raise _wrong(f"{file} is no regular file", _FEWER)
            yield os.path.normpath(os.path.join(name, os.path.relpath(file, path))), file


def _split(word: str) -> tuple[Path, str]:
    path = Path(word)
    if path.exists():
        own = path.name if path.name not in {"", ".."} else path.resolve().name
        return path, own or "."
    given, colon, name = word.rpartition(":")
    if colon and given and name:
        return Path(given), name
    return path, path.name


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _refuse(error: OSError) -> None:
    raise _unreadable(error.filename, error) from error


def _unreadable(path: object, error: OSError) -> UsageError:
    return _wrong(f"read {path}: {error.strerror}", "give readable files, as --file PATH[:NAME]")


def _wrong(what: str, remedy: str) -> UsageError:
    return UsageError(f"run: --file: {what}", remedy=remedy)


def variables_of_words(words: Sequence[str]) -> dict[str, str]:
    """Return the variables that `--env` gives; `NAME` alone takes ours. Raises `UsageError`."""
    variables: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name:
            raise UsageError(f"run: --env {word!r} has no name", remedy="--env NAME=VALUE")
        if not equals:
            if name not in os.environ:
                raise UsageError(
                    f"run: --env {name}: there is no such variable in our environment",
                    remedy=f"set it, or give --env {name}=VALUE",
                )
            value = os.environ[name]
        variables[name] = value
    return variables

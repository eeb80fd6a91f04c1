"""A context on an image's root: the image's own Python, started by exec, or one brought along.

Init is a fork of an interpreter that is not part of the image, and so are its forks; what caller
code imports has to be the image's, if it has a Python. `main` is the last that such a fork does,
`begin` the first that the new interpreter does.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import sys

from cellwall.guest.channel.errors import Refusal
from cellwall.guest.process.programs import DEFAULT_PATH, find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

    from cellwall.guest.channel.init_link import Link

_PROGRAM = "python3"
_GUEST = "/opt/cellwall/guest.pyz"


def check(config: Mapping[str, Any]) -> None:
    """Raise `Refusal` unless there is a Python: the image's, or the one that was brought."""
    if config.get("own_python"):
        return
    try:
        _python(config)
    except Refusal as missing:
        raise Refusal(
            "not_found", f"context: this image has no {_PROGRAM}; run commands in it"
        ) from missing


def _python(config: Mapping[str, Any]) -> list[str]:
    """Return the words that start the interpreter, the image's own if it has one."""
    own = list(config.get("own_python") or ())
    try:
        return [find_program(_PROGRAM, config["env"].get("PATH", DEFAULT_PATH))]
    except Refusal:
        if not own:
            raise
        return own


def main(link: Link, config: dict[str, Any]) -> NoReturn:
    """Become the image's interpreter; the link's descriptor stays open. Raises OSError."""
    python = _python(config)
    document = _document(json.dumps({**config, "is_environment_set": True}).encode())
    os.set_inheritable(link.fileno(), True)
    address, is_named = link.origin
    numbers = (str(link.fileno()), str(document), str(int(is_named)))
    words = [*python, _GUEST, "context", address.lstrip("\0"), *numbers]
    os.execve(words[0], words, dict(config["env"]))  # noqa: S606 - of the caller's image


def _document(text: bytes) -> int:
    """Return an inheritable descriptor of a file with `text`. Raises OSError."""
    try:
        document = os.memfd_create("config", 0)
    except OSError as error:
        # The filter refuses it where no cgroup counts memory (`linux/no_memory_cgroup.policy`).
        if error.errno != errno.ENOSYS:
            raise
        document = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR, 0o600)  # noqa: S108 - own tmpfs
        os.set_inheritable(document, True)
    os.write(document, text)
    os.lseek(document, 0, os.SEEK_SET)
    return document


def begin(arguments: list[str]) -> NoReturn:
    """Serve as a context: `ADDRESS CONNECTION_FD CONFIG_FD IS_NAMED`."""
    from cellwall.guest.channel.init_link import Link

    address, connection, document, is_named = arguments
    with open(int(document), encoding="utf-8") as file:
        config = json.load(file)
    os.set_inheritable(int(connection), False)
    sys.argv[:] = [""]
    # By name, as init does: the package below must not need the one beside it.
    serve: Callable[..., NoReturn] = importlib.import_module("cellwall.guest.context.main").main
    serve(Link("\0" + address, int(connection), is_named=is_named == "1"), config)

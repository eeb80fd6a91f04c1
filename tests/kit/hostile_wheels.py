"""Wheels whose author wants to run on the machine that builds a template, and a template of them.

Whatever of such a wheel runs, in whichever way, writes a line into a witness file of the host's:
inside there is no such file, and it goes on without a word.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

_WITNESS = """
def _bear_witness():
    import os, sys
    try:
        fd = os.open({witness!r}, os.O_WRONLY | os.O_APPEND)
        os.write(fd, ({by!r} + " " + str(getattr(sys, "argv", "")) + "\\n").encode())
    except OSError:
        pass
    sys.weed = "ran"
_bear_witness()
"""
WEED_SCRIPT = "#!python\nimport weed\nprint(weed.NAME)\n"


def code(witness: Path, by: str) -> str:
    """A module that tells `witness` who runs it."""
    return _WITNESS.format(witness=str(witness), by=by)


def weed(directory: Path, witness: Path) -> None:
    """All that a wheel may bring and that some interpreter runs unasked, or when it is imported."""
    line = f"import sys; exec({code(witness, 'pth')!r})\n"
    wheel(
        directory,
        "weed",
        {
            "weed.py": code(witness, "weed") + "NAME = 'weed'\n",
            "weed.pth": line,
            "sitecustomize.py": code(witness, "sitecustomize"),
            "usercustomize.py": code(witness, "usercustomize"),
            "json.py": code(witness, "json"),
            "compileall.py": code(witness, "compileall"),
            "odd name.py": code(witness, "odd name"),
            "broken.py": "def (:\n",
            "weed-1.0.data/scripts/weed-script": WEED_SCRIPT,
            "weed-1.0.dist-info/entry_points.txt": "[console_scripts]\nweed-entry = weed:main\n",
        },
    )


def crown(directory: Path, home: Path, place: str = "pyvenv.cfg") -> None:
    """A wheel that chooses the interpreter's standard library."""
    text = f"home = {home}/bin\ninclude-system-site-packages = false\n"
    wheel(directory, "crown", {"crown.py": "", f"crown-1.0.data/data/{place}": text})


def evil_library(home: Path, witness: Path) -> None:
    """A standard library that bears witness and is none: whoever starts with it ends."""
    (home / "bin").mkdir(parents=True)
    for folder in ("lib/python3.11", "lib/python3.12", "lib/python3.13", "lib/python3.14"):
        (home / folder / "lib-dynload").mkdir(parents=True)
        (home / folder / "os.py").write_text("")
        (home / folder / "encodings").mkdir()
        told = f"import posix\nfd = posix.open({str(witness)!r}, posix.O_WRONLY | posix.O_APPEND)\n"
        told += "posix.write(fd, b'evil standard library\\n')\n"
        (home / folder / "encodings/__init__.py").write_text(told)


def wheel(directory: Path, name: str, files: dict[str, str]) -> None:
    """Write a wheel of `files`, valid enough for any installer."""
    info = f"{name}-1.0.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files |= {f"{info}/RECORD": "".join(f"{path},,\n" for path in files)}
    directory.mkdir(exist_ok=True)
    with zipfile.ZipFile(directory / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


def define(config: Path, name: str, **fields: list[str]) -> None:
    """Write a `templates.toml` with one template."""
    config.mkdir(exist_ok=True)
    lines = [f"{field} = {json.dumps(value)}" for field, value in fields.items()]
    (config / "templates.toml").write_text(f"[templates.{name}]\n" + "\n".join(lines))

"""The guest of gVisor sandboxes and what it imports, as code that an interpreter runs.

Opening a file costs a gVisor sandbox a question to its file server, and an import asks for several:
the guest's modules and the standard library's under them took a third of a cold start. So the
template's own interpreter imports them once on this host and writes down their code
(`gvisor_snapshot`); inside, `gvisor_modules` gives it out. Not a cache of what callers import. The
invariant: a file is whole before anybody can see it, and the name says which guest, which
interpreter and which preload made it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cellwall.model.errors import HostUnsupported
from cellwall.runtimes.gvisor_snapshot import LENGTH_BYTES

if TYPE_CHECKING:
    from cellwall.model.template import BuiltTemplate

START_PATH = "/opt/cellwall/start"
REST_PATH = "/opt/cellwall/rest"
"""Inside."""
RUN = (
    "import posix, marshal; f = posix.open('" + START_PATH + "', 0); "
    "code = posix.read(f, 1 << 24); posix.close(f); exec(marshal.loads(code))"
)
"""What the interpreter is started with: a script would be opened three times and asked about."""
_WRITE_S = 60.0
_WRITE = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from cellwall.runtimes.gvisor_snapshot import main; main(sys.argv[1:])"
)


class Image(NamedTuple):
    """Two files of one start."""

    start: Path
    rest: Path


def build_image(state_dir: Path, template: BuiltTemplate, bundle: Path, inside: str) -> Image:
    """Write (once) the image of `bundle` for `template`; return where it is. Blocks.

    `inside` is the bundle's path in a sandbox. HostUnsupported if the interpreter cannot do it or
    the state directory takes no more.
    """
    name = state_dir / "guest" / _name(template, bundle)
    image = Image(name.with_suffix(".start"), name.with_suffix(".rest"))
    if image.start.exists():
        return image
    try:
        written = _written(template, bundle, inside)
        at = LENGTH_BYTES + int.from_bytes(written[:LENGTH_BYTES], "big")
        _save(image.rest, written[at:])
        _save(image.start, written[LENGTH_BYTES:at])
    except (OSError, subprocess.SubprocessError) as error:
        raise HostUnsupported(
            "template",
            f"gVisor: write the image of template {template.template.name}: {error}",
            remedy="build the template again; is the state directory writable?",
        ) from error
    return image


def _name(template: BuiltTemplate, bundle: Path) -> str:
    interpreter = os.stat(template.python)
    parts = (
        bundle.name,
        os.path.realpath(template.python),
        str(interpreter.st_size),
        str(interpreter.st_mtime_ns),
        *template.template.preload,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _written(template: BuiltTemplate, bundle: Path, inside: str) -> bytes:
    """What the interpreter writes. SECURITY: -I and -S, so that no package of a template runs."""
    words = [template.python, "-I", "-S", "-E", "-B", "-c", _WRITE]
    done = subprocess.run(
        [*words, str(bundle), inside, REST_PATH, *template.template.preload],
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=_WRITE_S,
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        cwd="/",
    )
    if done.returncode or not done.stdout:
        raise subprocess.SubprocessError(done.stderr.decode(errors="replace")[-300:].strip())
    return done.stdout


def _save(target: Path, content: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".image-")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            os.fchmod(stream.fileno(), 0o644)  # a sandbox of another uid reads it
        os.rename(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise

"""Guest image: the code of the guest and its imports in one file for the interpreter to run.

Opening a file costs a gVisor sandbox a request to its file server, and an import causes several:
importing the guest's and the standard library's modules took a third of a cold start. So the
template's base interpreter, which does not know the template's packages, imports them once on this
host and writes their code to a file (`snapshot`); inside, `module_finder` provides it. It is not a
cache of what callers import. The invariant: a file is complete before it has its name, and the name
identifies the guest, interpreter, standard library and preload that made it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cellwall.model.errors import HostUnsupported
from cellwall.runtimes.gvisor.snapshot import LENGTH_BYTES
from cellwall.runtimes.shared.guest_bundle import build_bundle, file_state

if TYPE_CHECKING:
    from cellwall.model.template import BuiltTemplate

_BUNDLED = (
    "cellwall.guest",
    "cellwall.runtimes.gvisor.boot",
    "cellwall.runtimes.gvisor.module_finder",
    "cellwall.runtimes.gvisor.snapshot",
)
START_PATH = "/opt/cellwall/start"
REST_PATH = "/opt/cellwall/rest"
"""Paths in the sandbox."""
RUN = (
    "import posix, marshal; f = posix.open('" + START_PATH + "', 0); "
    "code = posix.read(f, 1 << 24); posix.close(f); exec(marshal.loads(code))"
)
"""Code with which the interpreter is started: it would open a script three times and stat it."""
_WRITE_S = 60.0
_NEVER_IMPORTED = frozenset({"__pycache__", "dist-packages", "site-packages", "test"})
_WRITE = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from cellwall.runtimes.gvisor.snapshot import main; main(sys.argv[1:])"
)


class Image(NamedTuple):
    """The two files of one start."""

    start: Path
    rest: Path


def bundle_in(state_dir: Path) -> Path:
    """Return the path of the guest with what begins it in gVisor; it is made if necessary."""
    return build_bundle(state_dir, _BUNDLED, "cellwall.runtimes.gvisor.boot:main")


def build_image(
    state_dir: Path, template: BuiltTemplate, bundle: Path, inside: str, library: str = ""
) -> Image:
    """Write (once) the image of `bundle` for `template`; return its files. Blocks.

    `inside` is the bundle's path in a sandbox, `library` that of the standard library if it is
    another than on this host: then nothing of the template is in it. HostUnsupported if the
    interpreter fails or the state directory cannot be written.
    """
    name = state_dir / "guest" / _name(template, bundle, library)
    image = Image(name.with_suffix(".start"), name.with_suffix(".rest"))
    if image.start.exists():
        return image
    try:
        written = _written(template, bundle, inside, library)
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


def _name(template: BuiltTemplate, bundle: Path, library: str) -> str:
    interpreter = Path(template.base_python)
    parts = (
        bundle.name,
        file_state(str(interpreter)),
        *(file_state(path) for path in _standard_library(interpreter)),
        *_preload(template, library),
        *((library,) if library else ()),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _preload(template: BuiltTemplate, library: str) -> tuple[str, ...]:
    return () if library else template.template.preload


def _standard_library(interpreter: Path) -> list[str]:
    """Return every source that an image may include: some 640 files, which takes 3 ms."""
    found = []
    for top in interpreter.parent.parent.glob(f"lib*/{interpreter.name}"):
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if name not in _NEVER_IMPORTED]
            found += [f"{folder}/{name}" for name in names if name.endswith(".py")]
    return sorted(found)


def _written(template: BuiltTemplate, bundle: Path, inside: str, library: str) -> bytes:
    """Return what the interpreter writes.

    SECURITY: the base interpreter, with -I and -S, so that no package of a template runs. The
    template's own would read the `pyvenv.cfg` beside it, whatever its options.
    """
    words = [template.base_python, "-I", "-S", "-E", "-B", "-c", _WRITE]
    done = subprocess.run(
        [*words, str(bundle), inside, REST_PATH, library, *_preload(template, library)],
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

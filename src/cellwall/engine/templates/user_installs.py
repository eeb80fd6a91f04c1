"""What lets a sandbox's user install packages although the template is read-only.

Added to an environment once its packages are in it (`build`); none of it runs on the host. pip and
uv then install into `~/.local`, whose modules come before the template's:

    lib/python3.X/site-packages/_cellwall_user_site.{py,pth}    `sys.path`, and pip's choice
    bin/uv                  `uv pip install` without options; the real one is libexec/uv
    share/cellwall/installed/    what the template has, as uv looks for it in `~/.local`
    bin/apt, bin/apt-get    a sentence instead of locks that cannot be taken
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

INSTALLED = "share/cellwall/installed"
_KEPT = ("METADATA", "WHEEL", "INSTALLER", "entry_points.txt", "top_level.txt")
_PTH = "import _cellwall_user_site\n"
_USER_SITE = '''\
"""The user's own packages before the template's, in every interpreter that has a user site.

An environment has none otherwise, and pip, which asks `site` for it, would want to write into the
template; nor would it put another version of a template's package into a user site, if it took this
for an environment.
"""

import os
import site
import sys


class _BeforePip:
    """Makes this a system with a user site when pip is imported; `site` has said no by then."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "pip":
            site.ENABLE_USER_SITE = True
            sys.base_prefix, sys.base_exec_prefix = sys.prefix, sys.exec_prefix
        return None


def _begin():
    if sys.flags.no_user_site or _BeforePip in sys.meta_path:
        return
    _add(site.getusersitepackages())
    sys.meta_path.insert(0, _BeforePip)


def _add(place):
    if not os.path.isdir(place) or place in sys.path:
        return
    before, here = len(sys.path), os.path.dirname(os.path.abspath(__file__))
    site.addsitedir(place)
    added, sys.path[before:] = sys.path[before:], []
    index = sys.path.index(here) if here in sys.path else before
    sys.path[index:index] = added


_begin()
'''
_UV = """\
#!/bin/sh
# uv for the sandbox's user: `uv pip` without a place of its own works on ~/.local.
# The template's packages count as installed there.
home=$(dirname -- "$(dirname -- "$(realpath -- "$0")")")
real=$home/libexec/uv
[ "$1" = pip ] && [ "${VIRTUAL_ENV:-$home}" = "$home" ] && [ ! -d .venv ] || exec "$real" "$@"
case " $* " in
*" --target"*|*" -t "*|*" --prefix"*|*" --python"*|*" -p "*|*" --system "*) exec "$real" "$@" ;;
esac
case $2 in
install|uninstall|sync|list|freeze|show|check|tree) command=$2; shift 2 ;;
*) exec "$real" "$@" ;;
esac
site=$HOME/.local/lib/@PYTHON@/site-packages
missing=
for each in "$home/@INSTALLED@"/*; do
    name=${each##*/}
    is_there=
    for known in "$site/${name%%-*}"-*.dist-info; do [ -d "$known" ] && is_there=1; done
    [ -n "$is_there" ] || missing="$missing $each"  # no name of a package has a space
done
[ -z "$missing" ] || { mkdir -p "$site" && cp -r --no-preserve=mode $missing "$site/"; } || exit 1
exec "$real" pip "$command" --prefix "$HOME/.local" "$@"
"""
_APT = """\
#!/bin/sh
# apt for a user who cannot be root, in a system that is read-only.
case " $* " in
*" install "*|*" update "*|*" upgrade "*|*" remove "*|*" full-upgrade "*|*" dist-upgrade "*)
    echo "E: the system of this sandbox is read-only and its user is not root: no packages of" \\
        "Debian can be installed. pip, uv and npm work where the sandbox may install packages." >&2
    exit 100 ;;
esac
for each in /usr/bin /bin; do
    [ -x "$each/@NAME@" ] && exec "$each/@NAME@" "$@"
done
echo "@NAME@: not found" >&2
exit 127
"""


def add(root: Path, packages: Path) -> None:
    """Add all of it to the environment at `root`, whose modules are in `packages`."""
    (packages / "_cellwall_user_site.py").write_text(_USER_SITE, encoding="utf-8")
    (packages / "_cellwall_user_site.pth").write_text(_PTH, encoding="utf-8")
    for name in ("apt", "apt-get"):
        _script(root / "bin" / name, _APT.replace("@NAME@", name))
    if (root / "bin/uv").is_file():
        _wrap_uv(root, packages)


def _wrap_uv(root: Path, packages: Path) -> None:
    (root / "libexec").mkdir()
    os.rename(root / "bin/uv", root / "libexec/uv")
    text = _UV.replace("@PYTHON@", packages.parent.name).replace("@INSTALLED@", INSTALLED)
    _script(root / "bin/uv", text)
    for folder in sorted(packages.glob("*.dist-info")):
        _describe(folder, root / INSTALLED / folder.name)


def _describe(distribution: Path, place: Path) -> None:
    """Describe an installed package by the files with which uv and `importlib.metadata` know it.

    Its record names these files alone: uninstalling it from `~/.local` leaves the template's.
    """
    place.mkdir(parents=True)
    kept = [name for name in _KEPT if (distribution / name).is_file()]
    for name in kept:
        shutil.copyfile(distribution / name, place / name)
    lines = (f"{place.name}/{name},," for name in (*kept, "RECORD"))
    (place / "RECORD").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _script(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)

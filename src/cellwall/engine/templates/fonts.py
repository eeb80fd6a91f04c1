"""Fonts of a template: files of its packages, made known to what draws text inside.

Called by `build` once packages are installed and the environment's own files are found unchanged;
it installs nothing. The invariant: a font is never opened here, for its bytes are the package's;
names and places come from the definition.

    share/fonts/<file>                      a link to each font: the place that users are told
    etc/fonts.conf                          fontconfig's configuration, with that folder
    …/matplotlib/mpl-data/fonts/ttf/<file>  the same link, where matplotlib looks by itself
    …/matplotlib/mpl-data/matplotlibrc      its defaults: our families after its own
    …/matplotlib/font_manager.py            ends with a call of `font_fallback`, beside it
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from cellwall.model.errors import HostUnsupported
from cellwall.model.template import Template

CONFIGURATION = "etc/fonts.conf"
"""Place of fontconfig's configuration below the template's root."""

_FOLDER = "share/fonts"
_FAMILY_LINE = re.compile(rb"^#?font\.family:.*$", re.MULTILINE)

_FALLBACK = "_cellwall_fonts"
_CALL = f"""

# Added by cellwall: text that names other families is drawn with this template's fonts, too.
__import__({_FALLBACK!r}).extend(FontManager)
"""

_FONTCONFIG = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <include ignore_missing="yes">/etc/fonts/fonts.conf</include>
  <include ignore_missing="yes">/usr/share/fontconfig/conf.avail</include>
  <dir prefix="relative">../{folder}</dir>
  <dir>/usr/share/fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
{aliases}
</fontconfig>
"""

_ALIAS = """  <alias>
    <family>{generic}</family>
    <default>{families}</default>
  </alias>"""


def install(root: Path, template: Template, packages: Path) -> None:
    """Make the template's fonts known; `HostUnsupported` if a package does not bring one."""
    if not template.fonts:
        return
    files = [
        path
        for family, pattern in template.font_files()
        for path in _files(packages, family, pattern, template.name)
    ]
    _link(files, root / _FOLDER)
    (root / CONFIGURATION).parent.mkdir(exist_ok=True)
    (root / CONFIGURATION).write_text(_fontconfig(_families(template)), encoding="utf-8")
    drawing = packages / "matplotlib/mpl-data"
    if drawing.is_dir() and (packages / "matplotlib/font_manager.py").is_file():
        _link(files, drawing / "fonts/ttf")
        _append_families(drawing / "matplotlibrc", template)
        _extend(packages)


def _families(template: Template) -> list[str]:
    return [family for family, _ in template.font_files()]


def _files(packages: Path, family: str, pattern: str, template: str) -> Iterator[Path]:
    found = sorted(p for p in packages.glob(pattern) if p.is_file() and not p.is_symlink())
    if not found:
        raise HostUnsupported(
            "template build",
            f"build template {template}: no package brings {pattern}, font {family!r}",
            remedy="name a path below site-packages, and the package that brings it",
        )
    yield from found


def _link(files: Iterable[Path], folder: Path) -> None:
    """Link the fonts by relative paths: the environment is renamed, and mounted elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        place = folder / path.name
        place.unlink(missing_ok=True)
        place.symlink_to(os.path.relpath(path, folder))


def _fontconfig(families: Iterable[str]) -> str:
    named = "".join(f"<family>{escape(family)}</family>" for family in families)
    aliases = (
        _ALIAS.format(generic=generic, families=named)
        for generic in ("sans-serif", "serif", "monospace")
    )
    return _FONTCONFIG.format(folder=_FOLDER, aliases="\n".join(aliases))


def _append_families(defaults: Path, template: Template) -> None:
    """Have matplotlib ask for our families after the one that it would use alone.

    In its own file, not in one that `MATPLOTLIBRC` names: `rcdefaults` and style `default` go back
    to that.
    """
    families = ", ".join(("sans-serif", *_families(template)))
    text, count = _FAMILY_LINE.subn(f"font.family: {families}".encode(), defaults.read_bytes())
    if count != 1:
        raise HostUnsupported(
            "template build",
            f"build template {template.name}: matplotlib's defaults name font.family {count} times",
            remedy="pin a matplotlib from 3.6 to 3.11, or take the fonts off the template",
        )
    defaults.write_bytes(text)


def _extend(packages: Path) -> None:
    """Have matplotlib's own module call ours, so that no interpreter pays for it at its start."""
    ours = Path(__file__).with_name("font_fallback.py").read_bytes()
    (packages / f"{_FALLBACK}.py").write_bytes(ours)
    with (packages / "matplotlib/font_manager.py").open("a", encoding="utf-8") as module:
        module.write(_CALL)

"""Font fallback: text of matplotlib asks a template's fonts as well, whatever family it names.

Runs inside only, in a template's environment: `fonts` copies this file there under the name
`_cellwall_fonts`, and matplotlib's `font_manager` ends with a call of `extend`. Standard library,
Python 3.8 and later. It does not name fonts: those are the families that stand in matplotlib's
defaults after the first.

Without it a style, seaborn's for one, that sets `font.family` takes the fonts away, and matplotlib
complains about each bold text, because a font has one weight. The invariant: fonts that a caller
names come first, and are looked up by matplotlib itself.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def extend(manager: Any) -> None:  # noqa: ANN401 - matplotlib's class FontManager
    """Have every search of `manager` end with the template's fonts."""
    search = manager._find_fonts_by_props
    found: dict[tuple[object, object], list[str]] = {}

    def _find_fonts_by_props(
        self: Any,  # noqa: ANN401 - an instance of that class
        prop: Any,  # noqa: ANN401 - matplotlib's FontProperties
        fontext: str = "ttf",
        *arguments: object,
        **options: object,
    ) -> list[str]:
        """Find the paths to the font files most closely matching the given properties."""
        if fontext != "ttf" or isinstance(prop, str):
            return list(search(self, prop, fontext, *arguments, **options))
        ours = _families()
        wanted = list(prop.get_family())
        first = [family for family in wanted[:1] if family in ours]
        theirs = prop.copy()
        theirs.set_family([family for family in wanted if family not in ours] or ["sans-serif"])
        key = (prop.get_weight(), prop.get_style())
        if key not in found:
            found[key] = [path for family in ours for path in _file(self, prop, family)]
        leading = [path for family in first for path in _file(self, prop, family)]
        named = search(self, theirs, fontext, *arguments, **options)
        return list(dict.fromkeys([*leading, *named, *found[key]]))

    manager._find_fonts_by_props = _find_fonts_by_props


def _families() -> list[str]:
    import matplotlib

    return list(matplotlib.rcParamsDefault["font.family"][1:])


def _file(manager: Any, prop: Any, family: str) -> list[str]:  # noqa: ANN401 - as above
    """Return the file of `family` that is nearest in weight and style; none if it has no file."""
    weight, style = prop.get_weight(), prop.get_style()
    entries = [entry for entry in manager.ttflist if entry.name == family]
    if not entries:
        return []
    nearest = min(
        entries,
        key=lambda entry: (
            manager.score_style(style, entry.style) + manager.score_weight(weight, entry.weight)
        ),
    )
    exact = prop.copy()
    exact.set_family(family)
    exact.set_weight(nearest.weight)
    exact.set_style(nearest.style)
    exact.set_file(None)
    return [manager.findfont(exact, fallback_to_default=False)]

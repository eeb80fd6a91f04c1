"""matplotlib figures become PNG display events: at plt.show() and at the end of the code.

Used by `program.py` and `cell.py`. It never imports matplotlib: without pyplot in sys.modules there
can be no figure. It does not choose the caller's backend once pyplot is loaded.

A PNG larger than a frame would be dropped, so it is drawn again at a lower resolution.
"""

from __future__ import annotations

import io
import os
import sys

from cellwall.guest.channel.outbox import MAX_BODY_BYTES
from cellwall.guest.process.import_hooks import after_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    Publish = Callable[[dict[str, Any], dict[str, Any]], None]

_MOST_PNG_BYTES = (MAX_BODY_BYTES - 4096) // 4 * 3
"""Maximum bytes of a PNG: base64 takes four bytes for three, and the text has to fit, too."""

_LEAST_DPI = 10
_WANTED = "CELLWALL_CHARTS"
CHART = "application/vnd.cellwall.chart+json"
TABLE = "application/vnd.cellwall.table+json"

_shown: set[int] = set()


class Figures:
    """Shows the figures that are open in pyplot."""

    def __init__(self, publish: Publish) -> None:
        self.publish = publish

    def capture(self) -> None:
        """Take over plt.show, now or as soon as pyplot is imported."""
        os.environ.setdefault("MPLBACKEND", "agg")
        after_import("matplotlib.pyplot", self._take_show)

    def _take_show(self, pyplot: ModuleType) -> None:
        def show(*_args: object, **_options: object) -> None:
            """Show all open figures (here: send them out as images) and close them."""
            self.flush()

        pyplot.show = show  # type: ignore[attr-defined]

    def flush(self) -> None:
        """Show every open figure and close it; costs nothing when there is none."""
        helpers = sys.modules.get("matplotlib._pylab_helpers")
        if helpers is None or not helpers.Gcf.figs:
            _shown.clear()
            return
        try:
            for manager in helpers.Gcf.get_all_fig_managers():
                figure = manager.canvas.figure
                if id(figure) not in _shown:
                    text = f"<Figure size {figure.bbox.width:.0f}x{figure.bbox.height:.0f}>"
                    bundle = {"image/png": draw(figure), "text/plain": text, **facts_of(figure)}
                    self.publish(bundle, {})
        finally:
            _shown.clear()
            helpers.Gcf.destroy_all()


def is_figure(thing: object) -> bool:
    """Return whether an object is matplotlib's Figure."""
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(thing, module.Figure)


def png_of(figure: Any) -> bytes:  # noqa: ANN401  matplotlib's, never imported here
    """Draw a figure on request; it will not be shown again when the code ends."""
    _shown.add(id(figure))
    return draw(figure)


def facts_of(figure: Any) -> dict[str, Any]:  # noqa: ANN401  matplotlib's, never imported here
    """Return what a figure shows as data, as part of its bundle, if the environment asks for it."""
    if not os.environ.get(_WANTED):
        return {}
    from cellwall.guest.display import chart_facts

    facts = chart_facts.facts_of(figure)
    return {} if facts is None else {CHART: facts}


def table_of(frame: Any) -> dict[str, Any]:  # noqa: ANN401  pandas', never imported here
    """Return what a table holds, as part of its bundle, if the environment asks for it."""
    if not os.environ.get(_WANTED):
        return {}
    from cellwall.guest.display import chart_facts

    facts = chart_facts.table_of(frame)
    return {} if facts is None else {TABLE: facts}


def draw(figure: Any) -> bytes:  # noqa: ANN401  matplotlib's, never imported here
    """Return the figure as a PNG that fits a frame, at a lower resolution if necessary."""
    dpi = float(figure.dpi)
    while True:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight")
        size = buffer.tell()
        if size <= _MOST_PNG_BYTES or dpi <= _LEAST_DPI:
            return buffer.getvalue()
        # Bytes grow with the square of the resolution, for noise at least.
        dpi = max(_LEAST_DPI, dpi * min(0.9, (_MOST_PNG_BYTES / size) ** 0.5 * 0.95))

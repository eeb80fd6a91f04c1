"""Displays of plotly, PIL and `IPython.display` become display events, with and without a shell.

Used by `context/main.py` for programs and cells alike. No library is imported here: each change is
made when the caller imports the library. `figures.py` does the same for matplotlib.

A program has no shell, and without one plotly looks for a browser and IPython prints the repr. In a
notebook plotly would show its whole library as HTML (5 MB) with the first figure. PIL looks for
programs that have a screen.
"""

from __future__ import annotations

import os
import sys

from cellwall.guest.process.import_hooks import after_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from cellwall.guest.display.display import Display

_RENDERER = "plotly_mimetype"
_SAVED = "CELLWALL_SAVED_IMAGES"


class Charts:
    """Redirects what plotting libraries show by themselves to the context's display."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._is_saved_shown = False

    def capture(self) -> None:
        """Take over now, or as soon as the libraries are imported."""
        after_import("plotly.io._renderers", self._take_plotly)
        after_import("IPython.core.display_functions", self._take_ipython)
        after_import("PIL.ImageShow", self._take_pil)

    def capture_saved(self) -> None:
        """Also show each picture that PIL saves to a path, if the environment asks for it."""
        if os.environ.get(_SAVED) and not self._is_saved_shown:
            self._is_saved_shown = True
            after_import("PIL.Image", self._take_saved)

    def _take_plotly(self, module: ModuleType) -> None:
        renderers: Any = module
        if "PLOTLY_RENDERER" not in os.environ:
            renderers.renderers.default = _RENDERER
        if not getattr(renderers, "ipython_display", None):
            renderers.ipython_display = _Shows(self)
        if not getattr(renderers, "nbformat", None):
            renderers.nbformat = _Nbformat

    def _take_ipython(self, functions: ModuleType) -> None:
        theirs: dict[str, Any] = {
            name: getattr(functions, name) for name in ("display", "publish_display_data")
        }

        def display(*things: object, **options: Any) -> object:  # noqa: ANN401  as in IPython
            """Display a Python object in all frontends."""
            if self._has_shell():
                return theirs["display"](*things, **options)
            self.show(*things, **options)
            return None

        def publish_display_data(data: Any, metadata: Any = None, **options: Any) -> None:  # noqa: ANN401  likewise
            """Publish data and metadata to all frontends."""
            if self._has_shell():
                theirs["publish_display_data"](data, metadata, **options)
            else:
                self._display.publish(data, metadata)

        functions.display = display  # type: ignore[attr-defined]
        functions.publish_display_data = publish_display_data  # type: ignore[attr-defined]

    def _take_pil(self, module: ModuleType) -> None:
        viewers: Any = module
        viewers.register(_Viewer(self._show_picture), 0)

    def _take_saved(self, module: ModuleType) -> None:
        pil: Any = module
        theirs = pil.Image.save

        def save(image: Any, fp: Any, format: str | None = None, **params: Any) -> None:  # noqa: ANN401  as in PIL
            """Save this image under the given filename, and show it."""
            theirs(image, fp, format, **params)
            if isinstance(fp, (str, os.PathLike)):
                self._show_picture(image)

        pil.Image.save = save

    def _show_picture(self, image: object) -> None:
        if self._has_shell():
            sys.modules["IPython.core.display_functions"].display(image)
        else:
            self._display.show(image)

    def _has_shell(self) -> bool:
        """Return whether IPython's shell sends displays to the same place as this object."""
        shells: Any = sys.modules.get("IPython.core.interactiveshell")
        if shells is None or not shells.InteractiveShell.initialized():
            return False
        publisher = shells.InteractiveShell.instance().display_pub
        # A fork-server's shell leads nowhere for a program; a shell that the program made is its
        # own.
        return getattr(publisher, "sink", self._display) is self._display

    def show(self, *things: object, raw: bool = False, **options: Any) -> None:  # noqa: ANN401  IPython's
        """Show objects, or bundles if they are `raw`."""
        for thing in things:
            if raw and isinstance(thing, dict):
                self._display.publish(thing, options.get("metadata"))
            else:
                self._display.show(thing)


class _Viewer:
    """As much of PIL's `Viewer` as its `show` uses."""

    def __init__(self, show: Callable[[object], None]) -> None:
        self._show = show

    def show(self, image: object, **_options: object) -> bool:
        """Show an image; say that no other viewer is needed."""
        self._show(image)
        return True


class _Shows:
    """As much of the module `IPython.display` as plotly uses."""

    def __init__(self, charts: Charts) -> None:
        self.display = charts.show

    @staticmethod
    def display_html(*_things: object, **_options: object) -> None:
        """Do nothing: only a web page could use it."""


class _Nbformat:
    """As much of `nbformat` as plotly asks for before it shows a bundle."""

    __version__ = "5.0.0"

"""What plotly, PIL and `IPython.display` show in programs and cells, and what of it arrives."""

from __future__ import annotations

import base64
import importlib.util
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.guest.channel.outbox import MAX_BODY_BYTES
from cellwall.guest.display import mime_bundles
from kit.guest.guest_python import Context, Server, pack_guest

PLOTLY = "application/vnd.plotly.v1+json"
needs_ipython = pytest.mark.skipif(
    importlib.util.find_spec("IPython") is None, reason="IPython is not installed"
)
needs_pil = pytest.mark.skipif(
    importlib.util.find_spec("PIL") is None, reason="PIL is not installed"
)

# As much of plotly as decides where a figure goes.
_RENDERERS = """
class Known:
    default = "browser"
    def bundle(self, name):
        name = name or self.default
        forms = {"application/vnd.plotly.v1+json": {"data": [1]}, "text/html": "<script>"}
        if name == "plotly_mimetype": del forms["text/html"]
        return {} if name == "browser" else forms
renderers = Known()
ipython_display = None
nbformat = None
def show(renderer=None):
    bundle = renderers.bundle(renderer)
    if bundle:
        if not ipython_display: raise ValueError("requires ipython")
        if not nbformat or nbformat.__version__ < "4.2.0": raise ValueError("requires nbformat")
        ipython_display.display(bundle, raw=True)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(pack_guest(tmp_path_factory.mktemp("guest")), [])
    yield server
    server.close()


@pytest.fixture
def context(server: Server, tmp_path: Path) -> Iterator[Context]:
    (tmp_path / "plotly" / "io").mkdir(parents=True)
    for folder in ("plotly", "plotly/io"):
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "plotly" / "io" / "_renderers.py").write_text(_RENDERERS)
    context = server.fork(tmp_path)
    yield context
    context.close()


@pytest.mark.parametrize("mode", ["program", "cell"])
def test_a_figure_is_shown_without_its_library(context: Context, mode: str) -> None:
    result = context.execute("from plotly.io._renderers import show; show()", mode=mode)
    assert result.bodies("display") == [{PLOTLY: '{"data": [1]}'}]


def test_a_renderer_that_the_caller_names_is_used(context: Context) -> None:
    result = context.execute(
        "from plotly.io import _renderers as r; r.show('page')", mode="program"
    )
    (bundle,) = result.bodies("display")
    assert bundle["text/html"] == "<script>"


def test_a_renderer_of_the_environment_stays(context: Context) -> None:
    source = (
        "import os; os.environ['PLOTLY_RENDERER'] = 'browser'\nfrom plotly.io._renderers import *\n"
    )
    result = context.execute(source + "print(renderers.default)", mode="program")
    assert result.stdout == "browser\n"


@needs_ipython
def test_a_program_shows_by_ipythons_display(context: Context) -> None:
    source = (
        "from IPython.display import display, HTML, publish_display_data\n"
        "display(HTML('<b>x</b>'))\ndisplay({'text/plain': 'raw'}, raw=True)\n"
        "publish_display_data({'text/plain': 'published'})\n"
    )
    result = context.execute(source, mode="program")
    html, raw, published = result.bodies("display")
    assert (html["text/html"], raw, published, result.stdout) == (
        "<b>x</b>",
        {"text/plain": "raw"},
        {"text/plain": "published"},
        "",
    )


_DRAWN = "from PIL import Image; image = Image.new('RGB', (2, 1), 'red')\n"


@needs_pil
@pytest.mark.parametrize("mode", ["program", "cell"])
def test_a_picture_is_shown(context: Context, mode: str) -> None:
    result = context.execute(_DRAWN + "image.show(); print('after')", mode=mode)
    assert [_size_of(bundle) for bundle in result.bodies("display")] == [(2, 1)]
    assert (result.stdout, result.stderr) == ("after\n", "")


@needs_pil
@needs_ipython
def test_a_picture_that_a_cell_shows_can_be_captured(context: Context) -> None:
    result = context.execute(f"%%capture shown\n{_DRAWN}image.show()", mode="cell")
    assert result.bodies("display") == []
    assert context.execute("len(shown.outputs)", mode="cell").text == "1"


_SAVE = "import io\nimage.save(io.BytesIO(), 'PNG'); image.save('a.png'); print('after')"


@needs_pil
def test_a_picture_that_is_saved_is_shown_if_the_environment_asks_for_it(
    server: Server, tmp_path: Path
) -> None:
    asking = server.fork(tmp_path, env={"CELLWALL_SAVED_IMAGES": "1"})
    try:
        result = asking.execute(_DRAWN + _SAVE, mode="cell")
        failed = asking.execute("image.save('none/a.png')", mode="cell")
    finally:
        asking.close()
    assert [_size_of(bundle) for bundle in result.bodies("display")] == [(2, 1)]
    assert result.stdout == "after\n"
    assert failed.bodies("display") == []
    assert "FileNotFoundError" in failed.stderr
    assert (tmp_path / "a.png").is_file()


@needs_pil
def test_a_picture_that_is_saved_is_not_shown_otherwise(context: Context) -> None:
    result = context.execute(_DRAWN + _SAVE, mode="cell")
    assert (result.bodies("display"), result.stdout) == ([], "after\n")


def _size_of(bundle: dict[str, str]) -> tuple[int, int]:
    """Return the width and height that the head of a PNG says."""
    head = base64.b64decode(bundle["image/png"])[:24]
    width, height = struct.unpack(">II", head[16:])
    return width, height


def test_html_beside_a_whole_chart_is_no_loss() -> None:
    body, lost = mime_bundles.fit({PLOTLY: {"data": [1]}, "text/html": "x" * (MAX_BODY_BYTES + 1)})
    assert (json.loads(body), lost) == ({PLOTLY: '{"data": [1]}'}, 0)


def test_html_beside_text_is_lost() -> None:
    body, lost = mime_bundles.fit({"text/plain": "p", "text/html": "x" * MAX_BODY_BYTES})
    assert lost == MAX_BODY_BYTES
    assert "dropped" in json.loads(body)["text/plain"]


def test_a_chart_beside_html_that_is_lost_too_counts() -> None:
    large = "x" * MAX_BODY_BYTES
    _body, lost = mime_bundles.fit({PLOTLY: large, "text/html": large, "text/plain": "p"})
    assert lost == 2 * MAX_BODY_BYTES

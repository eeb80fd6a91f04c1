"""What template `data` promises: each package of docs/templates.md works, and text is drawn.

Limits are those of a sandbox that names none, so the thread pools of polars, OpenCV, Arrow and
DuckDB have to fit its number of processes, and each package its memory.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import cellwall
from cellwall.engine.templates.defaults import DEFAULTS
from conftest import Require

_PAGE = (Path(__file__).parents[3] / "docs/templates.md").read_text(encoding="utf-8")
_DATA = next(template for template in DEFAULTS if template.name == "data")

USES = {
    "IPython": "from IPython.display import HTML; print(HTML('<b>x</b>').data)",
    "PIL": """
import sys
from PIL import Image, ImageDraw, ImageFont
font = ImageFont.truetype(f"{sys.prefix}/share/fonts/KurintoSansSC-Rg.ttf", 40)
drawn = []
for text in "中文":
    picture = Image.new("L", (50, 60))
    ImageDraw.Draw(picture).text((0, 0), text, 255, font=font)
    drawn.append(picture.tobytes())
assert drawn[0] != drawn[1] and any(drawn[0]), "two characters look alike"
""",
    "aiohttp": """
import asyncio
from aiohttp import ClientSession, web
async def main():
    application = web.Application()
    async def answer(request):
        return web.json_response({"path": request.path})
    application.router.add_get("/a", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    async with ClientSession() as session, session.get(f"http://127.0.0.1:{port}/a") as got:
        assert await got.json() == {"path": "/a"}
    await runner.cleanup()
asyncio.run(main())
""",
    "bs4": """
from bs4 import BeautifulSoup
for parser in ("html.parser", "lxml"):
    assert BeautifulSoup("<p>a<b>c</b>", parser).b.string == "c"
""",
    "cv2": """
import cv2, numpy as np
picture = np.zeros((1200, 1600, 3), "uint8")
cv2.circle(picture, (800, 600), 300, (255, 255, 255), -1)
edges = cv2.Canny(cv2.GaussianBlur(picture, (31, 31), 0), 50, 150)
assert cv2.imwrite("edges.png", edges) and cv2.imread("edges.png").any()
""",
    "docx": """
import docx
document = docx.Document()
document.add_heading("标题")
document.save("a.docx")
assert docx.Document("a.docx").paragraphs[0].text == "标题"
""",
    "duckdb": """
import duckdb
duckdb.sql("copy (select range as n from range(100000)) to 'n.parquet'")
assert duckdb.sql("select sum(n) from 'n.parquet'").fetchall() == [(4999950000,)]
""",
    "httpx": """
import httpx
transport = httpx.MockTransport(lambda request: httpx.Response(200, json={"a": 1}))
with httpx.Client(transport=transport) as client:
    assert client.get("http://example.org").json() == {"a": 1}
""",
    "jinja2": "import jinja2; assert jinja2.Template('{{ 6 * 7 }}').render() == '42'",
    "jupyter_client": """
from jupyter_client.kernelspec import KernelSpecManager as M
M().find_kernel_specs()
""",
    "lxml": """
from lxml import etree
assert etree.fromstring('<a><b>c</b></a>').findtext('b') == 'c'
""",
    "matplotlib": """
import matplotlib.pyplot as plt
plt.plot([1, 2])
for suffix in ("png", "svg", "pdf"):
    plt.savefig(f"a.{suffix}")
plt.close()
""",
    "networkx": """
import networkx as nx
assert nx.shortest_path(nx.path_graph(4), 0, 3) == [0, 1, 2, 3]
""",
    "nltk": """
import nltk
assert nltk.wordpunct_tokenize("It works.") == ["It", "works", "."]
assert nltk.PorterStemmer().stem("running") == "run"
""",
    "numpy": "import numpy as np; a = np.ones((600, 600)); assert (a @ a).sum() == 600**3",
    "openpyxl": """
import openpyxl
book = openpyxl.Workbook()
book.active["A1"] = 3
book.save("a.xlsx")
assert openpyxl.load_workbook("a.xlsx").active["A1"].value == 3
""",
    "pandas": """
import io
import pandas as pd
frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
frame.to_parquet("a.parquet")
frame.to_excel("a.xlsx", index=False)
assert pd.read_parquet("a.parquet").equals(frame) and pd.read_excel("a.xlsx").equals(frame)
assert str(frame.b.dtype) == "str" and frame.b.dtype.storage == "pyarrow"
page = "<table><tr><th>a</th></tr><tr><td>1</td></tr></table>"
assert pd.read_html(io.StringIO(page))[0].shape == (1, 1)
""",
    "plotly": """
import plotly.express as px
figure = px.line(x=[1, 2], y=[3, 4])
figure.write_html("a.html")
assert "plotly" in open("a.html").read()
""",
    "polars": """
import polars as pl
frame = pl.DataFrame({"a": range(100_000)})
grouped = frame.lazy().group_by(pl.col("a") % 7).agg(pl.len()).collect()
assert grouped["len"].sum() == 100_000
frame.write_parquet("a.parquet")
assert pl.read_parquet("a.parquet").to_pandas().shape == (100_000, 1)
""",
    "pptx": """
from pptx import Presentation
slides = Presentation()
slides.slides.add_slide(slides.slide_layouts[0]).shapes.title.text = "标题"
slides.save("a.pptx")
assert Presentation("a.pptx").slides[0].shapes.title.text == "标题"
""",
    "pyarrow": """
import pyarrow as pa, pyarrow.compute as pc, pyarrow.dataset as ds, pyarrow.parquet as pq
pq.write_table(pa.table({"a": list(range(100_000))}), "a.parquet")
assert pc.sum(ds.dataset("a.parquet").to_table()["a"]).as_py() == 4999950000
""",
    "pypdf": """
from pypdf import PdfReader, PdfWriter
writer = PdfWriter()
writer.add_blank_page(100, 100)
writer.write("a.pdf")
assert len(PdfReader("a.pdf").pages) == 1
""",
    "pytest": """
import pytest
open("test_a.py", "w").write("def test_a(): assert 1 + 1 == 2\\n")
assert pytest.main(["-q", "-p", "no:cacheprovider", "test_a.py"]) == 0
""",
    "reportlab": """
import sys
from pypdf import PdfReader
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas
pdfmetrics.registerFont(TTFont("Kurinto", f"{sys.prefix}/share/fonts/KurintoSansSC-Rg.ttf"))
canvas = Canvas("a.pdf")
canvas.setFont("Kurinto", 20)
canvas.drawString(100, 700, "中文标题")
canvas.save()
assert "中文标题" in PdfReader("a.pdf").pages[0].extract_text()
""",
    "requests": """
import threading, requests
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(204)
        self.end_headers()
server = HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.handle_request, daemon=True).start()
assert requests.get(f"http://127.0.0.1:{server.server_port}/").status_code == 204
""",
    "rich": "from rich.table import Table; from rich import print; print(Table('a'))",
    "scipy": "from scipy import stats; assert round(stats.norm.cdf(1.96), 3) == 0.975",
    "seaborn": "import seaborn; seaborn.set_theme(); seaborn.heatmap([[1, 2], [3, 4]], annot=True)",
    "skimage": """
from skimage import data, filters
assert filters.threshold_otsu(data.camera()) > 0
""",
    "sklearn": """
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
x, y = load_iris(return_X_y=True)
assert RandomForestClassifier(20, n_jobs=2).fit(x, y).score(x, y) > 0.9
""",
    "statsmodels": """
import pandas as pd, statsmodels.formula.api as smf
frame = pd.DataFrame({"x": [1, 2, 3, 4], "y": [2.0, 4.1, 6.0, 8.1]})
assert round(smf.ols("y ~ x", frame).fit().params["x"], 1) == 2.0
""",
    "sympy": "import sympy; x = sympy.Symbol('x'); assert sympy.diff(x**2, x) == 2 * x",
    "tabulate": """
from tabulate import tabulate
assert '| a' in tabulate([['a', 1]], tablefmt='github')
""",
    "tqdm": "from tqdm import tqdm; assert sum(tqdm(range(10))) == 45",
    "xlsxwriter": """
import openpyxl, xlsxwriter
book = xlsxwriter.Workbook("a.xlsx")
book.add_worksheet().write("B2", 7)
book.close()
assert openpyxl.load_workbook("a.xlsx").active["B2"].value == 7
""",
    "yaml": "import yaml; assert yaml.safe_load('a: [1, 2]') == {'a': [1, 2]}",
}

_NATIVE = """
import cv2, duckdb, lxml.etree, numpy as np, polars as pl, pyarrow as pa
import matplotlib.pyplot as plt
assert cv2.GaussianBlur(np.ones((64, 64, 3), "uint8"), (5, 5), 0).all()
assert duckdb.sql("select 42").fetchall() == [(42,)]
assert pl.DataFrame({"a": [1, 2]}).lazy().select(pl.col("a").sum()).collect().item() == 3
assert pa.table({"a": [1]}).num_rows == 1
"""

_TEXT = "Sales 销售额 繁體 日本語グラフ 한국어 हिन्दी ไทย 🚀📈😀✅"

_DRAWING = f"""
import io, logging, warnings
warnings.simplefilter("error")  # matplotlib warns of each glyph that no font has
import matplotlib.pyplot as plt
logged = []
logging.getLogger("matplotlib").addFilter(lambda record: logged.append(record.getMessage()))
logging.getLogger("matplotlib.font_manager").addHandler(logging.NullHandler())
logging.getLogger("matplotlib.font_manager").addFilter(lambda r: logged.append(r.getMessage()))
def pixels(text, **options):
    figure = plt.figure(figsize=(8, 1))
    figure.text(0, 0.3, text, **options)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="rgba")
    plt.close(figure)
    return drawn.getvalue()
def look(**options):
    pixels({_TEXT!r}, **options)
    each = {{character: pixels(character, **options) for character in "中文額한국かカ🚀🎉ไय"}}
    assert len(set(each.values())) == len(each), "some characters look alike"
    assert pixels(" ", **options) not in each.values(), "a character is not drawn"
"""


def test_page_names_what_the_template_installs() -> None:
    rows = re.findall(r"^\| ([a-z0-9-]+) \| `(\w+)` \|", _PAGE, re.MULTILINE)
    fonts = set(re.findall(r"\| ([a-z-]+-fonts) \|$", _PAGE, re.MULTILINE))
    pinned = {pin.partition("==")[0] for pin in _DATA.packages}
    assert {name for name, _ in rows} | fonts == pinned
    assert {module for _, module in rows} == set(USES) | {"pip", "uv"}


def test_page_names_the_fonts() -> None:
    section = _PAGE.partition("## Fonts")[2]
    families = re.findall(r"^\| ([A-Z][\w ]+) \| `", section, re.MULTILINE)
    assert families == [family for family, _ in _DATA.font_files()]


@pytest.mark.parametrize("module", sorted(USES))
def test_package_works_under_the_default_limits(module: str) -> None:
    execution = cellwall.run(USES[module], template="data", timeout=60)
    assert execution.ok, (execution.verdict, execution.stderr)


def test_all_packages_fit_into_one_program() -> None:
    program = "import sys\n" + "\n".join(f"import {module}" for module in USES)
    execution = cellwall.run(program, template="data", timeout=60)
    assert execution.ok, (execution.verdict, execution.stderr)


@pytest.mark.needs("runsc")
def test_native_packages_work_in_gvisor() -> None:
    execution = cellwall.run(
        _NATIVE + _DRAWING + "look()", template="data", timeout=120, isolation="kernel"
    )
    assert execution.ok, (execution.verdict, execution.stderr)


# ── text ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("", ""),
        ("", "fontweight='bold', fontstyle='italic'"),
        ("", "family='serif'"),
        ("import seaborn; seaborn.set_theme()", ""),
        ("plt.rcParams['font.family'] = 'monospace'", ""),
        ("plt.rcParams['font.sans-serif'] = ['DejaVu Serif']", ""),
        ("plt.style.use('default')", ""),
        ("plt.rcdefaults()", ""),
        ("plt.rcParams['font.family'] = ['Kurinto Sans JP', 'sans-serif']", ""),
    ],
)
def test_no_character_is_a_box(setting: str, options: str) -> None:
    program = f"{_DRAWING}\n{setting}\nlook({options})\nassert not logged, logged"
    execution = cellwall.run(program, template="data", timeout=60)
    assert execution.ok, execution.stderr


def test_boxes_are_found_out() -> None:
    """The control: without the template's fonts, what the tests above look for is there."""
    without = "plt.matplotlib.font_manager.FontManager._find_fonts_by_props = (\n"
    without += "    lambda self, prop, *_, **__: [self.findfont('DejaVu Sans')])\n"
    execution = cellwall.run(f"{_DRAWING}\n{without}look()", template="data", timeout=60)
    assert not execution.ok
    assert "missing from font" in execution.stderr


def test_command_draws_as_a_program_does(tmp_path: Path) -> None:
    """An interpreter that a command starts has nothing of ours imported, only the files."""
    program = f"{_DRAWING}\nimport seaborn; seaborn.set_theme()\nlook(fontweight='bold')\n"
    with cellwall.Sandbox("data") as sandbox:
        sandbox.files.write("draw.py", program)
        done = sandbox.commands.run("python draw.py")
    assert done.exit_code == 0, done.stderr


def test_japanese_form_comes_first_where_it_is_asked_for() -> None:
    japanese = "plt.rcParams['font.family'] = ['Kurinto Sans JP', 'sans-serif']"
    program = f"{_DRAWING}\nbefore = pixels('骨')\n{japanese}\nassert pixels('骨') != before"
    execution = cellwall.run(program, template="data", timeout=60)
    assert execution.ok, execution.stderr


def test_fontconfig_knows_the_fonts(require: Require) -> None:
    require("fc-match", shutil.which("fc-match") is not None, "run: apt-get install fontconfig")
    with cellwall.Sandbox("data") as sandbox:
        listed = sandbox.commands.run("fc-list : family")
        chosen = sandbox.commands.run("fc-match -s 'sans-serif:lang=zh-cn' family | head -n 3")
    assert {"Kurinto Sans KR", "Noto Emoji"} <= set(re.split("[,\\n]", listed.stdout))
    assert "Kurinto Sans SC" in chosen.stdout, chosen.stdout + chosen.stderr


def test_fonts_are_not_searched_for_in_a_program() -> None:
    """Whatever fonts the host has: they were listed once, in the fork-server."""
    program = """
import sys
listed = sys.modules["matplotlib.font_manager"].fontManager.ttflist
assert {"DejaVu Sans", "Kurinto Sans SC", "Noto Emoji"} <= {font.name for font in listed}
"""
    execution = cellwall.run(program, template="data", timeout=60)
    assert execution.ok, execution.stderr

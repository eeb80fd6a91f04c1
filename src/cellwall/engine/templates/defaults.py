"""Built-in templates: what they hold, pinned, and what their fork-server has in memory.

Data only; `definitions` adds the user's. The invariant: the pins are one resolution that was
installed and imported together, inside, by the tests; change them as a set. The table of
docs/templates.md names the same packages.
"""

from __future__ import annotations

from cellwall.model.template import Template

_IPYTHON_PINS = (
    "asttokens==3.0.2",
    "executing==2.3.0",
    "ipython-pygments-lexers==1.1.1",
    "jedi==0.20.1",
    "matplotlib-inline==0.2.2",
    "parso==0.8.7",
    "pexpect==4.9.0",
    "prompt-toolkit==3.0.53",
    "psutil==7.2.2",
    "ptyprocess==0.7.0",
    "pure-eval==0.2.4",
    "pygments==2.21.0",
    "stack-data==0.6.3",
    "traitlets==5.16.1",
    "typing-extensions==4.16.0",
    "wcwidth==0.9.4",
)

_INSTALLERS = ("pip==26.3", "uv==0.13.9")
"""What a sandbox's user installs packages with."""

_DATA_PINS = (
    "aiohappyeyeballs==2.7.1",
    "aiosignal==1.4.0",
    "anyio==4.16.0",
    "attrs==26.1.0",
    "certifi==2026.10.18",
    "charset-normalizer==3.5.2",
    "click==8.5.1",
    "cloudpickle==3.1.2",
    "contourpy==1.3.3",
    "cycler==0.12.1",
    "defusedxml==0.7.1",
    "et-xmlfile==2.0.0",
    "fonttools==4.68.0",
    "formulaic==1.2.2",
    "frozenlist==1.8.0",
    "h11==0.16.0",
    "httpcore==1.0.9",
    "idna==3.20",
    "imageio==2.38.1",
    "iniconfig==2.3.1",
    "interface-meta==2.0.1",
    "joblib==1.6.0",
    "jupyter-core==5.9.1",
    "kiwisolver==1.5.1",
    "lazy-loader==0.6",
    "markdown-it-py==4.3.0",
    "markupsafe==3.0.4",
    "mdurl==0.1.2",
    "mpmath==1.3.0",
    "multidict==7.2.1",
    "narwhals==2.28.0",
    "packaging==26.3",
    "patsy==1.0.3",
    "platformdirs==4.14.7",
    "pluggy==1.7.0",
    "polars-runtime-32==2.1.0",
    "propcache==0.5.4",
    "pyparsing==3.3.3",
    "python-dateutil==4.0.0",
    "pyzmq==27.3.0",
    "regex==2026.11.19",
    "soupsieve==2.10",
    "threadpoolctl==3.8.0",
    "tifffile==2026.3.3",
    "tornado==6.6.1",
    "tzdata==2026.6",
    "urllib3==2.8.0",
    "wrapt==2.5.2",
    "yarl==1.25.1",
)

_KURINTO = "weblate_fonts/static/weblate_fonts/kurinto/ttf"

_FONTS = (
    f"Kurinto Sans SC: {_KURINTO}/KurintoSansSC-*.ttf",
    f"Kurinto Sans JP: {_KURINTO}/KurintoSansJP-*.ttf",
    f"Kurinto Sans KR: {_KURINTO}/KurintoSansKR-*.ttf",
    "Noto Emoji: manimgx_fonts/NotoEmoji*.ttf",
    "Noto Sans Devanagari: manimgx_fonts/NotoSansDevanagari*.ttf",
    "Noto Sans Thai: manimgx_fonts/NotoSansThai*.ttf",
)
"""Fonts for what matplotlib's own cannot draw, in the order in which they are asked: Chinese,
Japanese (its kana; characters that Chinese shares are drawn in the Chinese form), Korean, emoji in
one colour, Hindi, Thai. All have the SIL Open Font License 1.1."""

_FONT_PINS = (
    "manimgx-fonts==2026.9.26.post1"
    " --hash=sha256:e5e21178263ddec3eef9414d2b52a1c90ac01062d3e9067460f3359f854c3e17",
    "weblate-fonts==2026.1"
    " --hash=sha256:32b68936e1cd8ef903e1e442f0416d9e92b563c94db5cf432b4416765e364b86",
)
"""Files of fonts are drawn by a library in C, so not only the version but the content is pinned."""

_USUAL_MODULES = (
    "collections",
    "csv",
    "dataclasses",
    "datetime",
    "functools",
    "heapq",
    "itertools",
    "json",
    "math",
    "pathlib",
    "random",
    "re",
    "string",
    "typing",
)
"""Modules that short programs import; together 2 MiB. Programs import larger modules themselves."""

DEFAULTS = (
    Template(
        name="python",
        description="Python with IPython's shell",
        packages=("ipython==9.18.1", *_INSTALLERS),
        constraints=_IPYTHON_PINS,
        preload=_USUAL_MODULES,
        python=">=3.11",
        languages=("python", "bash", "javascript"),
    ),
    Template(
        name="data",
        description="Python with what data, pictures and documents need, from numpy to python-pptx",
        packages=(
            *_INSTALLERS,
            "aiohttp==3.14.5",
            "beautifulsoup4==4.15.0",
            "duckdb==2.0.0",
            "httpx==0.28.1",
            "ipython==9.18.1",
            "jinja2==3.1.6",
            "jupyter-client==8.10.0",
            "lxml==6.1.3",
            "manimgx-fonts==2026.9.26.post1",
            "matplotlib==3.11.2",
            "networkx==3.6.1",
            "nltk==3.10.4",
            "numpy==2.4.6",
            "opencv-python-headless==5.0.0.93",
            "openpyxl==3.1.5",
            "pandas==3.1.1",
            "pillow==13.0.0",
            "plotly==7.1.0",
            "polars==2.1.0",
            "pyarrow==26.0.1",
            "pypdf==7.1.1",
            "pytest==9.2.0",
            "python-docx==1.2.0",
            "python-pptx==1.0.2",
            "pyyaml==6.0.4",
            "reportlab==5.1.0",
            "requests==2.34.2",
            "rich==15.0.0",
            "scikit-image==0.26.0",
            "scikit-learn==1.9.1",
            "scipy==1.17.1",
            "seaborn==0.13.2",
            "statsmodels==0.15.0",
            "sympy==1.14.0",
            "tabulate==0.10.0",
            "tqdm==4.70.1",
            "weblate-fonts==2026.1",
            "xlsxwriter==3.3.1",
        ),
        constraints=_IPYTHON_PINS + _DATA_PINS + _FONT_PINS,
        # Every sandbox pays for a larger image with a slower fork, and scipy.stats alone would add
        # 58 MiB, sklearn 30: what is not here is installed, and a program imports it by itself.
        preload=(
            *_USUAL_MODULES,
            "numpy",
            "pandas",
            "matplotlib",
            "matplotlib.pyplot",
            "matplotlib.backends.backend_agg",
        ),
        python=">=3.11",
        env={
            # There is no display inside; without this pyplot searches for one.
            "MPLBACKEND": "agg",
            # pandas imports pyarrow, whose allocators are not made for forks: one starts a thread,
            # and a fork-server has one; the other takes huge pages, which a fork would split.
            "ARROW_DEFAULT_MEMORY_POOL": "system",
            "JE_ARROW_MALLOC_CONF": "background_thread:false",
        },
        fonts=_FONTS,
        languages=("python", "bash", "javascript"),
    ),
)

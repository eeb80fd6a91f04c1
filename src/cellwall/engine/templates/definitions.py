"""Template definitions: the built-in ones, and the user's from `templates.toml`.

It does not know whether they are built (`store`). A user's definition replaces the built-in one of
the same name. The pins below are one resolution that was installed and imported together; change
them as a set.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from cellwall.model.errors import UsageError
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
    "certifi==2026.10.18",
    "charset-normalizer==3.5.2",
    "cloudpickle==3.1.2",
    "contourpy==1.3.3",
    "cycler==0.12.1",
    "et-xmlfile==2.0.0",
    "fonttools==4.68.0",
    "idna==3.20",
    "joblib==1.6.0",
    "jupyter-core==5.9.1",
    "kiwisolver==1.5.1",
    "markupsafe==3.0.4",
    "mpmath==1.3.0",
    "narwhals==2.28.0",
    "packaging==26.3",
    "pillow==13.0.0",
    "platformdirs==4.14.7",
    "pyparsing==3.3.3",
    "python-dateutil==4.0.0",
    "pyzmq==27.3.0",
    "threadpoolctl==3.8.0",
    "tornado==6.6.1",
    "tzdata==2026.6",
    "urllib3==2.8.0",
)

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
        description="Python with numpy, pandas, matplotlib, seaborn, scipy, sympy, sklearn, DuckDB",
        packages=(
            "duckdb==2.0.0",
            "ipython==9.18.1",
            "jinja2==3.1.6",
            "jupyter-client==8.10.0",
            "matplotlib==3.11.2",
            "numpy==2.4.6",
            "openpyxl==3.1.5",
            "pandas==3.1.1",
            "requests==2.34.2",
            "scikit-learn==1.9.1",
            "scipy==1.17.1",
            "seaborn==0.13.2",
            "sympy==1.14.0",
            # pandas imports these for `style` (jinja2), `to_excel` (openpyxl) and `to_markdown`
            # (tabulate).
            "tabulate==0.10.0",
            *_INSTALLERS,
        ),
        constraints=_IPYTHON_PINS + _DATA_PINS,
        # scipy.stats and sklearn would add 58 and 30 MiB, and every sandbox pays for a larger image
        # with a slower fork; they are installed, and a program imports them by itself.
        preload=(
            *_USUAL_MODULES,
            "numpy",
            "pandas",
            "matplotlib",
            "matplotlib.pyplot",
            "matplotlib.backends.backend_agg",
        ),
        python=">=3.11",
        # There is no display inside; without this pyplot searches for one.
        env={"MPLBACKEND": "agg"},
        languages=("python", "bash", "javascript"),
    ),
)


def config_dirs() -> list[Path]:
    """Return the directories searched for `templates.toml`; later ones take precedence."""
    chosen = os.environ.get("CELLWALL_CONFIG_DIR")
    if chosen:
        return [Path(chosen)]
    user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [Path("/etc/cellwall"), user / "cellwall"]


def definitions() -> dict[str, Template]:
    """Return every known template by name; `UsageError` when a file is wrong."""
    found = {template.name: template for template in DEFAULTS}
    for directory in config_dirs():
        found |= _read(directory / "templates.toml")
    return found


def from_mapping(name: str, fields: dict[str, Any]) -> Template:
    """Make a template from plain data; `UsageError` on unknown fields and wrong types."""
    known: dict[str, type] = {
        "description": str,
        "packages": list,
        "constraints": list,
        "preload": list,
        "python": str,
        "env": dict,
        "languages": list,
    }
    for field, value in fields.items():
        if field not in known:
            raise UsageError(
                f"template {name}: unknown field {field!r}",
                remedy=f"known fields: {', '.join(known)}",
            )
        _require(isinstance(value, known[field]), name, field, known[field].__name__)
        if isinstance(value, (list, dict)):
            items = value.values() if isinstance(value, dict) else value
            _require(all(isinstance(item, str) for item in items), name, field, "strings")
    arguments: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()
    }
    return Template(name=name, **arguments)


def _require(holds: bool, name: str, field: str, wanted: str) -> None:
    if not holds:
        raise UsageError(f"template {name}: {field} is of the wrong type", remedy=f"give {wanted}")


def _read(path: Path) -> dict[str, Template]:
    """Read one file: a table `[templates.NAME]` per template; an absent file defines none."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"read {path}: {error}", remedy="correct the file") from error
    tables = document.get("templates", {})
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise UsageError(f"read {path}: no table of templates", remedy="write [templates.NAME]")
    return {name: from_mapping(name, table) for name, table in tables.items()}

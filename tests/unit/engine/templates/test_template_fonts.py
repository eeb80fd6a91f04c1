"""Fonts of templates: found in packages, made known to what draws text, asked after a caller's own.

No network: uv is real and offline, and the packages are wheels made here; matplotlib is as much of
it as decides which fonts are asked.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cellwall.engine.templates import font_fallback
from cellwall.engine.templates.store import TemplateStore
from cellwall.model.errors import HostUnsupported
from kit import hostile_wheels

_RC = "## defaults\n#font.family:  sans-serif\n#font.size: 10\n"
_MANAGER = """
class FontManager:
    def _find_fonts_by_props(self, prop): ...
"""
_FONTS = ["Moss: lettering/Moss-*.ttf", "Fern: lettering/Fern.ttf"]


def _wheels(directory: Path, rc: str = _RC) -> None:
    files = {f"lettering/{name}": name for name in ("Moss-Rg.ttf", "Moss-Bd.ttf", "Fern.ttf")}
    hostile_wheels.wheel(directory, "lettering", files)
    drawing = {
        "matplotlib/__init__.py": "",
        "matplotlib/font_manager.py": _MANAGER,
        "matplotlib/mpl-data/matplotlibrc": rc,
        "matplotlib/mpl-data/fonts/ttf/DejaVuSans.ttf": "its own",
    }
    hostile_wheels.wheel(directory, "matplotlib", drawing)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is the only index."""
    directory = tmp_path / "wheels"
    _wheels(directory)
    for name, value in {
        "UV_FIND_LINKS": str(directory),
        "UV_NO_INDEX": "1",
        "UV_OFFLINE": "1",
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "CELLWALL_CONFIG_DIR": str(tmp_path / "config"),
    }.items():
        monkeypatch.setenv(name, value)
    return directory


@pytest.fixture
def store(tmp_path: Path, wheels: Path) -> Iterator[TemplateStore]:
    """A store in a private state directory; what it has built is removed even if sealed."""
    assert wheels.is_dir()
    yield TemplateStore(tmp_path / "state")
    for directory, _, _ in os.walk(tmp_path / "state"):
        os.chmod(directory, 0o755)


def _define(tmp_path: Path, **fields: list[str]) -> None:
    defaults = {"packages": ["lettering==1.0", "matplotlib==1.0"], "fonts": _FONTS}
    hostile_wheels.define(tmp_path / "config", "letters", **(defaults | fields))


def _site(root: Path) -> Path:
    return next((root / "lib").glob("python*/site-packages"))


# ── building ───────────────────────────────────────────────────────────────────────────────────


def test_fonts_lie_where_users_are_told(store: TemplateStore, tmp_path: Path) -> None:
    _define(tmp_path)
    root = Path(store.build("letters").path)
    for folder in (root / "share/fonts", _site(root) / "matplotlib/mpl-data/fonts/ttf"):
        for name in ("Moss-Rg.ttf", "Moss-Bd.ttf", "Fern.ttf"):
            assert not os.readlink(folder / name).startswith("/")
            assert (folder / name).read_text() == name


def test_links_hold_when_the_template_is_mounted_elsewhere(
    store: TemplateStore, tmp_path: Path
) -> None:
    _define(tmp_path)
    root = Path(store.build("letters").path)
    root.chmod(0o755)
    root.rename(tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere/share/fonts/Fern.ttf").read_text() == "Fern.ttf"


def test_defaults_of_matplotlib_name_the_families_once(
    store: TemplateStore, tmp_path: Path
) -> None:
    _define(tmp_path)
    site = _site(Path(store.build("letters").path))
    lines = (site / "matplotlib/mpl-data/matplotlibrc").read_text().splitlines()
    assert lines == ["## defaults", "font.family: sans-serif, Moss, Fern", "#font.size: 10"]


def test_matplotlib_itself_asks_the_families(store: TemplateStore, tmp_path: Path) -> None:
    _define(tmp_path)
    built = store.build("letters")
    program = "from matplotlib.font_manager import FontManager as m; "
    program += "print(m._find_fonts_by_props.__module__)"
    run = subprocess.run([built.python, "-c", program], capture_output=True, check=True)
    assert run.stdout == b"_cellwall_fonts\n"


def test_fontconfig_has_the_folder_and_the_families(store: TemplateStore, tmp_path: Path) -> None:
    _define(tmp_path)
    text = (Path(store.build("letters").path) / "etc/fonts.conf").read_text()
    assert '<dir prefix="relative">../share/fonts</dir>' in text
    assert text.count("<family>Moss</family><family>Fern</family>") == 3


def test_template_without_fonts_is_left_as_it_is(store: TemplateStore, tmp_path: Path) -> None:
    _define(tmp_path, fonts=[])
    root = Path(store.build("letters").path)
    assert (_site(root) / "matplotlib/mpl-data/matplotlibrc").read_text() == _RC
    assert (_site(root) / "matplotlib/font_manager.py").read_text() == _MANAGER
    assert not (root / "etc").exists()


def test_font_that_no_package_brings_fails_the_build(store: TemplateStore, tmp_path: Path) -> None:
    _define(tmp_path, fonts=["Reed: lettering/Reed*.ttf"])
    with pytest.raises(HostUnsupported, match="lettering/Reed"):
        store.build("letters")


def test_unknown_defaults_of_matplotlib_fail_the_build(
    store: TemplateStore, wheels: Path, tmp_path: Path
) -> None:
    _wheels(wheels, rc="nothing of families\n")
    _define(tmp_path)
    with pytest.raises(HostUnsupported, match=r"font\.family 0 times"):
        store.build("letters")


def test_built_templates_with_fonts_are_listed(store: TemplateStore, tmp_path: Path) -> None:
    _define(tmp_path)
    store.build("letters")
    (found,) = store.list()
    assert found.template.fonts == tuple(_FONTS)


def test_package_of_another_content_is_refused(
    store: TemplateStore, wheels: Path, tmp_path: Path
) -> None:
    content = (wheels / "lettering-1.0-py3-none-any.whl").read_bytes()
    right = f"lettering==1.0 --hash=sha256:{hashlib.sha256(content).hexdigest()}"
    _define(tmp_path, constraints=[right])
    store.build("letters")
    _define(tmp_path, constraints=[f"lettering==1.0 --hash=sha256:{'0' * 64}"])
    with pytest.raises(HostUnsupported, match="Hash mismatch for `lettering"):
        store.build("letters")


# ── asking ─────────────────────────────────────────────────────────────────────────────────────


class _Prop:
    """As much of matplotlib's FontProperties as a search reads."""

    def __init__(self, *families: str, weight: int = 400) -> None:
        self.families, self.weight, self.style = list(families), weight, "normal"

    def get_family(self) -> list[str]:
        return self.families

    def get_weight(self) -> int:
        return self.weight

    def get_style(self) -> str:
        return self.style

    def set_family(self, family: str | list[str]) -> None:
        self.families = [family] if isinstance(family, str) else family

    def set_weight(self, weight: int) -> None:
        self.weight = weight

    def set_style(self, style: str) -> None:
        self.style = style

    def set_file(self, file: None) -> None:
        assert file is None

    def copy(self) -> _Prop:
        return _Prop(*self.families, weight=self.weight)


class _Manager:
    """As much of FontManager: a file is named after its family and weight."""

    ttflist = tuple(
        SimpleNamespace(name=name, weight=weight, style="normal")
        for name, weight in (("Moss", 400), ("Moss", 700), ("Fern", 400))
    )

    def score_weight(self, one: int, other: int) -> float:
        return abs(one - other) / 1000

    def score_style(self, one: str, other: str) -> float:
        return float(one != other)

    def findfont(self, prop: _Prop, *, fallback_to_default: bool) -> str:
        assert not fallback_to_default
        exact = [(entry.name, entry.weight) for entry in self.ttflist]
        assert (prop.families[0], prop.weight) in exact, "matplotlib would complain"
        return f"{prop.families[0]}-{prop.weight}"

    def _find_fonts_by_props(self, prop: _Prop, fontext: str = "ttf") -> list[str]:
        assert fontext
        return list(prop.families)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Fonts asked for a text of these families."""
    defaults = SimpleNamespace(rcParamsDefault={"font.family": ["sans-serif", "Moss", "Fern"]})
    monkeypatch.setitem(sys.modules, "matplotlib", defaults)
    manager = type("Manager", (_Manager,), {})
    font_fallback.extend(manager)
    return manager()._find_fonts_by_props


def test_default_family_is_followed_by_ours(asked: Any) -> None:
    found = asked(_Prop("sans-serif", "Moss", "Fern"))
    assert found == ["sans-serif", "Moss-400", "Fern-400"]


def test_family_of_the_callers_own_is_followed_by_ours(asked: Any) -> None:
    assert asked(_Prop("Arial")) == ["Arial", "Moss-400", "Fern-400"]


def test_one_of_ours_comes_first_where_a_caller_says_so(asked: Any) -> None:
    assert asked(_Prop("Fern", "serif")) == ["Fern-400", "serif", "Moss-400"]


def test_nearest_weight_is_taken_and_nothing_is_complained_of(asked: Any) -> None:
    assert asked(_Prop("serif", weight=700)) == ["serif", "Moss-700", "Fern-400"]


def test_other_formats_are_matplotlibs_own(asked: Any) -> None:
    assert asked(_Prop("Times"), "afm") == ["Times"]

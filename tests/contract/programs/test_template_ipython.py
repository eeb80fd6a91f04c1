"""Cells with older versions of IPython, and preloads that look up versions of packages."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.engine.engine import Engine
from cellwall.engine.policy.settings import EngineSettings
from cellwall.engine.templates.store import TemplateStore

_VERSIONS = ("8.5.0", "8.37.0", "9.14.0")
"""That of Debian 12, the last of its kind, and the last that opens a folder of its profile."""
_CELLS = (
    ("1 + 1", "2"),
    ("_ * 21", "42"),
    ("Out[1], _i1", "(2, '1 + 1')"),
    ("said = !echo from a shell", None),
    ("list(said)", "['from a shell']"),
    ("%bookmark start /tmp", None),
    ("%cd -q -b start", None),
    ("%pwd", "'/tmp'"),
    ("%%capture kept\nprint('in')", None),
    ("kept.stdout", "'in\\n'"),
    ("import asyncio\nawait asyncio.sleep(0, 'awaited')", "'awaited'"),
    ("%rehashx", None),
    ("%load_ext storemagic", None),
    ("%store kept", None),
    ("%precision 3", "'%.3f'"),
    ("1.23456", "1.235"),
)

_ASKS = "import IPython\nIPython.__version__"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TemplateStore]:
    monkeypatch.setenv("CELLWALL_CONFIG_DIR", str(tmp_path))
    yield TemplateStore(tmp_path / "state")
    for folder, _, _ in os.walk(tmp_path / "state"):
        os.chmod(folder, 0o755)  # built templates are sealed


@pytest.mark.parametrize("version", _VERSIONS)
def test_cells_work_with_older_versions(store: TemplateStore, tmp_path: Path, version: str) -> None:
    """The preload asks for its own version, for which every archive on the path is opened."""
    (tmp_path / "templates.toml").write_text(
        f'[templates.older]\npackages = ["ipython=={version}"]\npreload = ["prompt_toolkit"]\n'
    )
    store.build("older")

    async def scenario() -> None:
        settings = EngineSettings(pool_min=0, pool_max=0)
        engine = Engine(tmp_path / "state", settings, templates=store)
        try:
            async with await engine.create_sandbox("older") as sandbox:
                for code, text in (*_CELLS, (_ASKS, repr(version))):
                    cell = await sandbox.run(code)
                    assert cell.ok, (code, cell.stderr)
                    assert cell.text == text, code
        finally:
            await engine.aclose()

    asyncio.run(scenario())

"""Where things lie in this clone, whatever the folder of the module that asks."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"

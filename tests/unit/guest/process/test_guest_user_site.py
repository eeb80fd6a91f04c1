"""A context finds what pip and uv have installed for the user, without a restart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_SETUP = """
import os, sys
from cellwall.guest.process import user_site
inner = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
site = f"{os.environ['HOME']}/.local/{inner}"
def install(name, text):
    os.makedirs(site, exist_ok=True)
    with open(f"{site}/{name}.py", "w") as file:
        file.write(text)
"""


def _ran(code: str, home: Path) -> str:
    env = {**os.environ, "HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", _SETUP + code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_import_that_finds_nothing_looks_again(tmp_path: Path) -> None:
    code = """
user_site.add_when_missed()
try:
    import cellwall_probe_a
except ModuleNotFoundError:
    print("missing", site in sys.path)
install("cellwall_probe_a", "value = 1")
import cellwall_probe_a
print(cellwall_probe_a.value, site in sys.path)
install("cellwall_probe_b", "value = 2")
import cellwall_probe_b
print(cellwall_probe_b.value, sys.path.count(site))
"""
    assert _ran(code, tmp_path) == "missing False\n1 True\n2 1\n"


def test_the_users_packages_come_before_the_templates(tmp_path: Path) -> None:
    code = """
template = f"{sys.prefix}/{inner}"
print(user_site.add())
install("cellwall_probe_a", "")
sys.path_importer_cache[site] = None  # as an import found no folder there before
print(user_site.add(), user_site.add(), sys.path.index(site) < sys.path.index(template))
import cellwall_probe_a
"""
    assert _ran(code, tmp_path) == "False\nTrue False True\n"

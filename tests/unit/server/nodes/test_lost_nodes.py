"""An execution whose node was lost: interrupted, for a reason that every reader is told."""

from __future__ import annotations

import asyncio

import pytest

from cellwall.integrations.code_tool import CodeTool
from cellwall.model.errors import CellwallError, Interrupted, NodeLost, SandboxBroken
from cellwall.model.ids import new_id
from cellwall.server.executions.record import ExecutionRecord
from cellwall.wire.reading import execution_of


@pytest.mark.parametrize(
    ("error", "verdict", "status"),
    [
        (NodeLost("execution: its node was lost"), "interrupted", 130),
        (Interrupted("execution: its server ended"), "interrupted", 130),
        (SandboxBroken("execution: its sandbox broke"), "sandbox_error", 125),
    ],
    ids=lambda each: getattr(each, "code", ""),
)
def test_verdict_says_whether_the_program_was_cut_short(
    error: CellwallError, verdict: str, status: int
) -> None:
    async def ended() -> tuple[dict[str, object], object]:
        record = ExecutionRecord(new_id("a7c2"), "alice", "r1", 1024, {})
        record.fail(error)
        record.settle()
        return record.as_json(), record.end_content()

    value, end = asyncio.run(ended())
    failure = value["failure"]
    assert isinstance(failure, dict)
    assert (value["verdict"], value["exit_status"], failure["code"]) == (
        verdict,
        status,
        error.code,
    )
    assert ("the program was not the reason" in str(value["error"])) is (type(error) is NodeLost)
    assert isinstance(end, dict)
    assert (end["verdict"], end["failure"]["code"]) == (verdict, error.code)
    with pytest.raises(type(error)):
        execution_of(value)


def test_model_that_uses_the_tool_is_told_and_goes_on() -> None:
    tool = CodeTool()
    said = tool._refusal(NodeLost("sandbox: its node was lost"))
    assert said.is_error
    assert "the program was not the reason" in said.text
    assert "the next call gets a new sandbox" in said.text

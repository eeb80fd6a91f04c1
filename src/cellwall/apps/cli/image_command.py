"""`cellwall run --image`: one command in a fresh sandbox whose root is an image.

Not the options (`run` declares them). The command's output goes to ours as it comes; its exit
status becomes ours, with the numbers of `console.exit_status` for other ends.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cellwall.apps.cli.console.exit_status import exit_status, explanation
from cellwall.apps.cli.console.terminal import complain
from cellwall.apps.cli.one_program import given_inside, network_and_secrets_of
from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from cellwall.model.execution import CommandResult

_OTHERS = (
    *("code", "language", "template", "stdin", "arg", "artifacts", "into", "compile_option"),
    *("compile_limit", "package", "as_json"),
)
"""Options that are about programs of a template."""


_OPTIONS = {"code": "-c", "as_json": "--json"}


def run_command(given: Mapping[str, Any], limits: Mapping[str, Any]) -> int:
    """Run the command that `given` describes; return our exit status."""
    words = [given["file"], *(given["args"] or [])] if given["file"] else []
    for name in _OTHERS:
        if given[name]:
            raise UsageError(
                f"run: {_OPTIONS.get(name, '--' + name.replace('_', '-'))} and --image do not go "
                "together",
                remedy="name a command behind `--`: cellwall run --image IMAGE -- python3 -c …",
            )
    result = asyncio.run(_ran(words, given, limits))
    said = explanation(result.outcome)
    if said is not None:
        complain(said)
    return exit_status(result.outcome)


async def _ran(
    words: list[str], given: Mapping[str, Any], limits: Mapping[str, Any]
) -> CommandResult:
    from cellwall.engine.engine import Engine

    inside = given_inside(given)
    network, secrets = network_and_secrets_of(
        given["allow"], given["deny"], given["network"], given["secret"]
    )
    engine = Engine(answers_first=True)
    try:
        sandbox = await engine.create_sandbox(
            limits=limits,
            image=given["image"],
            user=given["user"],
            volumes=given["volume"],
            env=inside.get("env"),
            runtime=given["runtime"],
            isolation=given["isolation"],
            trust=given["trust"],
            demand_hard=given["demand_hard"],
            profile=given["profile"] or "default",
            network=network,
            secrets=secrets or None,
        )
        root = sandbox.live.spec.image
        argv = words or list(root.command if root is not None else ())
        if not argv:
            raise UsageError(
                "run: there is no command, and the image has none",
                remedy="name one behind `--`: cellwall run --image IMAGE -- sh -c 'id'",
            )
        for path, data in inside.get("files", {}).items():
            await sandbox.files.write(path, data)
        return await sandbox.commands.run(
            argv, timeout=given["timeout"], on_stdout=_written(1), on_stderr=_written(2)
        )
    finally:
        await engine.aclose()


def _written(stream: int) -> Any:  # noqa: ANN401 - a callback of a stream's text
    target = sys.stdout if stream == 1 else sys.stderr

    def write(text: str) -> None:
        target.write(text)
        target.flush()

    return write

"""`cellwall doctor`: what this machine offers, and the command that mends what is missing.

Not a set-up tool: it changes nothing. Called by `main`. Invariant: the grades are the runtimes'
own (`Runtime.probe`) and those of `apps.versions`; this module adds no opinion, so that the
engine refuses for the very reasons shown here.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.runtimes.base import Finding

_REQUIRED = ("cellwall", "jail")
"""The other runtimes are off or absent unless the operator wants them: no failure of the host."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", short_help="Say what this machine offers and lacks.")(doctor)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what this machine offers and how to mend what it lacks; 1 if something FAILs."""
    found = asyncio.run(_probe())
    if as_json:
        typer.echo(json.dumps(_as_json(found), indent=2))
    else:
        _print(found)
    required = (f for name in _REQUIRED for f in found[name])
    raise typer.Exit(1 if any(f.grade == "FAIL" for f in required) else 0)


async def _probe() -> Mapping[str, list[Finding]]:
    from cellwall.apps import versions
    from cellwall.engine.templates.store import state_dir
    from cellwall.model.errors import CellwallError
    from cellwall.runtimes import registry
    from cellwall.runtimes.base import Finding
    from cellwall.runtimes.jail.images.readiness import readiness

    found: dict[str, list[Finding]] = {"cellwall": versions.findings()}
    for name in registry.FACTORIES:
        try:
            runtime = registry.create(name, state_dir())
        except CellwallError as error:
            found[name] = [Finding("construction", "FAIL", error.message, error.remedy or "")]
            continue
        try:
            found[name] = await runtime.probe()
        finally:
            await runtime.aclose()
    found["jail"] = [*found["jail"], readiness(state_dir())]
    return found


def _as_json(found: Mapping[str, list[Finding]]) -> dict[str, list[dict[str, str]]]:
    return {
        name: [
            {"feature": f.feature, "grade": f.grade, "detail": f.detail, "remedy": f.remedy}
            for f in findings
        ]
        for name, findings in found.items()
    }


def _grade(name: str, finding: Finding) -> str:
    """Return the grade to show: no runtime but the jail is required."""
    return "absent" if finding.grade == "FAIL" and name not in _REQUIRED else finding.grade


def _print(found: Mapping[str, list[Finding]]) -> None:
    from cellwall.apps.cli.console.table import show

    rows = [
        (_grade(name, f), name, f.feature, f.detail, f.remedy)
        for name, findings in found.items()
        for f in findings
    ]
    show(("grade", "runtime", "feature", "found", "to mend it"), rows)

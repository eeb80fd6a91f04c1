"""The optional look at a source before it runs, as a request wants it.

Not the looking (`engine.programs.scan`) and no boundary: nothing is refused unless the caller asked
for that. The invariant: `off` costs nothing and changes nothing.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cellwall.server.core.errors import HttpError

if TYPE_CHECKING:
    from cellwall.server.schemas.requests import Scan


def look(source: str, language: str, wanted: Scan) -> dict[str, Any] | None:
    """Return what an answer says under `scan`; with `block`, findings are a 422."""
    if wanted == "off":
        return None
    from cellwall.engine.programs.scan import scan

    findings = [asdict(finding) for finding in scan(source, language)]
    if findings and wanted == "block":
        first = findings[0]
        raise HttpError(
            422,
            "scan_blocked",
            f"scan: {len(findings)} finding(s); line {first['line']}: {first['message']}",
            remedy="change the program, or ask for scan=warn",
            extra={"findings": findings},
        )
    return {"findings": findings}

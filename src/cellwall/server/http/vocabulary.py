"""Words that the server itself writes into log, audit and metrics.

`State` gives them to `redaction`, which never takes one of them for a secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cellwall.engine.policy.settings import every_runtime
from cellwall.languages.registry import LANGUAGES
from cellwall.model.outcome import Verdict
from cellwall.server.core.settings import LOOPBACK
from cellwall.server.http.audited_actions import ACTIONS, EXEMPT, READS

if TYPE_CHECKING:
    from cellwall.server.core.settings import ServerSettings

_MORE = (
    "execution.accept", "execution.end", "sandbox.create", "sandbox.end", "command.end",
    "tool.call", "rule.flag", "request.refuse", "server.start", "server.stop", "runtime.take_out",
    "audit.lose", "audit.trim", "sandbox:", "execution:", "command:", "context:", "session:",
    "operation:", "template:", "internal", "unauthorized", "forbidden", "not_found", "failed: ",
    "compile_error", "[redacted]",
)  # fmt: skip


def words_of(settings: ServerSettings) -> Iterator[str]:
    """Yield actions, routes, verdicts, languages, runtimes, and the operator's names."""
    yield from ACTIONS.values()
    for method, path in (*ACTIONS, *EXEMPT, *READS):
        yield f"{method} {path}"
    yield from (verdict.value for verdict in Verdict)
    yield from LANGUAGES
    yield from every_runtime()
    yield from (*LOOPBACK, *_MORE, *settings.tiers, *settings.tenants, *settings.warm)

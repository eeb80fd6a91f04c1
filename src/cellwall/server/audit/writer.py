"""Writes audit records: before the effect where there is one, into the chain in the store.

The form of a record is in `chain`, its check in `check`; the records of executions join the
transactions of these (`observer`). Texts that callers and programs chose are redacted here. The
invariants: an entry given to `before` is durable when it returns, or it raises (unless the
operator's policy is to flag that); an entry given to `note` is never lost silently.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import CapacityError, CellwallError
from cellwall.server.audit.anchor import Anchoring, target_of
from cellwall.server.audit.chain import Entry, appending, compact, digest_of
from cellwall.server.audit.refusals import Refusals
from cellwall.server.audit.retention import TRIM, details_of, due
from cellwall.server.observability.logs import logger
from cellwall.server.observability.observer import who_of
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.model.outcome import Outcome
    from cellwall.server.core.request import Request
    from cellwall.server.core.settings import ServerSettings
    from cellwall.server.executions.sandboxes import SandboxRecord
    from cellwall.server.observability.alert_rules import Alert
    from cellwall.server.observability.observer import Observer
    from cellwall.store.records.changes import AppendAudit
    from cellwall.store.store import Store

_log = logger("cellwall.audit")
_MOST_NOTED = 10_000
_BATCH = 100
_AGAIN_S = 1.0
_CLOSE_S = 5.0
_TRIM_EVERY_S = 3600.0
_LONGEST = 1024
_ID = re.compile(r"[a-z2-7]{26}")
"""Form of the server's own ids (`model.ids`)."""
_SMALL_BYTES = 1 << 20
"""Size in bytes from which bodies are hashed in a thread."""


class Audit:
    """The audit of one server."""

    def __init__(self, store: Store, settings: ServerSettings, observer: Observer) -> None:
        self._store = store
        self._observer = observer
        self._is_required = settings.audit == "required"
        self.has_reads = settings.audit_reads
        """Whether reads of files get records."""
        self._tasks = Tasks()
        self._anchoring_tasks = Tasks()
        self._noted: deque[Entry] = deque()
        self._lost = 0
        self._retention_s = settings.audit_retention_s
        self._trim_at = 0.0
        self._writing: asyncio.Task[None] | None = None
        self._refusals = Refusals(self.note)
        self._anchoring = None
        if settings.audit_anchor is not None:
            target = target_of(settings.audit_anchor)
            self._anchoring = Anchoring(
                store, target, settings.audit_anchor_s, lambda: self._count("anchor_failed")
            )
        observer.on_alert.append(self._on_alert)

    # -- before an effect ------------------------------------------------------------------

    def change(self, entry: Entry) -> AppendAudit:
        """Return the change that appends `entry`, for the transaction of its effect."""
        self._count("made")
        return appending(self._clean(entry))

    def change_of_execution(self, entry: Entry) -> AppendAudit:
        """Return the change that appends `entry`, whose object and result are the server's words.

        Every execution writes two of these, so only its details and its request's id are looked at.
        """
        self._count("made")
        return appending(
            entry._replace(
                details=self._observer.redactor.clean(entry.details),
                request=self._clean_request(entry),
            )
        )

    async def before(self, entry: Entry) -> None:
        """Write `entry`; it is on disk when this returns.

        Raises the error of the store if it cannot be written and the policy is `required`.
        """
        try:
            await self._store.write(self.change(entry))
        except CellwallError as error:
            self._count("failed")
            _log.error("not written", action=entry.action, tenant=entry.tenant, reason=str(error))
            if self._is_required:
                raise
            self.note(entry._replace(decision="noted", details=compact({"late": True})))

    async def asked(self, request: Request, action: str) -> None:
        """Write that a request's action is about to be done; raises as `before`."""
        await self.before(entry_of(request, action))

    def made(self, request: Request, record: SandboxRecord) -> AppendAudit:
        """Return the record of a sandbox's creation, and arrange that of its end."""
        isolation = record.isolation
        record.tell_ended(partial(self._sandbox_ended, record.owner, record.id))
        entry = entry_of(request, "sandbox.create")._replace(
            object=f"sandbox:{record.id}",
            decision="noted",
            runtime=isolation["runtime"],
            posture=isolation["posture"],
            result="running",
        )
        return self.change(entry)

    def runtime_taken_out(self, name: str, reason: str) -> None:
        """Note that a runtime broke while it was in use and takes no new work for now."""
        self.note(server_entry("runtime.take_out", subject=name, result=reason))

    def _sandbox_ended(self, tenant: str, sandbox_id: str, reason: str) -> None:
        subject = f"sandbox:{sandbox_id}"
        self.note(server_entry("sandbox.end", tenant=tenant, subject=subject, result=reason))

    def command_ended(self, tenant: str, names: str, outcome: Outcome) -> None:
        """Note how a command ended; `names` are its sandbox's id and its own."""
        entry = server_entry("command.end", tenant=tenant, subject=names)
        self.note(
            entry._replace(
                runtime=outcome.isolation.runtime,
                posture=outcome.isolation.posture_digest,
                result=outcome.verdict.value,
                usage=compact(outcome.as_json()["usage"]),
            )
        )

    def connected(self, tenant: str, sandbox_id: str, record: Mapping[str, Any]) -> None:
        """Note a connection of a sandbox, its end with its bytes, or what was refused."""
        where = self.chosen(tenant, f"{record['host']}:{record['port']}")
        entry = server_entry(
            f"network.{record['event']}",
            tenant=tenant,
            subject=f"sandbox:{sandbox_id} host:{where}",
            result=str(record["rule"]),
            details=compact({k: v for k, v in record.items() if k not in ("event", "rule")}),
        )
        if record["event"] == "refused":
            self._refusals.add(entry._replace(decision="refused"))
        else:
            self.note(entry)

    # -- what has happened -----------------------------------------------------------------

    def note(self, entry: Entry) -> None:
        """Write `entry` soon; if the store cannot be written now, when it is back."""
        if len(self._noted) >= _MOST_NOTED:
            self._lost += 1
            self._count("lost")
            return
        self._noted.append(entry)
        if self._writing is None:
            self._writing = self._tasks.spawn(self._write_noted())

    def failed(self, request: Request, action: str, reason: str) -> None:
        """Note that an allowed action failed."""
        self.note(entry_of(request, action)._replace(decision="noted", result=f"failed: {reason}"))

    def refused(self, request: Request, status: int, code: str) -> None:
        """Note a refusal; repeated ones are summed up."""
        entry = entry_of(request, "request.refuse")
        details = compact({"status": status, "code": code, "route": request.route})
        self._refusals.add(entry._replace(decision="refused", result=code, details=details))

    def refused_call(self, entry: Entry) -> None:
        """Note a tool call that was refused before any client saw it; summed up as in `refused`."""
        self._refusals.add(entry)

    def _on_alert(self, alert: Alert) -> None:
        facts = {"count": alert.count, "window_s": alert.window_s}
        is_tenant = not alert.who.startswith("address:")
        self.note(
            server_entry(
                "rule.flag",
                subject=alert.rule,
                tenant=alert.who if is_tenant else "",
                result=alert.who,
                details=compact(facts),
            )
        )

    async def _write_noted(self) -> None:
        try:
            while self._noted:
                if self._lost:
                    lost = server_entry("audit.lose", details=compact({"count": self._lost}))
                    self._noted.appendleft(lost)
                    self._lost = 0
                batch = [self._noted.popleft() for _ in range(min(_BATCH, len(self._noted)))]
                await self._write_batch(batch)
        finally:
            self._writing = None

    async def _write_batch(self, batch: list[Entry]) -> None:
        try:
            await self._store.write(*map(self.change, batch))
        except CapacityError:
            self._noted.extendleft(reversed(batch))
            await asyncio.sleep(_AGAIN_S)
        except BaseException:
            self._noted.extendleft(reversed(batch))
            self._count("failed")
            raise

    # -- its own life ----------------------------------------------------------------------

    async def open(self, facts: Mapping[str, object]) -> None:
        """Write that the server starts; raises as `before`."""
        await self.before(server_entry("server.start", details=compact(facts)))
        if self._anchoring is not None:
            await self._anchoring.open(self._anchoring_tasks.spawn)
        self._refusals.open()

    async def trim(self, now: float) -> None:
        """Delete records that were exported and are old enough at `now` (seconds since the epoch).

        At most once an hour, because each time costs a record. Raises the errors of the store.
        """
        if time.monotonic() < self._trim_at:
            return
        self._trim_at = time.monotonic() + min(_TRIM_EVERY_S, self._retention_s / 2)
        cut = await due(self._store, min(now, time.time()) - self._retention_s)
        if cut is None:
            return
        if self._anchoring is not None and not await self._anchoring.try_write(cut):
            return  # deleted records must stay provable by an anchor outside the store
        entry = server_entry(TRIM, subject=f"record:{cut.seq}", details=details_of(cut))
        await self._store.write(self.change(entry))
        gone = await self._store.trim_audit(cut.seq)
        _log.info("trimmed", records=gone, up_to=cut.seq)

    async def aclose(self) -> None:
        """Write the remaining entries, for some seconds at most, and that the server stops."""
        self._refusals.close()
        self.note(server_entry("server.stop"))
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._tasks.wait_empty()
        except TimeoutError:
            _log.error("not written", count=len(self._noted), reason="the server stops")
        await self._tasks.cancel()
        if self._anchoring is not None:
            await self._anchoring.aclose()
        await self._anchoring_tasks.cancel()

    def _clean(self, entry: Entry) -> Entry:
        """Return `entry` without keys and tokens, and its request id without the tenant's values.

        SECURITY: only the request's id is wholly the caller's choice. Names, ids, verdicts and
        facts are the server's: a tenant that could have them redacted could hide from the audit.
        The chosen parts of the other fields were cleaned when they were put together (`chosen`).
        """
        clean = self._observer.redactor.clean
        return entry._replace(
            object=clean(entry.object)[:_LONGEST],
            result=clean(entry.result)[:_LONGEST],
            details=clean(entry.details),
            request=self._clean_request(entry),
        )

    def _clean_request(self, entry: Entry) -> str:
        whose = None if _ID.fullmatch(entry.request) else entry.tenant
        return self._observer.redactor.clean(entry.request, whose)

    def chosen(self, tenant: str, text: str) -> str:
        """Return `text`, which a caller of `tenant` chose, without that tenant's values."""
        return self._observer.redactor.clean(text, tenant)

    def _count(self, result: str) -> None:
        if self._observer.metrics is not None:
            self._observer.metrics.audited.add(result)


def entry_of(request: Request, action: str) -> Entry:
    """Return an entry about the action that a request asks for."""
    return Entry(
        time=time.time(),
        mono_ns=time.monotonic_ns(),
        tenant=request.claims.get("owner", "")
        if request.principal is None
        else request.principal.tenant,
        actor=who_of(request) if request.principal is None else request.principal.key_id,
        action=action,
        object=request.object,
        parameters=request.origin.parameters,
        request=request.request_id,
    )


def server_entry(
    action: str, *, tenant: str = "", subject: str = "", result: str = "", details: str = ""
) -> Entry:
    """Return an entry about an action of the server itself, on `subject`."""
    return Entry(
        time=time.time(),
        mono_ns=time.monotonic_ns(),
        tenant=tenant,
        actor="server",
        action=action,
        object=subject,
        decision="noted",
        result=result,
        details=details,
    )


async def parameters_of(request: Request, body: bytes) -> str:
    """Return the digest of a request's parameters: method, path, query and `body`."""
    scope = request.scope
    parts = (
        str(scope.get("method", "WS")).encode(),
        scope["path"].encode("utf-8", "surrogatepass"),
        scope.get("query_string", b""),
        body,
    )
    if len(body) < _SMALL_BYTES:
        return digest_of(*parts)
    return await asyncio.to_thread(digest_of, *parts)

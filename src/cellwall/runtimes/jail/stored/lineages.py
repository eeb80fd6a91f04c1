"""Stored lineages: fresh sandboxes of any fork-server of the template that become stored sessions.

Used by `copying.Copier`. The base of a stored lineage is the memory that its images were compared
with; a sandbox makes itself equal to it as to its own fork-server's. The invariant: no base and no
image is loaded into a sandbox of a fork-server whose fingerprint is not that of the stored one.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cellwall.model.errors import Conflict, NotFound, SandboxBroken
from cellwall.runtimes.jail.stored import fingerprint, kept_base
from cellwall.runtimes.jail.stored.base import Base
from cellwall.runtimes.lineages import STORED, LineageFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.model.template import BuiltTemplate
    from cellwall.runtimes.jail.fork_servers import Entry, ForkServers
    from cellwall.runtimes.jail.sandbox import JailSandbox
    from cellwall.runtimes.jail.stored.kept_base import KeptBase


_TO_BE_COPIED = (
    "to have sessions copied after a restart, give the servers before and after it a place for "
    "snapshots (snapshots_dir)"
)


@dataclass(slots=True)
class _Known:
    base: Base
    fingerprint: Mapping[str, str]
    users: int = 0


class StoredLineages:
    """The stored lineages that this engine has loaded."""

    def __init__(self, servers: ForkServers) -> None:
        self._servers = servers
        self._known: dict[str, _Known] = {}
        self._read: dict[str, asyncio.Future[dict[str, str]]] = {}
        """Fingerprints of fork-servers, by their own lineage."""

    @property
    def names(self) -> set[str]:
        """The names of those that are loaded."""
        return set(self._known)

    def keep(self, lineage: str) -> bool:
        """Keep what images of a lineage need; report whether it is a stored one."""
        if not lineage.startswith(STORED):
            return False
        self._find(lineage).users += 1
        return True

    def let_go(self, lineage: str) -> bool:
        """Undo one `keep`; report whether it is a stored one."""
        known = self._known.get(lineage)
        if known is None:
            return lineage.startswith(STORED)
        known.users -= 1
        if known.users <= 0:
            del self._known[lineage]
            os.close(known.base.fd)
        return True

    def base(self, lineage: str) -> Base:
        """Return what images of a lineage are compared with. Raises NotFound."""
        return self._find(lineage).base

    async def kept_base(self, lineage: str, entry: Entry, base: Base) -> KeptBase:
        """Return a base as it is kept beyond this engine. Raises HostUnsupported."""
        if not lineage.startswith(STORED):
            return await kept_base.made(base, await self._fingerprint(entry))
        known = self._find(lineage)
        return await kept_base.made(known.base, known.fingerprint, lineage)

    async def base_of(self, lineage: str, entry: Entry) -> Base:
        """Return what a sandbox of a fork-server has to be like. Raises Conflict, NotFound."""
        known = self._find(lineage)
        self._compare(known.fingerprint, await self._fingerprint(entry))
        return known.base

    async def facts(self, lineage: str) -> LineageFacts:
        """Return what images of a lineage need in another engine. Raises HostUnsupported."""
        if lineage.startswith(STORED):
            known = self._find(lineage)
            return LineageFacts(known.fingerprint, known.base.fd, known.base.maps)
        entry = self._servers.of_lineage(lineage)
        if not entry.server.settings.is_alike or entry.base is None:
            raise SandboxBroken(
                "snapshot: its fork-server is not laid out like others", remedy="please file a bug"
            )
        base = await asyncio.shield(entry.base)
        return LineageFacts(await self._fingerprint(entry), base.fd, base.maps)

    async def adopt(self, lineage: str, template: BuiltTemplate, facts: LineageFacts) -> None:
        """Know a stored lineage from here on; owns the descriptor of its base if it returns.

        Nothing changes if it is known already. It is kept once, until `let_go`. Raises Conflict.
        """
        entry = await self._servers.get(template)
        self._compare(facts.fingerprint, await self._fingerprint(entry))
        if lineage in self._known:
            os.close(facts.base)
        else:
            self._known[lineage] = _Known(Base(facts.base, facts.maps), facts.fingerprint)
        self._known[lineage].users += 1

    async def adopt_live(self, sandbox: JailSandbox) -> str:
        """Know the lineage of a sandbox that was taken over, and keep it once; return its name.

        Raises Conflict.
        """
        kept = sandbox.base
        if kept is None:
            why = sandbox.no_base or "nothing that copies need was kept with it"
            raise Conflict(
                f"copy: an earlier server started this sandbox: {why}",
                remedy=f"create a new sandbox; {_TO_BE_COPIED}",
            )
        if not self._servers.are_alike:
            raise Conflict(
                "copy: an earlier server started this sandbox, and this one has no snapshots_dir",
                remedy=_TO_BE_COPIED,
            )
        kept.again()  # a sandbox that ends meanwhile closes its own
        try:
            await self._adopt_kept(kept, sandbox.spec.template)
            return kept.lineage
        finally:
            kept.close()

    async def _adopt_kept(self, kept: KeptBase, template: BuiltTemplate) -> None:
        entry = await self._servers.get(template)
        if found := fingerprint.differing(kept.fingerprint, await self._fingerprint(entry)):
            raise Conflict(
                "copy: an earlier server started this sandbox, and its session can only go on as "
                f"it is: {'; '.join(each.what for each in found)}",
                remedy="save what it has in files, and load that in a new sandbox",
            )
        if kept.lineage not in self._known:
            facts = kept.facts()
            self._known[kept.lineage] = _Known(Base(facts.base, facts.maps), facts.fingerprint)
        self._known[kept.lineage].users += 1

    def _find(self, lineage: str) -> _Known:
        try:
            return self._known[lineage]
        except KeyError:
            raise NotFound(
                "snapshot: its base is not loaded any more", remedy="restore it again"
            ) from None

    @staticmethod
    def _compare(stored: Mapping[str, str], here: Mapping[str, str]) -> None:
        if stored == here:
            return
        found = fingerprint.differing(stored, here)
        raise Conflict(
            f"restore: its session cannot go on here: {'; '.join(each.what for each in found)}",
            remedy="; or ".join(dict.fromkeys(each.remedy for each in found)),
        )

    async def _fingerprint(self, entry: Entry) -> dict[str, str]:
        """Return the fingerprint of a fork-server, which is read once."""
        reading = self._read.get(entry.lineage)
        if reading is None or (reading.done() and reading.exception() is not None):
            alive = {each.lineage for each in self._servers.entries}
            self._read = {key: each for key, each in self._read.items() if key in alive}
            reading = asyncio.ensure_future(_read(entry))
            self._read[entry.lineage] = reading
        return await asyncio.shield(reading)


async def _read(entry: Entry) -> dict[str, str]:
    entry.server.want_sessions()
    if entry.completing is not None:
        await asyncio.wait([entry.completing])
    workers = [each for each in entry.server.workers if each.purpose == "session"]
    if not workers:
        raise SandboxBroken("fork-server: it has no worker for sessions", remedy="try again")
    settings = entry.server.settings
    facts = {
        "template": entry.template,
        "guest": Path(settings.guest_path).stem,
        "policy": hashlib.blake2b(settings.seccomp, digest_size=16).hexdigest(),
    }
    return await asyncio.to_thread(fingerprint.read, workers[0].pid, facts)

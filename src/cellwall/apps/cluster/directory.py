"""A gateway among several: what it agrees on with others, composed over one directory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellwall.cluster.directory.claims import Claims
from cellwall.cluster.directory.connection import check_url
from cellwall.cluster.directory.ended import Ended
from cellwall.cluster.directory.grants import Grants
from cellwall.cluster.directory.group_commit import GroupCommit
from cellwall.cluster.directory.keys import Keys
from cellwall.cluster.directory.notices import NoticeRows
from cellwall.cluster.directory.places import PlaceRows
from cellwall.cluster.directory.programs import Programs
from cellwall.cluster.directory.roll import Roll
from cellwall.cluster.directory.secrets import Secrets
from cellwall.cluster.directory.shares import Shares
from cellwall.cluster.directory.sums import Sums
from cellwall.cluster.gateway.agreed.claims import AgreedReplays
from cellwall.cluster.gateway.agreed.granting import Granting, has_costs
from cellwall.cluster.gateway.agreed.losses import Losses, fresh_s
from cellwall.cluster.gateway.agreed.places import AgreedPlaces
from cellwall.cluster.gateway.agreed.quotas import Quotas
from cellwall.cluster.gateway.agreed.running import Running
from cellwall.cluster.gateway.agreed.upkeep import Leftovers, Upkeep
from cellwall.cluster.gateway.background.background import Background
from cellwall.cluster.gateway.background.hooks import Hooks
from cellwall.cluster.gateway.data.data import Data
from cellwall.cluster.gateway.tenants.key_book import KeyBook
from cellwall.cluster.gateway.tenants.lending import Keeps
from cellwall.cluster.gateway.tenants.vault import Vault
from cellwall.engine.scheduling.quotas import Tenants
from cellwall.model.ids import new_id
from cellwall.store import key_file
from cellwall.store.records.errors import StoreBusy
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from cellwall.cluster.gateway.gateway import Gateway
    from cellwall.cluster.gateway.settings import GatewaySettings
    from cellwall.server.auth.keys import KeyRing
    from cellwall.server.core.settings import ServerSettings
    from cellwall.server.secrets.sealing import Seal

_SWEEP_S = 60.0
_LONG_S = 10.0
"""Longest time of a statement of upkeep, which may read a whole table, or of one large body."""
_log = logging.getLogger("cellwall.gateway")


@contextlib.asynccontextmanager
async def agreeing(
    settings: GatewaySettings, server: ServerSettings, gateway: Gateway, over: asyncio.Event
) -> AsyncIterator[None]:
    """Agree with other gateways for the length of a block, which begins once losses are known.

    So are the keys then. Where `over` is set before, the block begins at once. Raises the errors of
    `Losses.begin` and `KeyBook.begin`, and UsageError for the key of secrets.
    """
    url = check_url(settings.directory)
    name = settings.name or f"{socket.gethostname()}:{server.port}"
    roll = Roll(url, name, settings.lost_after_s, fresh_s(settings.fence_s))
    losses = Losses(gateway.book, roll, settings.fence_s, settings.probe_s)
    commits = GroupCommit(url)
    chores = GroupCommit(url, _LONG_S)  # what upkeep reads may be long: no request waits for it
    aside = GroupCommit(url, _LONG_S)  # for bodies of some MiB, and webhooks, which can wait
    gateway.replays = AgreedReplays(Claims(commits), gateway.book)
    tenants = Tenants(server.tiers, server.tenants)
    gateway.quotas = quotas = Quotas(Sums(commits), tenants, gateway.book)
    gateway.running = Running(Shares(commits), tenants, gateway.tasks)
    gateway.data = data = Data(gateway, AgreedPlaces(PlaceRows(commits)))
    upkeep = Upkeep(
        Ended(chores),
        Shares(chores),
        quotas,
        Leftovers(PlaceRows(chores), data.finder, tenants),
        settings.ended_keys_days,
    )
    programs, ended = Programs(commits, new_id(), aside), Programs(chores, "")
    gateway.background = _background(server, gateway, NoticeRows(aside), tenants, programs, ended)
    keys = KeyBook(Keys(commits), gateway.keyring, gateway.cut)
    gateway.keeps = Keeps(keys, Vault(Secrets(commits), _seal(server)))
    if not await _has_begun(losses.begin(), over):
        yield
        return
    background = gateway.background.works()
    if any(map(has_costs, server.tiers.values())):
        gateway.book.grants = True
        grants = Grants(commits)
        granting = Granting(
            grants,
            tenants,
            gateway.book,
            gateway.tasks,
            partial(_is_tenant, server, gateway.keyring),
        )
        gateway.tasks.spawn(granting.run())
    sweep = _sweep(Claims(chores), upkeep)
    connections = (commits.run(), chores.run(), aside.run())
    for work in (losses.run(over.set), *connections, sweep, *background):
        gateway.tasks.spawn(work)
    try:
        if await _has_begun(keys.begin(), over):
            gateway.tasks.spawn(keys.watch())
        yield
    finally:
        await roll.leave()


def _background(
    server: ServerSettings,
    gateway: Gateway,
    notices: NoticeRows,
    tenants: Tenants,
    programs: Programs,
    ended: Programs,
) -> Background:
    """Return programs in the background, and webhooks as far as the operator allows them.

    By `ended` those are removed that are kept no longer.
    """
    path = server.secrets_key_file if server.webhooks else ""
    key = key_file.read(Path(path), "webhooks") if path else None
    hooks = Hooks(
        notices,
        Tasks(),
        key,
        may_send=server.webhooks,
        networks=server.webhook_networks,
    )
    return Background(gateway, programs, hooks, tenants, server, ended)


def _is_tenant(server: ServerSettings, keys: KeyRing, name: str) -> bool:
    """Report whether there is a tenant of that name: it has a key, or a door is open to it."""
    return any(each.tenant == name for each in server.doors.values()) or bool(keys.holders(name))


def _seal(server: ServerSettings) -> Seal | None:
    """Return the seal of tenants' secrets; None: the operator gives no key for it."""
    if not server.secrets_key_file:
        return None
    from cellwall.server.secrets.sealing import Seal  # some MiB, for those that want it

    return Seal.of_file(Path(server.secrets_key_file), may_make=False)


async def _has_begun(beginning: Coroutine[Any, Any, None], over: asyncio.Event) -> bool:
    """Wait until what has to be known is known; False: the gateway is to end before that."""
    loop = asyncio.get_running_loop()
    begin, ending = loop.create_task(beginning), loop.create_task(over.wait())
    await asyncio.wait((begin, ending), return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    if not begin.done():
        begin.cancel()
        return False
    begin.result()
    return True


async def _sweep(claims: Claims, upkeep: Upkeep) -> None:
    """Remove what is over, for ever."""
    while True:
        await asyncio.sleep(_SWEEP_S)
        try:
            while await claims.sweep():
                pass
            await upkeep.round()
        except StoreBusy:
            continue  # the directory is away; there is time
        except Exception:  # noqa: BLE001 - the next round may do better, and the operator hears of it
            _log.exception("directory: what has ended is not all removed")

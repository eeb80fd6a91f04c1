"""Routes of forks and snapshots of sandboxes.

A copy is a sandbox as any other: it takes its place in the tenant's quota before it is made, and is
in the store before the answer.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cellwall.engine.scheduling.admission import Cost
from cellwall.model.errors import CapacityError, NotFound
from cellwall.server.core.errors import envelope
from cellwall.server.core.request import ClientGone
from cellwall.server.core.times import rfc3339
from cellwall.server.executions.idempotency import gone
from cellwall.server.executions.promised import bind
from cellwall.server.executions.sandboxes import SandboxRecord
from cellwall.server.http.endpoint import Answer, Endpoint, body_of, sandbox
from cellwall.server.schemas import decode, responses
from cellwall.server.schemas import snapshots as schemas

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.engine.scheduling.fair_queue import Promise
    from cellwall.model.snapshot import Fork, Snapshot
    from cellwall.server.core.request import Request
    from cellwall.server.executions.idempotency import Use

_REPLAY = {"idempotent-replay": "true"}


async def fork(request: Request) -> None:
    """`POST /sandboxes/{sandbox_id}/fork`."""
    body = await body_of(request, schemas.ForkBody)
    source = sandbox(request)
    async with request.state.replays.using(request, "fork") as use:
        if use is not None and use.thing_id is not None:
            await request.answer({"forks": _before(request, use.thing_id)}, 201, _REPLAY)
            return
        shown = await _forked(request, source, body)
        if use is not None:
            known = [[each["sandbox"] and each["sandbox"]["id"], each["error"]] for each in shown]
            what = [shown[0]["left_behind"], shown[0]["carries"]]
            await _remember(request, use, json.dumps([known, *what]))
    await request.answer({"forks": shown}, 201)


async def _remember(request: Request, use: Use, made: str) -> None:
    """Note what a request has made; one that is repeated gets that."""
    store = request.state.store
    if store is not None:
        await store.write(*use.changes(made))
    use.made(made)


def _before(request: Request, made: str) -> list[dict[str, Any]]:
    """Return what an earlier fork with the same key made, as far as it is there."""
    known, left, carries = json.loads(made)
    shown: list[dict[str, Any]] = []
    for sandbox_id, error in known:
        record = request.state.sandboxes.all.get(sandbox_id)
        if record is not None and record.owner == request.owner:
            shown.append({"sandbox": record.as_json(), "error": None, "left_behind": left})
        else:
            why = error or _error(request, gone())
            left_behind = left if error is None else []
            shown.append({"sandbox": None, "error": why, "left_behind": left_behind})
    return [{**each, "carries": carries} for each in shown]


async def _forked(
    request: Request, source: SandboxRecord, body: schemas.ForkBody
) -> list[dict[str, Any]]:
    """Make the copies; return what the answer shows of each."""
    one = Cost.of(source.sandbox.limits)
    await request.state.queue.room(request.owner, one.times(body.count))
    promises, refusal = _promises(request, source, body.count)
    try:
        made = await request.unless_gone(
            source.sandbox.fork(
                len(promises), reseed=body.reseed, scope=body.scope, threads=body.threads
            )
        )
    except BaseException:
        for promise in promises:
            _give_back(request, promise)
        raise
    shown = await _all_kept(request, source, list(zip(made, promises, strict=True)))
    refused: dict[str, Any] = {
        "sandbox": None,
        "error": _error(request, refusal),
        "left_behind": [],
        "carries": made[0].carries,
    }
    shown += [refused] * (body.count - len(promises))
    source.log("forked", count=len(promises))
    return shown


def _promises(
    request: Request, source: SandboxRecord, count: int
) -> tuple[list[Promise], CapacityError | None]:
    """Return a place for each copy, as far as there are some. Raises CapacityError for none."""
    state = request.state
    state.headroom.check()
    state.kept.check(request.owner, 0)
    found: list[Promise] = []
    cost = Cost.of(source.sandbox.limits)
    while len(found) < count:
        try:
            found.append(_place(request, cost))
        except CapacityError as error:
            if not found:
                raise
            return found, error
    return found, None


def _place(request: Request, cost: Cost, offered_id: str = "") -> Promise:
    """Return a place for one sandbox: on the server, and in what is promised. CapacityError."""
    sandboxes = request.state.sandboxes
    sandboxes.begin(offered_id)
    try:
        return request.state.queue.hold(request.owner, cost)
    except BaseException:
        sandboxes.begun(None, offered_id)
        raise


def _give_back(request: Request, promise: Promise, offered_id: str = "") -> None:
    """Give a place back for which no sandbox was made."""
    promise.release()
    request.state.sandboxes.begun(None, offered_id)


async def _all_kept(
    request: Request, source: SandboxRecord, copies: list[tuple[Fork[AsyncSandbox], Promise]]
) -> list[dict[str, Any]]:
    """Return the copies as the answer shows them; if one cannot be kept, no further one is.

    None is kept for a client that has left: it would never learn what they are called.
    """
    shown: list[dict[str, Any]] = []
    left = copies
    try:
        if request.is_gone:
            raise ClientGone
        while left:
            (copy, promise), *left = left
            shown.append(await _kept(request, source, copy, promise))
    except BaseException:
        for copy, promise in left:
            _give_back(request, promise)
            if copy.made is not None:
                await copy.made.close()
        raise
    return shown


async def _kept(
    request: Request, source: SandboxRecord, copy: Fork[AsyncSandbox], promise: Promise
) -> dict[str, Any]:
    """Return a copy as the answer shows it, once the store has it."""
    what = {"left_behind": list(copy.left_behind), "carries": copy.carries}
    if copy.made is None:
        _give_back(request, promise)
        return {"sandbox": None, "error": _error(request, copy.error), **what}
    facts = _facts(source.template, source.metadata)
    record = await _record(request, copy.made, promise, facts)
    return {"sandbox": record.as_json(), "error": None, **what}


def _facts(template: str, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return what a record shows of a copy, which is of a session in Python on a template."""
    return {
        "name": None,
        "language": "python",
        "template": template,
        "metadata": dict(metadata),
        "clipped": {},
        "image": None,
        "volumes": None,
    }


async def _record(
    request: Request,
    made: AsyncSandbox,
    promise: Promise,
    facts: dict[str, Any],
    use: Use | None = None,
) -> SandboxRecord:
    """Make a copy one of the server's sandboxes."""
    state = request.state
    bind(promise, made, state.headroom)
    state.observer.created(request.owner)
    record: SandboxRecord | None = None
    try:
        record = SandboxRecord(request.owner, made, facts)
    finally:
        state.sandboxes.begun(record, made.id)
    audit = state.audit
    try:
        replay = () if use is None else use.changes(record.id)
        noted = () if audit is None else (audit.made(request, record),)
        await state.sandboxes.keep(record, *replay, *noted)
    except BaseException:
        await record.close()
        raise
    if use is not None:
        use.made(record.id)
    return record


def _error(request: Request, error: BaseException | None) -> dict[str, Any] | None:
    if error is None:
        return None
    found: dict[str, Any] = envelope(error, request.request_id)["error"]
    return found


async def create(request: Request) -> None:
    """`POST /sandboxes/{sandbox_id}/snapshots`."""
    body = await body_of(request, schemas.SnapshotBody)
    source = sandbox(request)
    headers: dict[str, str] = {}
    async with request.state.replays.using(request, "snapshot") as use:
        if use is not None and use.thing_id is not None:
            headers, made = dict(_REPLAY), _kept_before(request, use.thing_id)
        else:
            request.state.kept.check(request.owner, 0)
            made = await request.unless_gone(
                source.sandbox.snapshot(
                    body.name, expires_s=body.expires_s, scope=body.scope, threads=body.threads
                )
            )
            source.log("snapshot", snapshot=made.id)
            if use is not None:
                await _remember(request, use, made.id)
    await request.answer(_shown(made), 201, headers | {"location": f"/snapshots/{made.id}"})


def _kept_before(request: Request, snapshot_id: str) -> Snapshot:
    try:
        return request.state.engine.copies.get(snapshot_id, request.owner)
    except NotFound:
        raise gone() from None


async def index(request: Request) -> None:
    """`GET /snapshots`."""
    found = request.state.engine.copies.snapshots(request.owner)
    await request.answer({"snapshots": [_shown(each) for each in found]})


async def get(request: Request) -> None:
    """`GET /snapshots/{snapshot_id}`."""
    found = request.state.engine.copies.get(request.params["snapshot_id"], request.owner)
    await request.answer(_shown(found))


async def remove(request: Request) -> None:
    """`DELETE /snapshots/{snapshot_id}`."""
    wanted = request.params["snapshot_id"]
    request.state.engine.copies.delete(wanted, request.owner)
    await request.answer({"message": "deleted", "id": wanted})


async def restore(request: Request) -> None:
    """`POST /snapshots/{snapshot_id}/restore`."""
    body = await body_of(request, schemas.RestoreBody)
    headers: dict[str, str] = {}
    async with request.state.replays.using(request, "restore") as use:
        if use is None or use.thing_id is None:
            record = await _restored(request, body, use)
        else:
            found = request.state.sandboxes.all.get(use.thing_id)
            if found is None or found.owner != request.owner:
                raise gone()
            headers, record = dict(_REPLAY), found
    await request.answer(record.as_json(), 201, headers | {"location": f"/sandboxes/{record.id}"})


async def _restored(request: Request, body: schemas.RestoreBody, use: Use | None) -> SandboxRecord:
    """Make a sandbox of the snapshot that the path names."""
    state = request.state
    copies = state.engine.copies
    found = copies.get(request.params["snapshot_id"], request.owner)
    state.headroom.check()
    state.kept.check(request.owner, 0)
    limits = copies.limits(found.id, request.owner)
    decode.check_allowed(limits, state.engine.settings.limits, state.settings.most)
    offered_id = request.origin.offered_id
    await state.queue.room(request.owner, Cost.of(limits))
    promise = _place(request, Cost.of(limits), offered_id)
    try:
        made = await request.unless_gone(
            copies.restore(
                found.id,
                request.owner,
                reseed=body.reseed,
                floor=state.queue.tenants.floor(request.owner),
                sandbox_id=offered_id,
            )
        )
        if request.is_gone:
            await made.close()
            raise ClientGone
    except BaseException:
        _give_back(request, promise, offered_id)
        raise
    return await _record(request, made, promise, _facts(found.template, {}), use)


def _shown(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "id": snapshot.id,
        "name": snapshot.name,
        "template": snapshot.template,
        "created_at": rfc3339(snapshot.created_at),
        "expires_at": rfc3339(snapshot.expires_at),
        "memory_bytes": snapshot.memory_bytes,
        "files_bytes": snapshot.files_bytes,
        "left_behind": list(snapshot.left_behind),
        "carries": snapshot.carries,
        "durable": snapshot.durable,
    }


_ONE = "/snapshots/{snapshot_id}"
_TAGS = ("snapshots",)
ENDPOINTS = (
    Endpoint(
        "POST",
        "/sandboxes/{sandbox_id}/fork",
        fork,
        "Copy a sandbox, its Python session and its files, any number of times",
        {201: Answer("One entry for each copy: a sandbox, or the error.", schemas.Forks)},
        body=schemas.ForkBody,
        headers=("Idempotency-Key",),
        tags=_TAGS,
    ),
    Endpoint(
        "POST",
        "/sandboxes/{sandbox_id}/snapshots",
        create,
        "Keep a sandbox's session and files as they are now",
        {201: Answer("It is kept until it expires.", schemas.Snapshot)},
        body=schemas.SnapshotBody,
        headers=("Idempotency-Key",),
        tags=_TAGS,
    ),
    Endpoint(
        "GET",
        "/snapshots",
        index,
        "Your snapshots, the oldest first",
        {200: Answer("The snapshots.", schemas.Snapshots)},
        tags=_TAGS,
    ),
    Endpoint(
        "GET",
        _ONE,
        get,
        "One of them, by its id or its name",
        {200: Answer("The snapshot.", schemas.Snapshot)},
        tags=_TAGS,
    ),
    Endpoint(
        "POST",
        f"{_ONE}/restore",
        restore,
        "Make a new sandbox of a snapshot",
        {201: Answer("The sandbox.", responses.Sandbox)},
        body=schemas.RestoreBody,
        headers=("Idempotency-Key",),
        tags=_TAGS,
    ),
    Endpoint(
        "DELETE",
        _ONE,
        remove,
        "Delete a snapshot; sandboxes that were made of it live on",
        {200: Answer("It is gone.", responses.Done)},
        tags=_TAGS,
    ),
)

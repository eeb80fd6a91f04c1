"""One-shots as orders: a checked body becomes an order to do now, or later from the store.

Called by `routes.execute`, and by `registry` for stored orders; `registry` runs the orders. The
invariant: an order made again from the store is the same as the first one, except for the
operator's current ceilings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cellwall.engine.programs.requests import compile_defaults, plan, usual_limits
from cellwall.engine.scheduling.admission import Cost
from cellwall.languages import registry
from cellwall.server.core.body_budget import HELD_TIMES
from cellwall.server.executions.order import Order
from cellwall.server.executions.remote_tools import RemoteTools
from cellwall.server.schemas import decode
from cellwall.server.schemas.requests import ExecuteBody
from cellwall.server.schemas.scanning import look

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellwall.engine.attempts.attempt import BeforeCode, OnEvent, OnStart
    from cellwall.engine.engine import Engine
    from cellwall.engine.policy.levels import Floor
    from cellwall.model.execution import Execution
    from cellwall.server.core.image_door import ImageDoor
    from cellwall.server.core.settings import ServerSettings
    from cellwall.server.core.template_door import TemplateDoor
    from cellwall.server.core.volume_door import VolumeDoor
    from cellwall.store.records.rows import ExecutionRow

_LARGE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Caller:
    """Identity of the caller, its request and its key."""

    owner: str
    request_id: str
    key_id: str
    floor: Floor


class Doors(NamedTuple):
    """What decides on the images, volumes and templates that a request names."""

    images: ImageDoor
    volumes: VolumeDoor
    templates: TemplateDoor


def order(  # noqa: PLR0913 - parts of the server, and the request
    engine: Engine,
    settings: ServerSettings,
    doors: Doors,
    body: ExecuteBody,
    caller: Caller,
    *,
    size: int,
    is_streamed: bool,
    pinned: str | None = None,
) -> Order:
    """Return the order for `body`, which came as `size` bytes.

    `pinned`: id of the image that the tenant's template meant when the order was accepted.
    Raises `UsageError`, or the error of a refusing scan.
    """
    language = registry.find(decode.language(body))
    usual = usual_limits(language, engine.settings.limits)
    limits, clipped = decode.limits(body, usual, settings.most)
    compiling = decode.compile_limits(body, compile_defaults(engine.settings.limits), settings.most)
    is_named = body.limits is not None and body.limits.output_kb is not None
    if is_streamed and not is_named:
        limits = limits.with_changes({"output_kb": settings.stream_output_kb})
    name = body.template
    own = doors.templates.rooted(caller.owner, name, body.image, pinned)
    if own is not None:
        body = body.model_copy(update=own)
    request = decode.request(body, limits, compiling, caller.owner, caller.floor)
    scan = look(request.code, request.language, body.scan)
    cost = Cost.of(limits)
    if language.compile:  # the stages run one after the other, so the larger one is the cost
        cost = cost.or_more(Cost.of(compiling))
    # a smaller body is covered by the least memory that every sandbox promises
    if size >= _LARGE_BYTES:
        cost += Cost(memory_mb=HELD_TIMES * size >> 20)
    shown: dict[str, Any] = {
        "template": name,
        "language": request.language,
        "clipped": clipped,
        "scan": scan,
        "is_streamed": is_streamed,
        "webhook": body.webhook,
        "trust": body.trust,
        "key_id": caller.key_id,
        "template_image": None if own is None else own["image"],
        "cost": [cost.memory_mb, cost.processes, cost.disk_mb, cost.cpus],
    }
    tools = None if body.tools is None else RemoteTools(body.tools, settings)
    request = replace(request, tools=tools)
    engine.check_isolation(request.isolation_request)
    # a request that can never work is refused here, before it is written down
    plan(request, limits)
    engine.outside.checked(request.network, request.trust)
    engine.check_packages(request.packages)
    if own is None:
        doors.images.check(caller.owner, body.image, body.user)
    doors.volumes.check(caller.owner, body.volumes)

    async def work(
        on_event: OnEvent, on_start: OnStart, before_code: BeforeCode | None
    ) -> Execution:
        if body.image is not None:
            await doors.images.wait_here(body.image, is_patient=body.background)
        return await engine.execute(request, on_event, on_start, before_code)

    return Order(caller.owner, caller.request_id, shown, work, cost=cost, tools=tools)


def revived(
    engine: Engine,
    settings: ServerSettings,
    doors: Doors,
    floor: Callable[[str], Floor],
    row: ExecutionRow,
    body: bytes,
) -> Order:
    """Return the order stored as `row` and `body`; `floor` gives a tenant's current floor."""
    key_id = str(row.asked.get("key_id", ""))
    caller = Caller(row.tenant, row.request_id, key_id, floor(row.tenant))
    checked = ExecuteBody.model_validate_json(body)
    is_streamed = bool(row.asked.get("is_streamed"))
    return order(
        engine,
        settings,
        doors,
        checked,
        caller,
        size=len(body),
        is_streamed=is_streamed,
        pinned=row.asked.get("template_image"),
    )

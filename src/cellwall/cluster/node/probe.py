"""What a node answers to the probes of gateways: its name, its state, and its clock."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from cellwall.engine.templates.store import TemplateStore
from cellwall.model.ids import new_id
from cellwall.server.http.endpoint import Answer, Endpoint

if TYPE_CHECKING:
    from cellwall.cluster.node.guard import Heart
    from cellwall.server.core.request import Request

_TEMPLATES_S = 10.0
"""The names of the templates are read from the disk so often at most."""


class Probe:
    """The route of probes; one of a server's run."""

    def __init__(self, heart: Heart) -> None:
        """Nothing is known of the templates yet."""
        self._heart = heart
        self._generation = new_id()
        self._templates: list[str] = []
        self._read_s = 0.0

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The route, which gateways alone reach."""
        return (
            Endpoint(
                "GET",
                "/node",
                self._answer,
                "What the node is, for gateways",
                {200: Answer("Its name and state.")},
                access="public",
                tags=("server",),
            ),
        )

    async def _answer(self, request: Request) -> None:
        self._heart.heard(request.headers.get("cellwall-beat", ""))
        await self._look(request)
        await request.answer(
            {
                "name": request.state.engine.settings.node,
                "generation": self._generation,
                "state": "draining" if request.state.is_stopping else "ready",
                "templates": self._templates,
                "beat": self._heart.beat(),
                "fence_s": self._heart.fence_s,
            }
        )

    async def _look(self, request: Request) -> None:
        now_s = time.monotonic()
        if now_s - self._read_s < _TEMPLATES_S and self._templates:
            return
        self._read_s = now_s
        store = TemplateStore(request.state.engine.state_dir)
        self._templates = await asyncio.to_thread(_names, store)


def _names(store: TemplateStore) -> list[str]:
    return sorted(built.template.name for built in store.list())

"""What a node answers to the probes of gateways: its name, its state, and its clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.model.ids import new_id
from cellwall.server.http.endpoint import Answer, Endpoint

if TYPE_CHECKING:
    from cellwall.cluster.node.guard import Heart
    from cellwall.server.core.request import Request


class Probe:
    """The route of probes; one of a server's run."""

    def __init__(self, heart: Heart) -> None:
        """`heart` tells the guard what gateways have heard."""
        self._heart = heart
        self._generation = new_id()

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
        name = request.state.engine.settings.node
        self._heart.heard(request.headers.get("cellwall-beat", ""))
        if request.headers.get("cellwall-lost", "") == name:
            self._heart.give_up()  # it was away for so long that its loss was told
        await request.answer(
            {
                "name": name,
                "generation": self._generation,
                "state": "draining" if request.state.is_stopping else "ready",
                "beat": self._heart.beat(),
                "fence_s": self._heart.fence_s,
            }
        )

"""What a node answers to the probes of gateways: its name, its state, its clock, and its size."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import cellwall
from cellwall.model.ids import new_id
from cellwall.server.http.endpoint import Answer, Endpoint

if TYPE_CHECKING:
    from cellwall.cluster.node.drain import Drain
    from cellwall.cluster.node.grants import NodeGrants
    from cellwall.cluster.node.guard import Heart
    from cellwall.server.core.request import Request
    from cellwall.server.state import State

_UNHEARD = "unheard"
"""Why the queue of the server before this one waits."""


class Probe:
    """The route of probes; one of a server's run."""

    def __init__(self, heart: Heart, drain: Drain, grants: NodeGrants) -> None:
        """`heart` tells the guard what gateways have heard; `grants`: where they count."""
        self._heart = heart
        self._drain = drain
        self._cores = len(os.sched_getaffinity(0))
        self._grants = grants
        self.generation = new_id()
        """A word that differs for each run."""

    def hold(self, state: State) -> None:
        """Let what an earlier server left in the queue wait until a gateway has heard this one.

        The loss of the name may have been told meanwhile: then the name is used up, and nothing of
        it may begin.
        """
        state.executions.hold(_UNHEARD, is_held=True)

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
        state = request.state
        name = state.engine.settings.node
        is_looking = "cellwall-look" in request.headers  # no gateway: the fence does not count
        beat = request.headers.get("cellwall-beat", "")
        if "cellwall-grants" in request.headers:
            self._grants.begin()
        if self._heart.heard(beat):  # for that gateway the name is not lost
            state.executions.hold(_UNHEARD, is_held=False)
        if not is_looking:
            self._drain.probed(request.headers.get("cellwall-gateway", ""), beat)
        if request.headers.get("cellwall-lost", "") == name:
            self._heart.give_up()  # it was away for so long that its loss was told
        await request.answer(
            {
                "name": name,
                "generation": self.generation,
                "state": "draining" if self._drain.is_draining else "ready",
                "beat": "" if is_looking else self._heart.beat(),
                "fence_s": self._heart.fence_s,
                "left": self._drain.left._asdict(),
                "cores": self._cores,
                "sandboxes": state.sandboxes.live,
                "most_sandboxes": state.settings.most_sandboxes,
                "metrics_port": state.settings.metrics_port,
                "version": cellwall.__version__,
                "time": time.time(),
            }
        )

"""A witness of a tenant's use: asks the nodes of a cluster again and again how much there is."""

from __future__ import annotations

import threading

from kit.cluster.processes import Cluster
from kit.servers import ALICE


class Witness:
    """Looks, for the length of a block, for the most that there is of a quota's use."""

    def __init__(self, made: Cluster, name: str, key: str = ALICE) -> None:
        self._client = made.client(key=key)
        self._name = name
        self.most: float = 0
        self.looks = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Witness:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.is_set():
            answer = self._client.get("/quota")
            if answer.status_code != 200:
                continue  # on a busy machine a node may miss probes
            use = answer.json()["use"]
            self.most, self.looks = max(self.most, use[self._name]), self.looks + 1

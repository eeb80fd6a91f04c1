"""Docker daemon: the container engine's API, called in own threads, with translated errors.

The only file that uses the client library. It knows neither a container's settings (`container`)
nor when one is made (`runtime`). The invariant: a call ends within its time limit, and a daemon
that has gone away is a `RuntimeGone` with that message, whatever the library raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from cellwall.model.errors import CellwallError, HostUnsupported, NotFound, SandboxBroken
from cellwall.runtimes.base import RuntimeGone
from cellwall.runtimes.docker.container import OWNER_LABEL

T = TypeVar("T")
_TIMEOUT_S = 30
_LOAD_TIMEOUT_S = 600
_THREADS = 8
_START_REMEDY = "start it (`systemctl start docker`), or name another one with DOCKER_HOST"
_INSTALL_REMEDY = "run: pip install 'cellwall[docker]'"


class Refused(CellwallError):
    """The daemon refused a request; `status` is its HTTP status."""

    code = "docker"

    def __init__(self, message: str, status: int) -> None:
        """`status` is 404, 409, 500…"""
        super().__init__(message)
        self.status = status


class Daemon:
    """The daemon that DOCKER_HOST names; nothing is connected before the first call."""

    def __init__(self) -> None:
        self.address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        self._client: Any = None
        self._threads: ThreadPoolExecutor | None = None

    async def call(self, step: str, work: Callable[[Any], T]) -> T:
        """Run `work` with the client in a thread; `step` begins the message of an error.

        The thread continues when the caller is cancelled: a caller that makes an object shields the
        call.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="cellwall-docker")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._translated, step, work)

    def _translated(self, step: str, work: Callable[[Any], T]) -> T:
        try:
            self._knock()
        except OSError as error:
            raise self._gone(step) from error
        try:
            import docker.errors
            import requests.exceptions
        except ImportError as error:
            raise HostUnsupported(
                "docker client", f"{step}: {error}", remedy=_INSTALL_REMEDY
            ) from None
        try:
            return work(self._connected())
        except docker.errors.APIError as error:
            status = error.response.status_code if error.response is not None else 0
            said = error.explanation or str(error)
            raise Refused(f"{step}: the Docker daemon says: {str(said)[:1000]}", status) from error
        except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as e:
            raise self._gone(step) from e

    def _gone(self, step: str) -> RuntimeGone:
        return RuntimeGone(
            "docker daemon",
            f"{step}: the Docker daemon at {self.address} does not answer",
            remedy=_START_REMEDY,
        )

    def _knock(self) -> None:
        """Raise OSError unless the socket accepts: the library would leave its own socket open."""
        if self.address.startswith("unix://"):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(_TIMEOUT_S)
                sock.connect(self.address.removeprefix("unix://"))

    def _connected(self) -> Any:  # noqa: ANN401 - the library has no types
        if self._client is None:
            import docker
            from docker.utils import kwargs_from_env

            options = {**kwargs_from_env(), "base_url": self.address}
            self._client = docker.APIClient(version="auto", timeout=_TIMEOUT_S, **options)
        return self._client

    # -- images ------------------------------------------------------------------------------

    async def find_image(self, name: str) -> dict[str, Any] | None:
        """Return the daemon's description of an image, or None."""
        try:
            found = await self.call("look for an image", lambda api: api.inspect_image(name))
            return dict(found)
        except Refused as error:
            if error.status == 404:
                return None
            raise

    async def load_image(self, archive: Path) -> None:
        """Load an archive made by `layers.archive` into the daemon."""

        def work(api: Any) -> None:  # noqa: ANN401
            before, api.timeout = api.timeout, _LOAD_TIMEOUT_S
            try:
                with archive.open("rb") as stream:
                    for _ in api.load_image(stream):
                        pass
            finally:
                api.timeout = before

        await self.call(f"load image {archive.name}", work)

    async def images(self, label: str) -> list[dict[str, Any]]:
        """Return every image that carries `label` (a name, or name=value)."""
        found = await self.call("list images", lambda api: api.images(filters={"label": label}))
        return list(found)

    async def remove_image(self, name: str) -> None:
        """Remove an image by name or id; an absent one is fine."""
        with contextlib.suppress(NotFound):
            await self._unless_gone("remove an image", lambda api: api.remove_image(name))

    # -- containers --------------------------------------------------------------------------

    async def create(self, name: str, body: Mapping[str, Any]) -> str:
        """Create a container and return its id."""
        made = await self.call(
            f"make container {name}",
            lambda api: api.create_container_from_config(dict(body), name),
        )
        return str(made["Id"])

    async def run_attached(self, container: str, first: bytes) -> socket.socket:
        """Attach to a created container, start it, send `first`; return the attached stream."""

        def work(api: Any) -> socket.socket:  # noqa: ANN401
            parameters = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            attached = api.attach_socket(container, parameters)
            sock = socket.socket(fileno=os.dup(attached.fileno()))
            try:
                with contextlib.suppress(AttributeError):
                    attached._response.close()
                attached.close()
                sock.settimeout(_TIMEOUT_S)
                api.start(container)
                sock.sendall(first)
            except BaseException:
                sock.close()
                raise
            return sock

        return await self.call(f"start container {container[:12]}", work)

    async def inspect(self, container: str) -> dict[str, Any]:
        """Return the daemon's description of a container."""
        step = f"look at container {container[:12]}"
        return dict(await self.call(step, lambda api: api.inspect_container(container)))

    async def met_its_memory_limit(self, container: str) -> bool:
        """Report whether the kernel killed in a container, which may be removed already.

        The daemon keeps its last 256 events (its API's `GET /events`).
        """

        def work(api: Any) -> bool:  # noqa: ANN401
            wanted = {"container": container, "event": "oom"}
            return any(api.events(since=1, until=math.ceil(time.time()), filters=wanted))

        return await self.call(f"look at the end of container {container[:12]}", work)

    async def update(self, container: str, limits: Mapping[str, int]) -> None:
        """Change limits of a running container; names as in `HostConfig`."""

        def work(api: Any) -> None:  # noqa: ANN401
            # The library's own call has no parameter for the process limit.
            address = api._url("/containers/{0}/update", container)
            api._raise_for_status(api._post_json(address, data=dict(limits)))

        await self.call(f"change limits of container {container[:12]}", work)

    async def pause(self, container: str) -> None:
        """Stop a container's processes; return when they stand still."""
        await self.call(f"pause container {container[:12]}", lambda api: api.pause(container))

    async def unpause(self, container: str) -> None:
        """Let a paused container's processes go on."""
        await self.call(f"resume container {container[:12]}", lambda api: api.unpause(container))

    async def kill(self, container: str) -> None:
        """Kill a container's processes; an ended container is fine."""
        with contextlib.suppress(NotFound, Refused):
            await self._unless_gone(f"kill {container[:12]}", lambda api: api.kill(container))

    async def remove(self, container: str) -> None:
        """Kill and remove a container, and return when it is gone; an absent one is fine."""
        try:
            await self._unless_gone(
                f"remove container {container[:12]}",
                lambda api: api.remove_container(container, force=True, v=True),
            )
        except NotFound:
            return
        except Refused as error:
            if error.status != 409:  # a removal is already under way: wait for its end
                raise
            await self._wait_removed(container)

    async def _wait_removed(self, container: str) -> None:
        with contextlib.suppress(NotFound):
            await self._unless_gone(
                f"wait for the end of container {container[:12]}",
                lambda api: api.wait(container, timeout=_TIMEOUT_S, condition="removed"),
            )

    async def containers(self) -> list[dict[str, Any]]:
        """Return every container that carries an owner's label, running or not."""
        found = await self.call(
            "list containers",
            lambda api: api.containers(all=True, filters={"label": OWNER_LABEL}),
        )
        return list(found)

    async def _unless_gone(self, step: str, work: Callable[[Any], T]) -> T:
        try:
            return await self.call(step, work)
        except Refused as error:
            if error.status == 404:
                raise NotFound(error.message) from None
            raise

    def close(self) -> None:
        """Close connections and threads."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


def broken(error: Refused) -> SandboxBroken:
    """Return the error of a start that the daemon refused, for the caller."""
    return SandboxBroken(error.message, remedy="look at the daemon's log; `cellwall doctor`")

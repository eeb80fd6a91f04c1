"""MCP over stdio: the process of `cellwall mcp`, one client on stdin and stdout, an engine inside.

The messages are handled by `dialogue`, which is loaded while the first sandbox starts. The
invariants: the real stdout carries only the protocol, all other output goes to stderr; when stdin
ends or a signal comes, every sandbox is destroyed before the process ends, however many signals
come; and importing this module imports neither the SDK nor pydantic, so that the first sandbox
starts before they are there.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cellwall.apps.mcp.library import Embedded
from cellwall.apps.mcp.operators_choice import NOTHING_CHOSEN, OperatorsChoice
from cellwall.apps.mcp.session import Session
from cellwall.apps.mcp.tools.catalog import Catalog
from cellwall.model.errors import CellwallError
from cellwall.model.network import NO_NETWORK
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine
    from cellwall.model.network import NetworkPolicy
    from cellwall.model.secret import Secret
    from cellwall.model.volume import VolumeMount


def run(
    engine_of: Callable[[], Engine], budget_chars: int, chosen: OperatorsChoice = NOTHING_CHOSEN
) -> None:
    """Serve on an event loop of its own; SIGTERM and SIGINT end it like the end of stdin.

    `chosen` holds for every sandbox: the operator's choice and not the client's.
    """

    async def main() -> None:
        engine, network = engine_of(), chosen.network
        # What is no policy, and a secret that reaches no host, end this before a client waits.
        policy = NO_NETWORK if network is None else engine.outside.checked(network)
        mounts = _found(engine, chosen.volumes)
        operators = {
            "network": None if policy.is_none else policy,
            "secrets": _reachable(chosen.secrets, policy) or None,
            "image": chosen.image,
            "user": chosen.user,
            "volumes": mounts or None,
        }
        if chosen.image is not None:
            await _bring(engine, chosen.image, chosen.user)
        catalog = Catalog(engine.state_dir, policy, chosen.image, mounts, chosen.secrets)
        await _serve(engine, budget_chars, catalog, operators)

    asyncio.run(main())


def _found(engine: Engine, volumes: Sequence[str] | None) -> tuple[VolumeMount, ...]:
    """Return volumes that exist; what is none ends this before a client waits."""
    if not volumes:
        return ()
    from cellwall.model.volume import mounts_of

    mounts = mounts_of(volumes)
    engine.volumes.attached(mounts)
    return mounts


def _reachable(secrets: Sequence[Secret], policy: NetworkPolicy) -> Sequence[Secret]:
    """Return secrets whose hosts the policy allows. Raises `UsageError` for others."""
    if secrets:
        from cellwall.model.secret import check_reachable

        check_reachable(secrets, policy)
    return secrets


async def _bring(engine: Engine, image: str, user: str | None) -> None:
    """Bring an image here; what is none ends this before a client waits."""
    try:
        engine.images.let_go((await engine.images.root(image, user)).digest)
    except BaseException:
        await engine.aclose()
        raise


async def _serve(
    engine: Engine, budget_chars: int, catalog: Catalog, operators: Mapping[str, Any]
) -> None:
    session = Session(Embedded(engine, operators), catalog, budget_chars)
    tasks = Tasks()
    if operators["image"] is None:  # one on an image starts without a fork-server of a template
        tasks.spawn(_warm(engine, catalog, operators["network"]))
    talk = asyncio.ensure_future(_talk(session, catalog))
    # A signal ends only the talk: a client also sends one when the end takes too long.
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, talk.cancel)
    await asyncio.wait({talk})
    await tasks.cancel()
    await session.close()
    await engine.aclose()
    with contextlib.suppress(asyncio.CancelledError):
        talk.result()


async def _talk(session: Session, catalog: Catalog) -> None:
    dialogue = await asyncio.to_thread(_loaded)
    with _own_streams() as (source, sink):
        await dialogue.speak(session, catalog, source, sink)


def _loaded() -> Any:  # noqa: ANN401 - a module
    """Import the SDK with the garbage collector off, which would scan its classes repeatedly."""
    gc.disable()
    try:
        return import_module("cellwall.apps.mcp.transport.dialogue")
    finally:
        gc.freeze()
        gc.enable()


async def _warm(engine: Engine, catalog: Catalog, network: object = None) -> None:
    """Start a sandbox before the first call; the call reports an error that occurs here.

    It comes from a quick fork-server; afterwards the full one starts, which sessions need. What the
    pool parked meanwhile would keep the quick one, and what is imported there, until a call takes
    it or for minutes: a second program takes it.
    """
    with contextlib.suppress(CellwallError):
        template = catalog.available().best_template
        await engine.run("0", template=template, network=network)
        runtime = await engine.runtime()
        await runtime.warm(await engine.template(template))
        await engine.run("0", template=template, network=network)


@contextlib.contextmanager
def _own_streams() -> Iterator[tuple[int, int]]:
    """Yield stdin and stdout as new descriptors; 0 becomes empty, and 1 becomes stderr.

    Output by other code, here or in a child, cannot break the protocol.
    """
    source, sink = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    try:
        yield source, sink
    finally:
        os.dup2(source, 0)
        os.dup2(sink, 1)
        os.close(source)
        os.close(sink)

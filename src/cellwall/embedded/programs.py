"""One program in one fresh sandbox, for callers with and without an event loop.

Little is imported here: a first call starts its fork-server, and then imports what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellwall.embedded.default import default

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from cellwall.engine.engine import Engine
    from cellwall.model.execution import Execution
    from cellwall.surface.shared.callbacks import OnEvent
    from cellwall.surface.sync.loop_thread import Put


def run(code: str, *, on_event: OnEvent | None = None, **options: Any) -> Execution:  # noqa: ANN401 - fields of Request
    """Run `code` once in a fresh sandbox and return the execution.

    Options: `language`, `stdin`, `arguments`, `files`, `timeout`, `limits`, `template`, `runtime`,
    `isolation`, `trust`, `start`, `env`, `args`, `collect`, `artifacts`, `compile_options`,
    `compile_limits`, `tools`, `network`, `secrets`, `volumes`; see
    `engine.programs.requests.Request`.
    """

    def work(engine: Engine, put: Put) -> Coroutine[Any, Any, Execution]:
        return engine.run(code, on_event=None if on_event is None else put, **options)

    return default.get(options).call(work, on_event)


async def arun(code: str, *, on_event: OnEvent | None = None, **options: Any) -> Execution:  # noqa: ANN401 - fields of Request
    """Do what `run` does, on the caller's event loop."""
    from cellwall.engine import loop_engines

    return await loop_engines.loop_engine().run(code, on_event=on_event, **options)

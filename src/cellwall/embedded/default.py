"""The process's runner, created on first use, closed at exit, and given up by forked children.

Little is imported here before a first call: see the package.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cellwall.embedded.runner import Runner
    from cellwall.runtimes.base import AheadOfEngine


class _Default:
    """The process's runner, created on first use."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.runner: Runner | None = None
        self.abandoned: list[Runner | None] = []
        """Runners of the parent, kept so that no finaliser of its objects runs in the child."""
        self._begun: AheadOfEngine | None = None
        """What was started ahead of the engine, which ends it; or it was never made."""

    def get(self, options: Mapping[str, Any] | None = None) -> Runner:
        """Return the runner; `options` are those of a first program, if it is for one."""
        runner = self.runner
        if runner is None:
            with self.lock:
                if self.runner is None:
                    self.runner = self._made(options)
                runner = self.runner
        return runner

    def _made(self, options: Mapping[str, Any] | None) -> Runner:
        try:
            if options is not None:
                from cellwall.engine import head_start

                self._begun = head_start.begin(options)  # a fork from here on gives it up
                if self._begun is not None:
                    head_start.go_on(self._begun, options)
            from cellwall.embedded.runner import Runner
            from cellwall.surface.sync.loop_thread import at_exit

            made = Runner.that_answers_first(self._begun)
            at_exit(self.close)
        except BaseException:  # an interrupt, above all
            self._end_begun()
            raise
        return made

    def close(self) -> None:
        runner, self.runner = self.runner, None
        if runner is not None:
            runner.close()
        self._end_begun()

    def _end_begun(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.close()

    def after_fork(self) -> None:
        self.lock = threading.Lock()
        runner, self.runner = self.runner, None
        begun, self._begun = self._begun, None
        if runner is not None:
            self.abandoned.append(runner)
            runner.abandon()
        if begun is not None:
            begun.abandon()
        for name in ("cellwall.engine.loop_engines", "cellwall.runtimes.channel.channel"):
            module = sys.modules.get(name)  # what was not imported has nothing to give up
            if module is not None:
                module.abandon_all()


default = _Default()


def default_runner() -> Runner:
    """Return the runner of this process, started on first use."""
    return default.get()


os.register_at_fork(after_in_child=default.after_fork)

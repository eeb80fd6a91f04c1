"""A quick fork-server whose processes start before the engine that uses it is imported.

For processes that answer once: boot's interpreter starts while this one still reads the caller's
words, and the fork-server imports while this one imports its engine. `ForkServers` takes it over,
and what it does not take is ended. It is told what every other quick one is told (`settings`). The
invariant: nothing fails because of it. Where it cannot be started the engine starts a fork-server
itself, and says what is missing.
"""

from __future__ import annotations

import contextlib
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from cellwall.jail.protocol.fds import ControlClosed
from cellwall.model.errors import CellwallError
from cellwall.runtimes.jail.starting import launch
from cellwall.runtimes.jail.starting.bundle import bundle_in

if TYPE_CHECKING:
    from pathlib import Path

    from cellwall.linux import uid_ranges as uids
    from cellwall.model.template import BuiltTemplate
    from cellwall.runtimes.jail.starting.settings import Ground


_YOUNG_S = 60.0
"""Most seconds from its first process until an engine may take it: its age counts from there on."""


class Begun(NamedTuple):
    """A fork-server that has been told what to build."""

    ground: Ground
    digest: str
    """Digest of its template."""
    settings: launch.Settings
    held: uids.UidRange
    """Ids of its sandboxes."""
    launched: launch.Launched

    def end(self) -> None:
        """End its processes, and then give back their ids."""
        self.launched.end()
        self.held.release()


class HeadStart:
    """One such start, from its first process until an engine takes it, or `close`."""

    def __init__(self, state_dir: Path, *, is_single: bool = True) -> None:
        """Start boot, which waits for `go_on`. Raises OSError, HostUnsupported.

        `is_single`: it is for a program that may be alone in its sandbox.
        """
        self.state_dir = state_dir
        self._at = monotonic()
        self._is_single = is_single
        self._bundle = bundle_in(state_dir)
        self._launched: launch.Launched | None = launch.begin(
            self._bundle, sum(launch.QUICK_WORKERS.values())
        )
        self._begun: Begun | None = None

    def go_on(self, template: BuiltTemplate) -> None:
        """Have it become the fork-server of a template; if it cannot, it ends."""
        try:
            self._go_on(template)
        except (CellwallError, OSError, ControlClosed):
            self.close()

    def _go_on(self, template: BuiltTemplate) -> None:
        from cellwall.jail.fast import switch
        from cellwall.runtimes.jail.starting.settings import (
            Kind,
            found_ground,
            has_single_programs,
            settings_of,
        )

        launched = self._launched
        if launched is None:
            return
        ground = found_ground(self.state_dir)
        is_fast = switch.is_on()
        is_alone = self._is_single and has_single_programs(ground.layout, is_fast=is_fast)
        kind = Kind(
            launch.QUICK_WORKERS,
            is_fast=is_fast,
            is_rehearsed=switch.is_rehearsed(),
            is_quick=True,
            needs_init=not is_alone,
        )
        held = ground.ids.hold()
        settings = settings_of(ground, template, held, self._bundle, kind)
        self._begun, self._launched = Begun(ground, template.digest, settings, held, launched), None
        launch.tell(launched, settings, ground.facts)

    @property
    def is_left(self) -> bool:
        """Whether it is neither taken nor closed."""
        return self._launched is not None or self._begun is not None

    @property
    def ground(self) -> Ground | None:
        """What this host is like, once that is known."""
        return None if self._begun is None else self._begun.ground

    def take(self, digest: str) -> Begun | None:
        """Hand over the fork-server of the template with that digest, once, and if it is young."""
        begun = self._begun
        if begun is None or begun.digest != digest or monotonic() - self._at > _YOUNG_S:
            return None
        self._begun = None
        return begun

    def close(self) -> None:
        """End what nothing has taken."""
        launched, begun = self._left()
        if begun is not None:
            begun.end()
        elif launched is not None:
            launched.end()

    def abandon(self) -> None:
        """Close its descriptors in a forked child; the parent keeps its own."""
        launched, begun = self._left()
        if launched is not None:
            launched.abandon()
        if begun is not None:
            begun.held.release()

    def _left(self) -> tuple[launch.Launched | None, Begun | None]:
        begun, self._begun = self._begun, None
        launched, self._launched = self._launched, None
        return (launched if begun is None else begun.launched), begun


def begin(state_dir: Path, *, is_single: bool) -> HeadStart | None:
    """Begin one; None if this host has no room for it. `is_single` as in `HeadStart`.

    None, too, if there is no state directory: the template store makes it, with its modes.
    """
    if not state_dir.is_dir():
        return None
    with contextlib.suppress(CellwallError, OSError):
        return HeadStart(state_dir, is_single=is_single)
    return None

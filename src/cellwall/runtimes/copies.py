"""Contract of copies: what a runtime offers that can copy live sandboxes (design/0041).

It goes with `base`, the contract of every runtime; `engine.state.copies` asks for it. The
invariant: a copy is a fresh sandbox, confined and compared as any other, before it reads a byte of
an image.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

    from cellwall.model.snapshot import Scope
    from cellwall.model.template import BuiltTemplate
    from cellwall.runtimes.base import RuntimeSandbox, SandboxSpec
    from cellwall.runtimes.lineages import LineageFacts


@dataclass(frozen=True, slots=True)
class SessionImage:
    """A session that was written down to two files: sizes, in bytes, and what is not in them."""

    lineage: str
    """The fork-server that the session came from: only its sandboxes can become this one."""
    pages: int
    """Size of the first part of the memory's file; the others follow it."""
    table: int
    records: int
    strings: int
    memory_bytes: int
    files_bytes: int
    """Size of the archive of the session's files; 0: it had none."""
    left: tuple[str, ...] = ()
    """What the session had and its copies have not, such as sockets and other processes."""
    epoch: str = ""
    """Word with which a guest that was written down whole goes on; empty: only a session was."""
    last_id: int = 0
    """Id of the latest request that a guest that was written down whole has got."""
    boot_id: str = ""
    """Boot id of the session, which its copies keep; empty: it is not known, or not in a file."""

    @property
    def has_session(self) -> bool:
        """Whether there is more than files."""
        return self.memory_bytes > 0


class Source(NamedTuple):
    """A live sandbox that is to be copied, as far as its runtime knows more than its owner."""

    lineage: str
    """The lineage of the images that are made of it."""
    variables: Mapping[str, str] | None = None
    """The variables that its owner gave it, if an earlier server knew them and this one does not;
    said by the sandbox."""


class SessionFiles(NamedTuple):
    """Descriptors of the two files of a session, which have no name."""

    memory: int
    archive: int

    def close(self) -> None:
        """Close both, which removes them once no sandbox has them mapped."""
        for fd in self:
            os.close(fd)


class Budget(Protocol):
    """Bytes of disk for one session."""

    def take(self, count: int) -> bool:
        """Take `count` bytes more; report whether there are so many. Called by threads."""


class SessionCopier(Protocol):
    """The part of a runtime that writes live sessions down and makes fresh sandboxes of them."""

    carries: Scope
    """What a copy has of its source."""

    def spec_of(
        self, spec: SandboxSpec, files: SessionFiles, image: SessionImage, *, reseed: bool
    ) -> SandboxSpec:
        """Return the spec of a fresh sandbox that can become the image's session."""

    async def keep_source(self, sandbox: RuntimeSandbox) -> Source:
        """Keep what images of a sandbox need until `let_lineage_go` of its lineage.

        Raises Conflict, NotFound with the reason if it cannot be copied.
        """

    def keep_lineage(self, lineage: str) -> None:
        """Keep what images of a lineage need until `let_lineage_go`. Raises NotFound."""

    def let_lineage_go(self, lineage: str) -> None:
        """Undo one `keep_lineage`."""

    def new_files(self, folder: Path | None) -> SessionFiles:
        """Make empty ones on the file system of a directory, or in memory. Raises OSError."""

    async def write(
        self,
        sandbox: RuntimeSandbox,
        files: SessionFiles,
        budget: Budget,
        *,
        drop_threads: bool = False,
    ) -> SessionImage:
        """Write an idle session to empty files, as far as `budget` has bytes.

        Threads beside its own are refused, or named as left behind if `drop_threads`.

        The session goes on at once; only then its memory is written. Raises GuestRefused with the
        reason if it cannot be copied, CapacityError if it is larger, SandboxBroken, ChannelLost.
        """

    async def make_ready(self, sandbox: RuntimeSandbox) -> None:
        """Do ahead of time what `become` needs whatever the image is. Raises as `become`."""

    async def become(
        self, sandbox: RuntimeSandbox, files: SessionFiles, image: SessionImage, *, reseed: bool
    ) -> None:
        """Make a fresh sandbox of the image's lineage the session that the files describe.

        Raises GuestRefused, SandboxBroken, ChannelLost; the sandbox must then be destroyed.
        """


@runtime_checkable
class CopiesFiles(SessionCopier, Protocol):
    """A `SessionCopier` that can write down the files of a sandbox without its session.

    Any fresh sandbox of the template becomes such an image: it has no lineage.
    """

    async def source_of_files(self, sandbox: RuntimeSandbox) -> Source:
        """Return what `keep_source` would, of an image without a session; it keeps nothing.

        Raises Conflict, SandboxBroken with the reason if it cannot be copied.
        """

    async def stand_still(self, sandbox: RuntimeSandbox) -> None:
        """Stop every program in it, until `go_on`. Raises SandboxBroken, ChannelLost."""

    def go_on(self, sandbox: RuntimeSandbox) -> None:
        """Let its programs go on, if it has not ended."""

    async def write_files(
        self, sandbox: RuntimeSandbox, files: SessionFiles, budget: Budget
    ) -> SessionImage:
        """Write the files of a sandbox that stands still, as far as `budget` has bytes.

        Raises as `write`.
        """


@runtime_checkable
class StoresLineages(SessionCopier, Protocol):
    """A `SessionCopier` whose images can become sessions in another engine, too."""

    async def facts_of(self, lineage: str) -> LineageFacts:
        """Return what images of a lineage need there. Raises HostUnsupported if they cannot."""

    async def adopt_lineage(
        self, lineage: str, template: BuiltTemplate, facts: LineageFacts
    ) -> None:
        """Know a lineage by a name that begins with `STORED`, and keep it until `let_lineage_go`.

        Owns the descriptor of its base if it returns. Raises Conflict if it cannot go on here.
        """


@runtime_checkable
class LaysOutAlike(Protocol):
    """A runtime that can lay out the memory of sessions alike in every engine."""

    are_alike: bool
    """Whether it does; set before anything is started."""


@runtime_checkable
class CopiesSessions(Protocol):
    """A runtime that can copy live sessions."""

    @property
    def copier(self) -> SessionCopier:
        """What does it."""

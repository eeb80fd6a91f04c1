"""Saved tree: a whole sandbox that was written down, and its files, as engines pass them on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from cellwall.runtimes.copies import SessionFiles


class SavedTree(NamedTuple):
    """A whole sandbox that was written down, as the start of a copy needs it."""

    image: tuple[int, ...]
    """Descriptors of the files with the sandbox's kernel and memory; the caller's."""
    archive: int
    """Descriptor of the file with the work area; the caller's."""
    lineage: str
    """What the copy's configuration has to be."""
    epoch: str
    last_id: int
    reseed: bool


class TreeFiles(SessionFiles):
    """The files of a whole sandbox: a kernel may write itself to more than one."""

    more: tuple[int, ...] = ()
    """Descriptors of the image's files besides `memory`, with pages for the most part."""

    @property
    def image(self) -> tuple[int, ...]:
        """Descriptors of the image's files, in the order in which they were written."""
        return (self.memory, *self.more)

    def put(self, image: Sequence[int]) -> None:
        """Own the files of an image; the first one takes the place of `memory`."""
        os.dup2(image[0], self.memory, inheritable=False)
        os.close(image[0])
        self.more = tuple(image[1:])

    def close(self) -> None:
        """Close all of them."""
        super().close()
        for fd in self.more:
            os.close(fd)

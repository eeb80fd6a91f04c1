"""The attack corpus on the root of an image, on gVisor; see `image_corpus`."""

from __future__ import annotations

import pytest

from attack.images import image_corpus

pytestmark = [pytest.mark.attack, pytest.mark.root]
WALL = "gvisor"

arena = image_corpus.arena
bait = image_corpus.bait
canary = image_corpus.canary
deviation = image_corpus.deviation
library = image_corpus.library
tried = image_corpus.tried

globals().update(image_corpus.tests_on(WALL))

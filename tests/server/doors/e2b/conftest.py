"""One server with the E2B door for all tests here."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kit.server.e2b_doors import E2BServer, e2b_server


@pytest.fixture(scope="package")
def e2b() -> Iterator[E2BServer]:
    os.environ.setdefault("NO_PROXY", "127.0.0.1,localhost")  # the SDK asks proxies for loopback
    with e2b_server() as made:
        yield made

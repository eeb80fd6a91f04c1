"""`make upstream E2B=… INTERPRETER=…`, as root: E2B's own suites of its SDKs against the door.

Both name checkouts of the public repositories: of the SDKs, and of the code interpreter. The Python
suites are installed beside this clone's environment, in .tools/upstream, those in JavaScript in
copies of their folders; nothing is written to a checkout. Only tests that ask a server count: those
that mock one are left out. What fails and stands in `left.toml` has its reason there; the exit code
is 0 only if nothing else failed, and nothing that stands there passed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kit.server.e2b_templates import workshop
from kit.servers import MANAGER
from upstream import suites
from upstream.left import compared

_OPTIONS = "public_ports = true\n"
_BUILDS = 8
_IMAGES = ("ubuntu:22.04",)
"""Images that the suites name; a small one of this machine's programs stands for each."""


def main() -> int:
    """Run what is asked for and print what came of it."""
    parser = argparse.ArgumentParser(prog="upstream", description=__doc__)
    parser.add_argument("--e2b", type=Path, help="checkout of E2B's SDKs")
    parser.add_argument("--interpreter", type=Path, help="checkout of E2B's code interpreter")
    parser.add_argument("-k", default="", help="only tests with this in their name (Python)")
    asked = parser.parse_args()
    found = suites.found(asked.e2b, asked.interpreter)
    if not found:
        parser.error("name at least one checkout")
    is_good = True
    for suite in found:
        print(f"{suite.name}: installing", flush=True)
        suite.install()
        with workshop(_OPTIONS, builds=_BUILDS, also=_IMAGES, most_builds=_BUILDS) as shop:
            print(f"{suite.name}: running", flush=True)
            outcomes = suite.run(shop.e2b.variables(MANAGER), asked.k)
        verdict = compared(suite.name, outcomes, is_part=bool(asked.k))
        print(verdict.text, flush=True)
        is_good = is_good and verdict.is_good
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())

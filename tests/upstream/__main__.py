"""`make upstream E2B=… INTERPRETER=…`, as root: E2B's own suites of its SDKs against the door.

Both name checkouts of the public repositories: of the SDKs, and of the code interpreter. The Python
suites are installed beside this clone's environment, in .tools/upstream, those in JavaScript in
copies of their folders; nothing is written to a checkout. They run in a small Internet of ours
(`kit.outside.internet`): clients are told a domain and a key and nothing else, as those of E2B's
own service. Only tests that ask a server count: those that mock one are left out. What fails and
stands in `left.toml` has its reason there; the exit code is 0 only if nothing else failed, and
nothing that stands there passed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cellwall.server.auth.keys import in_e2b_form
from kit.outside import internet
from kit.outside.internet import AUTHORITIES, Site
from kit.server.e2b_templates import workshop
from kit.servers import MANAGER
from upstream import echo, suites
from upstream.left import compared

_DOMAIN, _DOOR = "boxes.test", "9.9.9.9"
"""Name below which the door is, and the address that it leads to."""
_SITES = (
    Site("1.1.1.1", 301),
    Site("8.8.8.8", 302),
    Site("142.250.0.1", 204, ("connectivitycheck.gstatic.com",)),
)
"""Sites that the suites ask, with what each answers them on the Internet."""
_OPTIONS = f"public_ports = true\ndomain = '{_DOMAIN}'\nurl = 'https://api.{_DOMAIN}'\n"
_BUILDS = 8
_IMAGES = ("ubuntu:22.04",)
"""Images that the suites name; a small one of this machine's programs stands for each."""


def main() -> int:
    """Run what is asked for and print what came of it."""
    parser = argparse.ArgumentParser(prog="upstream", description=__doc__)
    parser.add_argument("--e2b", type=Path, help="checkout of E2B's SDKs")
    parser.add_argument("--interpreter", type=Path, help="checkout of E2B's code interpreter")
    parser.add_argument("-k", default="", help="only tests with this in their name")
    asked = parser.parse_args()
    found = suites.found(asked.e2b, asked.interpreter)
    if not found:
        parser.error("name at least one checkout")
    for suite in found:
        print(f"{suite.name}: installing", flush=True)
        suite.install()
    is_good = True
    with tempfile.TemporaryDirectory() as folder:
        internet.enter(Path(folder), [_DOOR, *(site.address for site in _SITES)])
        for suite in found:
            print(f"{suite.name}: running", flush=True)
            with _door(Path(folder)) as variables:
                outcomes = suite.run(variables, asked.k)
            verdict = compared(suite.name, outcomes, is_part=bool(asked.k))
            print(verdict.text, flush=True)
            is_good = is_good and verdict.is_good
    return 0 if is_good else 1


@contextmanager
def _door(folder: Path) -> Iterator[dict[str, str]]:
    """Run a server with the door; yield the variables of its clients."""
    given: dict[str, Any] = {"allowed_hosts": [f"*.{_DOMAIN}"], "port_headers": ["x-test-token"]}
    with workshop(_OPTIONS, builds=_BUILDS, also=_IMAGES, most_builds=_BUILDS, **given) as shop:
        port = int(shop.e2b.address.rpartition(":")[2])
        echo.build(shop, shop.sdk(MANAGER))
        with internet.serving(folder, _SITES, _DOMAIN, _DOOR, port):
            yield {
                "E2B_DOMAIN": _DOMAIN,
                "E2B_API_KEY": in_e2b_form(MANAGER),
                "SSL_CERT_FILE": str(AUTHORITIES),
                "NODE_EXTRA_CA_CERTS": str(AUTHORITIES),
            }


if __name__ == "__main__":
    sys.exit(main())

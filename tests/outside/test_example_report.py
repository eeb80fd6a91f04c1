"""examples/report_from_a_site.py as it is, on each runtime, against a site and a registry here."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from os import environ
from pathlib import Path

import pytest

from conftest import ground
from kit.outside.servers import WebServer
from kit.outside.world import LISTED, World
from kit.packages import registries
from kit.packages.made import wheel
from kit.places import ROOT

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

TOKEN = "site_thisIsTheTokenThatNoSandboxSees0123"
_TABLE = (
    "<table><tr><th>city</th><th>sales</th></tr>"
    "<tr><td>北京</td><td>1200</td></tr><tr><td>上海</td><td>1500</td></tr></table>"
)
_HUMANIZE = "def intcomma(number):\n    return f'{number:,}'\n"
_OTHERS = [pytest.param(name, marks=pytest.mark.again) for name in ("gvisor", "docker")]


class Site(WebServer):
    """A site that gives its page to requests with the token."""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return the page, or 401."""
        _, _, fields = self.requests[-1]
        if fields.get("Authorization") != f"Bearer {TOKEN}":
            return 401, {}, b"who are you?"
        return 200, {"Content-Type": "text/html; charset=utf-8"}, _TABLE.encode()


@pytest.fixture
def site(outside: World) -> Iterator[Site]:
    with Site(outside.tls) as made:
        yield made


@pytest.mark.parametrize("runtime", ["jail", *_OTHERS])
def test_report(
    outside: World, site: Site, runtime: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ground(request, runtime)  # skips where it cannot be had
    authority = tmp_path / "authority.pem"
    authority.write_text(outside.authority, encoding="ascii")
    with registries.running() as registry:
        registry.add(wheel("humanize", "9.0", body=_HUMANIZE))
        upstream = f'[{{"registry": "pypi", "url": "{registry.url("/simple")}"}}]'
        done = subprocess.run(
            [
                *(sys.executable, str(ROOT / "examples" / "report_from_a_site.py")),
                *(f"https://web.test:{site.port}/sales", runtime),
            ],
            env={
                **environ,
                "SITE_TOKEN": TOKEN,
                "CELLWALL_NETWORK_ADDRESSES": ",".join(LISTED),
                "CELLWALL_NAME_SERVERS": outside.names.address,
                "CELLWALL_NETWORK_AUTHORITIES": str(authority),
                "CELLWALL_PACKAGE_REGISTRIES": upstream,
            },
            cwd=tmp_path,
            check=False,
            capture_output=True,
            encoding="utf-8",
            timeout=150,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"on {runtime}, level ")
    assert lines[1].startswith("2 cities, 2,700 in all, read with ")
    assert lines[2].startswith("elsewhere: ")
    assert lines[3] == "<h1>2,700</h1><img src=report.png>"
    assert lines[4].startswith("the token is in: nothing (")
    # The control: what is there is found. gVisor shows no memory of other processes inside; that is
    # looked at from the host (`test_secrets`).
    assert "/environ" in lines[5]
    assert "/mem" in lines[5] or runtime == "gvisor"
    assert all(count > 5 for count in map(int, re.findall(r"\d+(?= (?:files|others))", lines[4])))
    records = [line.split() for line in lines[7:]]
    assert ["package", "humanize-9.0-py3-none-any.whl", "packages"] in records
    assert {each[0] for each in records if "elsewhere.example.org" in each[1]} == {"refused"}
    assert "SITE_TOKEN" in [each[-1] for each in records if f"web.test:{site.port}" in each[1]]
    assert TOKEN not in done.stdout + done.stderr
    picture = (tmp_path / "report.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert [fields["Authorization"] for _, _, fields in site.requests] == [f"Bearer {TOKEN}"]

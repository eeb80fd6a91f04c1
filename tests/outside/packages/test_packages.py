"""A sandbox installs packages through the broker and reaches nothing else; on every runtime.

The registry is one of the test's on loopback, and the witness of what left the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from cellwall import CellwallError, EngineSettings, Sandbox
from cellwall.engine.parts import package_registries
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.model.errors import UsageError
from cellwall.model.secret import Secret
from conftest import ground, require_capability, require_command
from kit.outside.world import World, world
from kit.packages import registries
from kit.packages.made import tarball, wheel
from kit.packages.registries import Registry

pytestmark = pytest.mark.root

_NO_SUCH = "there is no Python package no-such-thing: check the spelling"
_GATE = "packages.cellwall.internal"


@dataclass
class Packages:
    """A world whose engine asks the test's registry."""

    world: World
    registry: Registry

    def sandbox(self, network: object = "packages", **options: Any) -> Sandbox:
        return self.world.sandbox(network, **options)


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with registries.running() as made:
        made.add(wheel("alpha", "1.0", requires=("beta>=2",)))
        made.add(wheel("beta", "2.0"))
        made.add(wheel("beta", "1.0"))
        made.add(wheel("denied", "1.0"))
        made.add(wheel("tabulate", "99.0"))
        made.add_npm(tarball("left", "1.0.0"))
        yield made


@pytest.fixture(scope="module", params=["jail", "gvisor", "docker"])
def packages(request: pytest.FixtureRequest, registry: Registry) -> Iterator[Packages]:
    settings = {
        "network": "allow",
        "packages": {"registries": ["pypi", "npm"], "deny": ["denied"]},
        "package_registries": (
            {"registry": "pypi", "url": registry.url("/simple")},
            {"registry": "npm", "url": registry.url("/npm")},
        ),
    }
    more = ground(request, request.param)
    if request.param == "docker":
        more["templates"] = TemplateStore(state_dir())  # a bare one has no installer
    with world(request.param, settings=settings, **more) as made:
        yield Packages(made, registry)


def _ran(sandbox: Sandbox, command: str) -> str:
    done = sandbox.commands.run(command, merge_stderr=True)
    assert done.outcome.verdict == "ok", done.stdout
    return done.stdout


def test_a_live_session_imports_what_its_caller_installs(packages: Packages) -> None:
    with packages.sandbox(None if packages.world.runtime == "jail" else "packages") as sandbox:
        before = sandbox.network
        assert sandbox.run("import alpha").error is not None
        made = sandbox.install(["alpha"])
        assert sorted(made.packages) == ["alpha==1.0", "beta==2.0"]
        done = sandbox.run("import alpha, beta; print(alpha.version, beta.version)")
        assert done.stdout == "1.0 2.0\n"
        assert sandbox.install(["beta"]).packages == ()
        assert sandbox.network == before
        named = {each["name"] for each in sandbox.network_log() if each["event"] == "package"}
    assert named == {"alpha-1.0-py3-none-any.whl", "beta-2.0-py3-none-any.whl"}


def test_packages_of_a_sandbox_and_of_one_run(packages: Packages) -> None:
    code = "import alpha; print(alpha.version)"
    with packages.sandbox(None, packages=["alpha"]) as sandbox:
        assert sandbox.run(code).stdout == "1.0\n"
        # Its caller's installation does not allow the programs to install by themselves.
        assert sandbox.run("!pip install denied", timeout=20).stdout
        assert sandbox.commands.run(f"getent hosts {_GATE}").exit_code == 2
    assert packages.world.run(code, None, packages=["alpha"]) == "1.0\n"


def test_what_cannot_be_installed_is_an_error_with_the_reason(packages: Packages) -> None:
    with packages.sandbox(None, packages=["beta"]) as sandbox:
        for name, why in (("no-such-thing", "not found"), ("denied", "denied here")):
            with pytest.raises(UsageError, match=why):
                sandbox.install([name])
        assert sandbox.run("import beta; print(beta.version)").stdout == "2.0\n"
    with pytest.raises(UsageError, match="not found"):
        packages.sandbox(None, packages=["no-such-thing"])
    with pytest.raises(UsageError, match="not found"):
        packages.world.run("print(1)", None, packages=["no-such-thing"])


@pytest.mark.parametrize(
    "line", ["-r /etc/passwd", "--index-url=http://x", "git+https://x/y", "file:///x", "./x.whl"]
)
def test_no_line_becomes_an_option_or_a_place(packages: Packages, line: str) -> None:
    with pytest.raises(UsageError, match="packages: "):
        packages.sandbox(None, packages=[line])


def test_programs_inside_install_by_themselves(packages: Packages) -> None:
    with packages.sandbox() as sandbox:
        assert "Successfully installed alpha-1.0 beta-2.0" in _ran(sandbox, "pip install alpha")
        assert _ran(sandbox, "python -c 'import alpha; print(alpha.version)'") == "1.0\n"
        assert sandbox.run("import beta; print(beta.version)").stdout == "2.0\n"
        assert "- beta==2.0" in _ran(sandbox, "uv pip install beta==1.0")
        done = sandbox.commands.run("pip install no-such-thing")
        assert _NO_SUCH in done.stderr
        cell = "%pip install -q tabulate==99.0\nimport tabulate; tabulate.version"
        assert sandbox.run(cell).text == "'99.0'"


# An image for Docker has what dpkg lists of npm, which is less than an npm that upgraded itself.
@pytest.mark.parametrize("packages", ["jail", "gvisor"], indirect=True)
def test_npm_inside(packages: Packages) -> None:
    require_command("npm")
    with packages.sandbox(limits={"memory_mb": 1024}) as sandbox:
        _ran(sandbox, "npm install left && test -d node_modules/left")
        done = sandbox.commands.run("npm install no-such-thing", merge_stderr=True)
        assert "there is no npm package no-such-thing" in done.stdout


def test_the_broker_is_the_only_thing_that_is_reached(packages: Packages) -> None:
    """General egress stays off: neither names nor addresses, nor a request through the broker."""
    port, asked = packages.world.web.port, len(packages.world.web.requests)
    tries = [
        f"http://web.test:{port}/",
        f"http://127.0.1.1:{port}/",
        packages.registry.url("/simple/alpha/"),
        f"http://{_GATE}:8080/",
        f"https://{_GATE}/",
        f"http://{_GATE}/http://web.test:{port}/",
        f"http://{_GATE}/files/../../etc/passwd",
    ]
    code = f"""
import json, urllib.request
def get(url):
    try:
        return urllib.request.urlopen(url, timeout=5).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        return str(error)
urls = {tries!r}
print(json.dumps([get(url) for url in urls] + [get("http://{_GATE}/simple/alpha/")]))
"""
    with packages.sandbox() as sandbox:
        *others, control = json.loads(sandbox.run(code).stdout)
    assert control == 200
    assert 200 not in others
    assert len(packages.world.web.requests) == asked
    assert packages.world.host.connections == 0


def test_the_http_proxy_leads_to_no_broker(registry: Registry) -> None:
    """It would ask for another name's file with the broker's rights."""
    require_command("curl")
    settings = {"package_registries": ({"registry": "pypi", "url": registry.url("/simple")},)}
    with world("jail", settings=settings) as made, made.sandbox("packages") as sandbox:
        page = f"http://{_GATE}/simple/alpha/"
        assert sandbox.commands.run(f"curl -sf {page}").ok
        proxied = sandbox.commands.run(f"curl -sx http://127.0.0.1:3128 {page}")
        assert "refused: " in proxied.stdout


def test_a_policy_takes_effect_at_once(packages: Packages) -> None:
    with packages.sandbox({"packages": {"registries": ["pypi"], "allow": ["beta"]}}) as sandbox:
        assert "not on the list" in sandbox.commands.run("pip install alpha").stderr
        _ran(sandbox, "pip install beta")
        sandbox.set_network({"packages": True})
        _ran(sandbox, "pip install alpha")
        assert "denied here" in sandbox.commands.run("pip install denied").stderr
        sandbox.set_network("none")
        assert sandbox.commands.run(f"getent hosts {_GATE}").exit_code == 2


def test_a_name_that_is_on_no_list_reaches_no_registry(packages: Packages) -> None:
    """A program asks by itself for names that it made up; the registry's log is the witness."""
    names = [f"/{kind}/what-it-knows-{n}" for n in range(3) for kind in ("simple", "npm")]
    ask = (
        "import urllib.error, urllib.request\n"
        "def get(path):\n"
        f"    try: return urllib.request.urlopen('http://{_GATE}' + path).status\n"
        "    except urllib.error.HTTPError as error: return error.code\n"
        f"print(*[get(path) for path in {[*names, '/simple/denied/']!r}])\n"
    )
    asked = packages.registry.asked
    lists = {"registries": ["pypi", "npm"], "allow": ["alpha", "beta"]}
    with packages.sandbox({"packages": lists}) as sandbox:
        before = len(asked)
        assert sandbox.run(ask).stdout == "451 451 451 451 451 451 451\n"
        assert "not on the list" in sandbox.commands.run("pip install what-it-knows").stderr
        assert [each.path for each in asked[before:]] == []
        sandbox.set_network({"packages": True})
        assert sandbox.run(ask).stdout == "404 451 404 451 404 451 451\n"
        paths = {each.path.rstrip("/") for each in asked[before:]}
    assert paths == set(names), "the control: all of them, and not what the operator denies"


GET_PAGES = f"""
import http.client
link = http.client.HTTPConnection("{_GATE}", timeout=20)
def get(count):
    for _ in range(count):
        link.request("GET", "/simple/alpha/")
        assert link.getresponse().read()
try:
    get(COUNT)
    print("all")
except (OSError, http.client.HTTPException):
    print("ended")
"""


def test_limits_of_the_network_hold_for_packages(packages: Packages) -> None:
    """The bytes count, and a sandbox that has moved all that it may gets no more of a file."""
    with packages.sandbox({"packages": True, "transfer_mb": 1}) as sandbox:
        before = sandbox.network_usage()
        assert sandbox.run(GET_PAGES.replace("COUNT", "1")).stdout == "all\n"
        after = sandbox.network_usage()
        assert after.sent_bytes > before.sent_bytes
        assert after.received_bytes > before.received_bytes
        assert sandbox.run(GET_PAGES.replace("COUNT", "8000")).stdout == "ended\n"
        moved = sandbox.network_usage()
        assert any("its limit" in record["rule"] for record in sandbox.network_log())
        assert 1 << 20 <= moved.sent_bytes + moved.received_bytes < (1 << 20) + 300_000


@pytest.mark.parametrize("fails", [False, True], ids=["control", "fails"])
def test_lent_packages_that_cannot_be_taken_back_end_the_sandbox(
    packages: Packages, fails: bool
) -> None:
    async def broken(*_: object) -> None:
        raise OSError("the proxy could not be told")

    async def lend(engine: Any, sandbox_id: str) -> bool:
        live, proxy = engine.sandbox(sandbox_id).live, engine.outside.proxy
        told = proxy.set_policy
        try:
            async with engine.outside.installing(live, ""):
                if fails:
                    proxy.set_policy = broken
        finally:
            proxy.set_policy = told
        return bool(live.is_alive)

    with packages.sandbox(["web.test"]) as sandbox:
        lent = packages.world.runner.call(lambda engine, _put: lend(engine, sandbox.id))
        assert lent is not fails


def test_the_broker_is_back_after_the_proxy_has_ended(packages: Packages) -> None:
    with packages.sandbox() as sandbox:
        _ran(sandbox, "pip install beta==1.0")
        first = _proxy(packages.world)
        os.kill(first, signal.SIGKILL)
        until = time.monotonic() + 30
        while _proxy(packages.world) in (None, first) and time.monotonic() < until:
            time.sleep(0.05)
        _ran(sandbox, "uv pip install --no-cache beta==2.0")


def _proxy(made: World) -> int:
    async def pid(engine: object) -> int:
        return engine.outside.proxy.pid  # type: ignore[attr-defined,no-any-return]

    return made.runner.call(lambda engine, _put: pid(engine))


def test_what_the_operator_turns_off_is_refused(registry: Registry) -> None:
    for settings in ({"packages": False}, {"packages": {"registries": ["npm"]}}):
        with world("jail", settings=settings) as made:
            asked: list[dict[str, Any]] = [{"network": {"packages": {"registries": ["pypi"]}}}]
            if not settings["packages"]:
                asked += [{"network": "packages"}, {"network": None, "packages": ["beta"]}]
            for options in asked:
                with pytest.raises(CellwallError, match="packages"):
                    made.sandbox(**options)


def test_packages_and_a_secret_go_together(packages: Packages) -> None:
    """The broker is reached beside opened TLS, and the value still goes to its host."""
    port, value = packages.world.tls_web.port, "a-value-beside-packages"
    secret = Secret("KEY", value, hosts=[f"web.test:{port}"])
    rules = {"allow": [f"web.test:{port}"], "packages": True}
    code = (
        "import alpha, os, urllib.request\n"
        f"print(urllib.request.urlopen('https://web.test:{port}/?' + os.environ['KEY']).status)"
    )
    with packages.sandbox(rules, secrets=[secret], packages=["alpha"]) as sandbox:
        done = sandbox.run(code)
        assert done.stdout == "200\n", (done.stderr, done.error)
    assert packages.world.tls_web.requests[-1][1] == f"/?{value}"


def test_the_registries_of_this_machine() -> None:
    """Real packages from wherever pip and npm of this machine get theirs."""
    index = asyncio.run(package_registries.find(EngineSettings())).upstreams
    require_capability("package registries over http", len(index) == 2, "configure pip and npm")
    # A machine behind a mirror has its registries at private addresses.
    everywhere = ("0.0.0.0/0", "::/0")
    with world("jail", settings={"network_addresses": everywhere}) as made:
        limits = {"memory_mb": 1024, "processes": 200}
        with made.sandbox("packages", limits=limits) as sandbox:
            assert "requests-toolbelt==1.0.0" in sandbox.install(["requests-toolbelt"]).packages
            done = sandbox.run("import requests_toolbelt; print(requests_toolbelt.__version__)")
            assert done.stdout == "1.0.0\n"
            _ran(sandbox, "npm install left-pad@1.3.0 && test -d node_modules/left-pad")
            with pytest.raises(UsageError, match="not found in the package registry"):
                sandbox.install(["cellwall-no-such-package"])

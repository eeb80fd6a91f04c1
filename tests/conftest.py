"""Capabilities of the machine: a test that lacks one is skipped here and fails in CI.

No event loop and no shared state; a test that hangs is ended after 60 s by pytest-timeout.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cellwall.jail.fast import switch
from cellwall.linux.cgroups import hierarchies
from cellwall.runtimes.jail.runtime import JailRuntime
from kit.jail.rehearsing import UNREHEARSED, rehearsing

if TYPE_CHECKING:
    from cellwall.testing.bare import BareTemplates
    from kit.arena import Arena
    from kit.docker_daemon import Daemon
    from kit.images.volume_walls import Wall
    from kit.outside.world import World
    from kit.postgres_server import Postgres
    from kit.server.e2b_doors import E2BServer
    from kit.servers import Server

Require = Callable[[str, bool, str], None]

# A shell starts what it puts in the background with SIGINT ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Most engines and servers of tests have few sandboxes, and end after one test: for them a rehearsal
# would be most of their work. `rehearsed` is for the others.
os.environ.setdefault(switch.VARIABLE, UNREHEARSED)

LEFT = pytest.StashKey[int]()
"""Number of tests that are other runs', by their shares."""
_IN_CI = bool(os.environ.get("CELLWALL_REQUIRE_CAPABILITIES"))


def require_capability(capability: str, available: bool, reason: str) -> None:
    """Skip the running test when `available` is false; fail it where everything is required."""
    if available:
        return
    if _IN_CI:
        pytest.fail(f"capability {capability} is missing in CI: {reason}", pytrace=False)
    pytest.skip(f"needs {capability}: {reason}")


_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where sandboxes look for commands."""
_PACKAGES = {
    "busybox": "busybox-static",
    "cp": "coreutils",
    "gcc": "gcc libc6-dev",
    "go": "golang-go",
    "java": "default-jdk-headless",
    "javac": "default-jdk-headless",
    "node": "nodejs",
    "npx": "npm",
    "pip": "python3-pip",
    "ps": "procps",
}
"""Of Debian; a command without an entry is its package's name."""


def require_command(command: str) -> str:
    """Return the path of a command of the host that sandboxes see as well. Skips without it."""
    found = shutil.which(command, path=_PATH)
    remedy = f"run: apt-get install {_PACKAGES.get(command, command)}"
    require_capability(command, found is not None, remedy)
    return found or ""


@pytest.fixture(scope="session")
def require() -> Require:
    """`require(capability, available, reason)`: skip locally, fail in CI."""
    return require_capability


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder of the host that everybody may read: only a sandbox's wall protects it.

    Not below `tmp_path`: each pytest that starts here shuts the folder above everybody's.
    """
    with tempfile.TemporaryDirectory(prefix="bait-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def rehearsed() -> Iterator[None]:
    """Engines and servers that start meanwhile rehearse, as those of users do."""
    with rehearsing():
        yield


@pytest.fixture(scope="module", autouse=True)
def _library_engine_ends_with_its_module() -> Iterator[None]:
    """What it has ready it gives up after ten minutes, in the middle of another module's counts."""
    yield
    embedded = sys.modules.get("cellwall.embedded")
    if embedded is not None:
        embedded._default.close()


@pytest.fixture(scope="session")
def arena() -> Iterator[Arena]:
    """The attack tests' engine, with its fork-server started.

    Here and not in a conftest of their own: two modules of that name would hide each other.
    """
    from kit.arena import Arena

    made = Arena()
    yield made
    made.close()


@pytest.fixture(scope="session")
def gvisor_arena() -> Iterator[Arena]:
    """The same on gVisor."""
    from cellwall.model.errors import HostUnsupported
    from kit.arena import Arena

    try:
        made = Arena(runtime="gvisor", isolation="kernel")
    except HostUnsupported as error:
        require_capability("gvisor", False, f"{error}; {error.remedy}")
        raise
    yield made
    made.close()


@pytest.fixture(scope="session")
def image_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of an image with this machine's Python and shell, one for all who ask."""
    from kit.images.host_tree import shared_tree

    return shared_tree(tmp_path_factory)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A real server with the keys of two tenants."""
    from kit.arena import DAY_S
    from kit.servers import running

    with running(f"[engine]\npool_idle_s = {DAY_S}\n") as made:
        yield made


@pytest.fixture(scope="session")
def e2b() -> Iterator[E2BServer]:
    """A real server with the door for E2B's clients."""
    from kit.server.e2b_doors import e2b_server

    os.environ.setdefault("NO_PROXY", "127.0.0.1,localhost")  # the SDK asks proxies for loopback
    with e2b_server("", "", allowed_hosts=["*.localhost"]) as made:
        yield made


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server of our own."""
    from kit.postgres_server import programs, running

    found = programs()
    require_capability("postgresql", found is not None, "run: apt-get install postgresql")
    assert found is not None
    with running(found) as made:
        yield made


@pytest.fixture(scope="session")
def docker_daemon() -> Iterator[Daemon]:
    """A container engine of our own; DOCKER_HOST names it until the session ends."""
    from kit.docker_daemon import missing, running

    require_capability("a container engine", not missing(), missing())
    with running() as made:
        yield made


@pytest.fixture(scope="session")
def docker_ground(
    docker_daemon: Daemon, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, BareTemplates]:
    """A state directory and a bare template: one image for all tests of containers."""
    from cellwall.testing.bare import BareTemplates

    place = tmp_path_factory.mktemp("containers")
    return place / "state", BareTemplates(place / "env")


@pytest.fixture(scope="module")
def outside() -> Iterator[World]:
    """An engine whose outside is loopback, on the jail.

    Of one module: what it has parked would be counted by tests of other modules.
    """
    from kit.outside.world import world

    with world() as made:
        yield made


_OTHERS = [pytest.param(name, marks=pytest.mark.again) for name in ("gvisor", "docker")]


@pytest.fixture(scope="module", params=["jail", *_OTHERS])
def any_outside(request: pytest.FixtureRequest) -> Iterator[World]:
    """The same on each runtime that can enforce a network policy."""
    from kit.outside.world import world

    if request.param == "jail":
        yield request.getfixturevalue("outside")
        return
    with world(request.param, **ground(request, request.param)) as made:
        yield made


def ground(request: pytest.FixtureRequest, runtime: str) -> dict[str, Any]:
    """Return what a `kit.outside.world`, or another engine of its own, on a runtime needs."""
    if runtime == "gvisor":
        require_capability("runsc", shutil.which("runsc") is not None, "apt-get install runsc")
        return {"isolation": "kernel"}
    if runtime == "docker":
        state, templates = request.getfixturevalue("docker_ground")
        return {"directory": state, "templates": templates}
    return {}


@pytest.fixture(scope="session")
def volume_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image's root for sandboxes with volumes, made of this machine's files."""
    from kit.images.host_tree import host_tree

    return host_tree(tmp_path_factory.mktemp("image"))


_PLACES = (
    *(f"jail-{root}" for root in ("template", "image")),
    *(
        pytest.param(f"{name}-{root}", marks=pytest.mark.again)
        for name in ("gvisor", "docker")
        for root in ("template", "image")
    ),
)


@pytest.fixture(params=_PLACES)
def wall(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Wall]:
    """Each runtime that has volumes, on a template and on an image."""
    from cellwall.engine.templates.store import TemplateStore, state_dir
    from kit.images.volume_walls import Wall

    runtime, root = request.param.split("-")
    place, templates = tmp_path, TemplateStore(state_dir())
    needed = ground(request, runtime)
    if runtime == "docker":
        place, templates = needed["directory"], needed["templates"]
    tree = request.getfixturevalue("volume_tree") if root == "image" else None
    made = Wall(runtime, tree, templates, place)
    made.store.create("data", 16)
    yield made
    for each in made.store.volumes():
        made.store.remove(each.name)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of its own, empty, of each kind in turn."""
    if request.param == "postgresql":
        made: Postgres = request.getfixturevalue("postgres")
        return made.database()
    return f"sqlite:///{tmp_path}/state/cellwall.db"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that are another run's, and what is no matter of a gateway's."""
    from kit.ci.share import is_taken
    from kit.cluster.switch import is_fronted

    left = [
        item
        for item in items
        if not is_taken(item.nodeid, is_again=item.get_closest_marker("again") is not None)
    ]
    config.stash[LEFT] = len(left)
    if left:
        config.hook.pytest_deselected(items=left)
        out = set(left)
        items[:] = [item for item in items if item not in out]
    if is_fronted():
        from kit.cluster.left_out import mark

        mark(items)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Take a stage of which this run's share has no test for one that passed.

    Under xdist nothing is collected here, and a stage of many files that has none is an error.
    """
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.stash.get(LEFT, 0):
        session.exitstatus = pytest.ExitCode.OK


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Hold the markers that name a capability to what this machine has."""
    if item.get_closest_marker("root"):
        require_capability("root", os.geteuid() == 0, "run as uid 0")
    if item.get_closest_marker("cgroups"):
        layout = hierarchies.discover()
        held = {"memory", "pids", "cpu"} <= layout.hard
        require_capability("cgroups", held, layout.why_not or "none can be written here")
    for marker in item.iter_markers("needs"):
        for command in marker.args:
            require_command(command)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what this machine lacks, and for how many tests; a line each."""
    skipped = terminalreporter.stats.get("skipped", ())
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    for reason, tests in reasons.most_common():
        terminalreporter.write_line(f"skipped {tests}: {reason}")


@pytest.fixture
def whole_init(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sandbox has an init that knows all there is, as where none can be alone."""
    monkeypatch.setattr(JailRuntime, "has_single_programs", False)

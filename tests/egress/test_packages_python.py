"""pip and uv install through a broker, and print why when they may not; each beside its control.

Real clients over loopback, against a registry of the test's own with wheels that it builds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.packages import brokers, made, registries
from kit.packages.brokers import Serving
from kit.packages.clients import PYTHON, Ran
from kit.packages.registries import Registry, Reply

Client = Callable[..., Ran]

DENIED = "is refused: it is on the list of packages that are denied here"


@pytest.fixture
def registry() -> Iterator[Registry]:
    with registries.running() as started:
        yield started


@pytest.fixture
def broker(registry: Registry, tmp_path: Path) -> Iterator[Serving]:
    with brokers.serving(tmp_path, brokers.upstreams(registry)) as started:
        yield started


@pytest.fixture(params=PYTHON)
def client(request: pytest.FixtureRequest, broker: Serving) -> Client:
    """The client's name is `__name__`."""
    run: Client = PYTHON[request.param]
    return run


def line(ran: Ran, sentence: str) -> str:
    """Return the screen as one line; the sentence has to stand on it."""
    screen = " ".join(ran.screen.split())
    assert ran.status != 0, screen
    assert sentence in screen, ran.screen
    return screen


def test_package_comes_with_what_it_needs(
    registry: Registry, broker: Serving, client: Client
) -> None:
    registry.add(made.wheel("app", requires=("dep>=1",)))
    registry.add(made.wheel("dep", "1.0"))
    registry.add(made.wheel("dep", "2.0"))
    ran = client(broker, "app")
    assert ran.status == 0, ran.screen
    assert (ran.version("app"), ran.version("dep")) == ("1.0", "2.0")


def test_page_as_html_serves_as_well(registry: Registry, broker: Serving, client: Client) -> None:
    wheel = made.wheel("app")
    registry.replies["/simple/app/"] = Reply(
        f'<a href="/f/{wheel.file_name}#sha256={wheel.sha256}">x</a>'.encode(),
        headers={"Content-Type": "text/html; charset=utf-8"},
    )
    registry.replies[f"/f/{wheel.file_name}"] = Reply(wheel.content)
    assert client(broker, "app").version("app") == "1.0"


@pytest.mark.parametrize("asked", ["dep", "dep==2.0", "dep>=1", "dep~=1.2.3", "app"])
def test_denied_package_is_refused_in_a_sentence(
    registry: Registry, broker: Serving, client: Client, asked: str
) -> None:
    """By its name, a pin, a range, or as what another one needs."""
    registry.add(made.wheel("app", "0.1"))
    registry.add(made.wheel("app", "1.0", requires=("dep>1.5,<3",)))
    registry.add(made.wheel("dep", "1.2.3"))
    registry.add(made.wheel("dep", "2.0"))
    broker.only(deny=["dep"])
    ran = client(broker, asked)
    # pip asks for no file that its range leaves out, but prints which versions there are.
    is_narrow = client.__name__ == "pip" and asked == "dep~=1.2.3"
    line(ran, "0+it.is.denied.here" if is_narrow else f"dep {DENIED}")
    assert not ran.has("dep")
    assert not ran.has("app"), "no older version that does without"
    assert not registry.count("/simple/dep/"), "its registry is not even asked"
    broker.only()
    assert client(broker, asked).version("dep") == ("1.2.3" if asked == "dep~=1.2.3" else "2.0")


def test_what_is_not_allowed_is_refused_in_a_sentence(
    registry: Registry, broker: Serving, client: Client
) -> None:
    registry.add(made.wheel("dep"))
    policies: tuple[dict[str, list[str]], ...] = (
        {"allow": ["other"]},
        {"allow": []},
        {"allow": ["d*"], "within": ["other"]},
    )
    for policy in policies:
        broker.only(**policy)
        line(client(broker, "dep"), "dep is refused: it is not on the list of packages that are")
    assert not registry.asked, "its registry is not even asked"
    broker.only(allow=["dep"])
    assert client(broker, "dep").version("dep") == "1.0"


def test_range_passes_over_a_denied_version_and_a_pin_hears_why(
    registry: Registry, broker: Serving, client: Client
) -> None:
    registry.add(made.wheel("dep", "1.0"))
    registry.add(made.wheel("dep", "2.0"))
    broker.only(deny=["dep>=2"])
    assert client(broker, "dep").version("dep") == "1.0"
    line(client(broker, "dep==2.0"), f"dep 2.0 {DENIED}")
    broker.only()
    assert client(broker, "dep").version("dep") == "2.0"


def test_range_of_denied_versions_hears_of_them(
    registry: Registry, broker: Serving, client: Client
) -> None:
    """pip has no place for a sentence there, but it prints what versions it knows."""
    registry.add(made.wheel("dep", "1.0"))
    registry.add(made.wheel("dep", "2.0"))
    broker.only(deny=["dep>=2"])
    ran = client(broker, "dep>=2")
    line(ran, "0+2.0.is.refused.here" if client.__name__ == "pip" else f"dep 2.0 {DENIED}")
    broker.only()
    assert client(broker, "dep>=2").version("dep") == "2.0"


def test_package_that_is_too_young_is_refused_in_a_sentence(
    registry: Registry, broker: Serving, client: Client
) -> None:
    registry.add(made.wheel("dep", "1.0"), age_days=3)
    broker.only(min_age_days=7)
    line(client(broker, "dep"), "dep 1.0 is refused: it is younger than 7 days")
    broker.only(min_age_days=2)
    assert client(broker, "dep").version("dep") == "1.0"


def test_younger_version_is_passed_over(
    registry: Registry, broker: Serving, client: Client
) -> None:
    registry.add(made.wheel("dep", "1.0"), age_days=30)
    registry.add(made.wheel("dep", "2.0"), age_days=3)
    broker.only(min_age_days=7)
    assert client(broker, "dep").version("dep") == "1.0"
    broker.only()
    assert client(broker, "dep").version("dep") == "2.0"


def test_unknown_age_is_refused_where_an_age_is_demanded(
    registry: Registry, broker: Serving, client: Client
) -> None:
    registry.add(made.wheel("dep"))
    broker.only(min_age_days=1)
    line(client(broker, "dep"), "its registry does not say how old it is")
    broker.only()
    assert client(broker, "dep").version("dep") == "1.0"


def test_source_alone_is_refused_in_a_sentence(
    registry: Registry, broker: Serving, client: Client
) -> None:
    registry.add(made.sdist("dep"))
    line(client(broker, "dep"), "dep 1.0 is refused: this is its source, and only wheels are")
    broker.only(allow_sdists=True)
    assert client(broker, "dep").version("dep") == "1.0"


def test_source_beside_a_wheel_harms_nothing(
    registry: Registry, broker: Serving, client: Client
) -> None:
    registry.add(made.wheel("dep"))
    registry.add(made.sdist("dep"))
    registry.add(made.sdist("dep", "2.0"))
    assert client(broker, "dep").version("dep") == "1.0"
    assert client(broker, "dep==1.0").version("dep") == "1.0"
    line(client(broker, "dep==2.0"), "dep 2.0 is refused: this is its source")
    broker.only(allow_sdists=True)
    assert client(broker, "dep==2.0").version("dep") == "2.0"


def test_version_withdrawn_by_its_author_is_for_pins_only(
    registry: Registry, broker: Serving, client: Client
) -> None:
    registry.add(made.wheel("dep", "1.0"))
    registry.add(made.wheel("dep", "2.0"), yanked="eats files")
    assert client(broker, "dep").version("dep") == "1.0"
    ran = client(broker, "dep==2.0")
    assert ran.version("dep") == "2.0"
    assert "eats files" in ran.screen


@pytest.mark.parametrize("asked", ["nosuch", "nosuch==2.0", "nosuch>=2", "app"])
def test_name_that_does_not_exist_is_said_at_once(
    registry: Registry, broker: Serving, client: Client, asked: str
) -> None:
    registry.add(made.wheel("app", requires=("nosuch",)))
    ran = client(broker, asked)
    if client.__name__ == "uv":
        line(ran, "nosuch was not found in the package registry")
    elif "=" in asked:
        line(ran, "0+there.is.no.such.package")
    else:
        line(ran, "there is no Python package nosuch: check the spelling")
    assert registry.count("/simple/nosuch/") == 1, "no client tried again"
    registry.add(made.wheel("other", "2.0"))
    assert client(broker, "other").version("other") == "2.0"


def test_registry_that_is_off_is_said(registry: Registry, broker: Serving, client: Client) -> None:
    registry.add(made.wheel("dep"))
    broker.only(registries=["npm"])
    line(client(broker, "dep"), "Python packages are off in this sandbox")
    assert not registry.asked, "its registry is not even asked"
    broker.only()
    assert client(broker, "dep").version("dep") == "1.0"


def test_content_that_is_not_what_was_promised_is_not_given_out(
    registry: Registry, broker: Serving, client: Client, tmp_path: Path
) -> None:
    """The connection is cut; a client that tries again hears why."""
    wheel = made.wheel("dep", padding=bytes(200_000))
    path = registry.add(wheel)
    registry.replies[path] = Reply(wheel.content[:-1] + b"x")
    registry.add(made.wheel("fine", padding=bytes(200_001)))
    ran = client(broker, "dep")
    assert ran.status != 0, ran.screen
    assert not ran.has("dep")
    if client.__name__ == "uv":
        line(ran, "its content is not what the registry's page promises")
    assert registry.count(path) == 1
    assert not list((tmp_path / "cache" / "parts").iterdir())
    assert not (tmp_path / "cache" / "sha256" / wheel.sha256[:2]).exists()
    assert client(broker, "fine").version("fine") == "1.0"


def test_registry_that_is_down_is_said_at_once(
    registry: Registry, broker: Serving, client: Client
) -> None:
    registry.add(made.wheel("dep"))
    there, registry.replies["/simple/dep/"] = registry.replies["/simple/dep/"], Reply(b"", 503)
    ran = client(broker, "dep")
    line(ran, "dep cannot be fetched from its registry now: it answers with status 503")
    assert sum(each.request.target == "/simple/dep/" for each in broker.served) == 1
    registry.replies["/simple/other/"] = there
    registry.add(made.wheel("other"))
    assert client(broker, "other").version("other") == "1.0"


def test_hashes_of_a_lock_file_are_those_of_the_registry(
    registry: Registry, broker: Serving, client: Client, tmp_path: Path
) -> None:
    wheel = made.wheel("dep")
    registry.add(wheel)
    lock = tmp_path / "lock.txt"
    lock.write_text(f"dep==1.0 --hash=sha256:{wheel.sha256}\n")
    assert client(broker, "--require-hashes", "-r", str(lock)).version("dep") == "1.0"
    lock.write_text(f"dep==1.0 --hash=sha256:{'0' * 64}\n")
    assert client(broker, "--require-hashes", "-r", str(lock)).status != 0

"""npm installs through a broker, and prints why when it may not; each beside its control."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.packages import brokers, made, registries
from kit.packages.brokers import Serving
from kit.packages.clients import Ran, npm
from kit.packages.made import Made
from kit.packages.registries import Registry, Reply

DENIED = "is refused: it is on the list of packages that are denied here"


@pytest.fixture
def registry() -> Iterator[Registry]:
    with registries.running() as started:
        yield started


@pytest.fixture
def broker(registry: Registry, tmp_path: Path) -> Iterator[Serving]:
    with brokers.serving(tmp_path, brokers.upstreams(registry)) as started:
        yield started


def installed(ran: Ran, name: str) -> str:
    """Return the version of an installed package; nothing if it is not there."""
    file = ran.place / "node_modules" / name / "package.json"
    return str(json.loads(file.read_text())["version"]) if file.exists() else ""


def says(ran: Ran, sentence: str) -> None:
    assert ran.status != 0, ran.screen
    assert sentence in " ".join(ran.screen.split()), ran.screen


def locked(*packages: Made) -> dict[str, str]:
    """Return an application with a lock file that was made with another registry."""
    needs = {each.name: each.version for each in packages}
    of_lock: dict[str, object] = {
        f"node_modules/{each.name}": {
            "version": each.version,
            "resolved": f"https://registry.example.org/{each.name}/-/{each.file_name}",
            "integrity": "sha512-" + base64.b64encode(bytes.fromhex(each.sha512)).decode(),
        }
        for each in packages
    }
    root = {"name": "app", "version": "1.0.0", "dependencies": needs}
    lock = {"lockfileVersion": 3, "requires": True, "packages": {"": root, **of_lock}}
    return {"package.json": json.dumps(root), "package-lock.json": json.dumps({**root, **lock})}


def test_package_comes_with_what_it_needs(registry: Registry, broker: Serving) -> None:
    registry.add_npm(made.tarball("left", "1.0.0"))
    registry.add_npm(made.tarball("left", "1.1.0", needs={"@scope/right": "^1.0.0"}))
    registry.add_npm(made.tarball("@scope/right", "1.0.0"))
    ran = npm(broker, "install", "left")
    assert ran.status == 0, ran.screen
    assert (installed(ran, "left"), installed(ran, "@scope/right")) == ("1.1.0", "1.0.0")


@pytest.mark.parametrize("asked", ["right", "right@1.0.0", "right@^1", "left"])
def test_denied_package_is_refused_in_a_sentence(
    registry: Registry, broker: Serving, asked: str
) -> None:
    registry.add_npm(made.tarball("left", needs={"right": "^1.0.0"}))
    registry.add_npm(made.tarball("right", "1.0.0"))
    broker.only(deny=["right"])
    ran = npm(broker, "install", asked)
    says(ran, f"right {DENIED}")
    assert not installed(ran, "right")
    broker.only()
    assert installed(npm(broker, "install", asked), "right") == "1.0.0"


def test_range_passes_over_a_denied_version_and_a_pin_hears_why(
    registry: Registry, broker: Serving
) -> None:
    registry.add_npm(made.tarball("left", "1.0.0"))
    registry.add_npm(made.tarball("left", "1.1.0"))
    broker.only(deny=["left>=1.1"])
    assert installed(npm(broker, "install", "left"), "left") == "1.0.0"
    for asked in ("left@1.1.0", "left@^1.1"):
        says(npm(broker, "install", asked), f"left 1.1.0 {DENIED}")
    broker.only()
    assert installed(npm(broker, "install", "left"), "left") == "1.1.0"


def test_version_that_is_too_young_is_passed_over_and_a_pin_hears_why(
    registry: Registry, broker: Serving
) -> None:
    registry.add_npm(made.tarball("left", "1.0.0"), age_days=30)
    registry.add_npm(made.tarball("left", "1.1.0"), age_days=3)
    broker.only(min_age_days=7)
    assert installed(npm(broker, "install", "left"), "left") == "1.0.0"
    says(npm(broker, "install", "left@1.1.0"), "left 1.1.0 is refused: it is younger than 7 days")
    broker.only(min_age_days=2)
    assert installed(npm(broker, "install", "left"), "left") == "1.1.0"


@pytest.mark.parametrize("asked", ["nosuch", "nosuch@2.0.0"])
def test_name_that_does_not_exist_is_said_at_once(
    registry: Registry, broker: Serving, asked: str
) -> None:
    says(npm(broker, "install", asked), "there is no npm package nosuch: check the spelling")
    assert registry.count("/npm/nosuch") == 1, "npm did not try again"


def test_registry_that_is_off_is_said(registry: Registry, broker: Serving) -> None:
    registry.add_npm(made.tarball("left"))
    broker.only(registries=["pypi"])
    says(npm(broker, "install", "left"), "npm packages are off in this sandbox")
    broker.only()
    assert installed(npm(broker, "install", "left"), "left") == "1.0.0"


def test_content_that_is_not_what_was_promised_is_not_given_out(
    registry: Registry, broker: Serving
) -> None:
    tarball = made.tarball("left")
    path = registry.add_npm(tarball)
    registry.replies[path] = Reply(made.tarball("left", "6.6.6").content)
    ran = npm(broker, "install", "left")
    says(ran, "its content is not what the registry's page promises")
    assert not installed(ran, "left")
    registry.add_npm(made.tarball("fine"))
    assert installed(npm(broker, "install", "fine"), "fine") == "1.0.0"


def test_registry_that_is_down_is_said_at_once(registry: Registry, broker: Serving) -> None:
    registry.replies["/npm/left"] = Reply(b"", 503)
    says(
        npm(broker, "install", "left"),
        "left cannot be fetched from its registry now: it answers with status 503",
    )
    assert sum(each.request.target == "/npm/left" for each in broker.served) == 1


def test_lock_file_made_elsewhere_is_installed_from_the_broker(
    registry: Registry, broker: Serving
) -> None:
    left, right = made.tarball("left"), made.tarball("@scope/right")
    registry.add_npm(left)
    registry.add_npm(right)
    ran = npm(broker, "ci", files=locked(left, right))
    assert ran.status == 0, ran.screen
    assert (installed(ran, "left"), installed(ran, "@scope/right")) == ("1.0.0", "1.0.0")
    broker.only(deny=["left"])
    says(npm(broker, "ci", files=locked(left)), f"left {DENIED}")

"""What the engine knows of packages before a sandbox runs: rules, registries, requests."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from cellwall import EngineSettings
from cellwall.engine.packages import installing
from cellwall.engine.parts import package_registries
from cellwall.engine.parts.network import PACKAGES_ENV, Outside, with_way_out
from cellwall.model.errors import HostUnsupported, UsageError
from cellwall.model.limits import Limits
from cellwall.model.network import BROKER, NetworkPolicy
from cellwall.model.packages import ANY_PACKAGE, NO_PACKAGE, PackagePolicy
from cellwall.model.template import BuiltTemplate, Template
from cellwall.runtimes.base import SandboxSpec
from cellwall.surface.shared.tasks import Tasks

TEMPLATE = BuiltTemplate(Template("python"), "0" * 32, "/t", "/t/bin/python", "/b", (), 0)


def spec(**fields: Any) -> SandboxSpec:
    return SandboxSpec("one", TEMPLATE, Limits(), **fields)


def _outside(tmp_path: Path, **settings: object) -> Outside:
    return Outside(EngineSettings(**settings), Tasks(), tmp_path)  # type: ignore[arg-type]


def test_words_of_a_policy() -> None:
    assert PackagePolicy.of(True) is ANY_PACKAGE
    assert PackagePolicy.of(False) is NO_PACKAGE
    alone = NetworkPolicy.of("packages")
    assert (alone.mode, alone.packages, alone.is_none) == ("none", ANY_PACKAGE, False)
    assert NetworkPolicy.of(alone.as_json()) == alone
    assert NetworkPolicy.of({"packages": False}).is_none
    both = NetworkPolicy.of({"allow": ["example.org"], "packages": True})
    assert str(both) == "allow example.org; packages of pypi and npm"


def test_a_policy_is_what_operator_and_caller_allow(tmp_path: Path) -> None:
    operators = {"registries": ["pypi"], "allow": ["a*"], "deny": ["ab"], "min_age_days": 7}
    outside = _outside(tmp_path, packages=operators)
    found = outside.checked({"packages": True}).packages
    assert found is not None
    assert found.registries == ("pypi",)
    assert list(map(str, found.within or ())) == ["a*"]
    assert found.min_age_days == 7
    again = outside.checked(outside.checked({"packages": True}).as_json())
    assert again.packages == found
    own = outside.checked({"packages": {"registries": ["pypi"], "allow": ["abc"], "deny": ["x"]}})
    assert own.packages is not None
    assert list(map(str, own.packages.allow or ())) == ["abc"]
    assert list(map(str, own.packages.deny)) == ["x", "ab"]


@pytest.mark.parametrize(
    ("settings", "asked", "why"),
    [
        ({"packages": False}, "packages", "none may be installed here"),
        ({"packages": {"registries": ["npm"]}}, {"packages": {"registries": ["pypi"]}}, "off here"),
        ({}, {"packages": {"registries": ["pypi"], "within": ["a"]}}, "operator's"),
        ({}, {"packages": {"registries": ["cargo"]}}, "not known"),
        ({}, {"packages": "yes"}, "no policy"),
    ],
)
def test_what_is_asked_beyond_that_is_refused(
    tmp_path: Path, settings: dict[str, object], asked: object, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        _outside(tmp_path, **settings).checked(asked)


def test_a_sandbox_with_packages_asks_the_broker() -> None:
    none = with_way_out(spec(), NetworkPolicy())
    assert (none.has_network, dict(none.own_env)) == (False, {})
    waiting = with_way_out(spec(), NetworkPolicy(), needs_one=True)
    assert (waiting.has_network, dict(waiting.own_env)) == (True, {})
    on = with_way_out(spec(env={"PIP_INDEX_URL": "mine"}), NetworkPolicy.of("packages"))
    assert on.own_env == PACKAGES_ENV
    assert BROKER in on.env["UV_DEFAULT_INDEX"]
    assert on.env["PIP_INDEX_URL"] == "mine"
    # Where a policy has rules alone, an index that a rule allows is asked as usual.
    assert with_way_out(spec(), NetworkPolicy.of(["pypi.test"])).env["UV_DEFAULT_INDEX"] == ""


def test_registries_of_the_settings_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ({"registry": "pypi", "url": "https://packages.test/simple/"},)
    found = asyncio.run(package_registries.find(EngineSettings(package_registries=own)))
    assert found.upstreams == list(own)


def test_registries_are_those_of_this_machines_installers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://user:word@packages.test/simple/")
    (tmp_path / ".npmrc").write_text("registry = https://npm.test/\n//npm.test/:_authToken=x\n")
    for name in ("npm_config_registry", "NPM_CONFIG_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    found = asyncio.run(package_registries.find(EngineSettings()))
    assert found.upstreams == [
        {"registry": "pypi", "url": "https://user:word@packages.test/simple/"},
        {"registry": "npm", "url": "https://npm.test/"},
    ]
    monkeypatch.setenv("npm_config_registry", "file:///nowhere")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "/a/folder")
    assert asyncio.run(package_registries.find(EngineSettings())).upstreams == []


def test_the_usual_index_is_what_uv_says_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [each for each in os.environ if each.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("HOME", str(tmp_path))
    python = asyncio.run(package_registries.find(EngineSettings())).upstreams[0]
    assert python["registry"] == "pypi"
    assert python["url"].startswith("https://")
    assert python["url"].rstrip("/").endswith("/simple")


@pytest.mark.parametrize(
    "value",
    [
        {"registry": "pypi"},
        {"registry": "pypi", "url": "file:///simple"},
        {"registry": "cargo", "url": "https://packages.test/"},
    ],
)
def test_a_registry_that_is_none_ends_the_start(value: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="package registries"):
        EngineSettings(package_registries=(value,))


def test_variables_of_the_operator() -> None:
    read = EngineSettings.from_environment
    assert read({}).packages is True
    assert read({"CELLWALL_PACKAGES": "none"}).packages is False
    assert read({"CELLWALL_PACKAGES": '{"registries": ["npm"]}'}).packages == {
        "registries": ["npm"]
    }
    for wrong in ("{", '{"registries": 1}', "[]"):
        with pytest.raises(UsageError):
            read({"CELLWALL_PACKAGES": wrong})
    with pytest.raises(UsageError, match="CELLWALL_PACKAGE_REGISTRIES"):
        read({"CELLWALL_PACKAGE_REGISTRIES": "{}"})


def test_each_user_id_has_a_folder_of_its_own(tmp_path: Path) -> None:
    own = os.geteuid()
    os.close(package_registries.open_folder(tmp_path, own))
    path = tmp_path / "packages" / str(own)
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o755)
    with pytest.raises(HostUnsupported, match="not user"):
        package_registries.open_folder(tmp_path, own)
    path.rmdir()
    path.symlink_to(tmp_path)
    with pytest.raises(HostUnsupported):
        package_registries.open_folder(tmp_path, own)


def test_a_proxy_is_handed_files_and_no_paths(tmp_path: Path) -> None:
    own, bundle = os.geteuid(), tmp_path / "bundle.pem"
    bundle.write_text("certificates")
    folder, file = package_registries.open_files(tmp_path, str(bundle), own)
    assert os.readlink(f"/proc/self/fd/{folder}") == str(tmp_path / "packages" / str(own))
    assert os.read(file, 100) == b"certificates"
    (alone,) = package_registries.open_files(tmp_path, None, own)
    for fd in (folder, file, alone):
        os.close(fd)


def test_certificates_that_cannot_be_read_are_an_error_with_a_remedy(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(HostUnsupported, match="the certificates in ") as caught:
        package_registries.open_files(tmp_path, str(tmp_path / "bundle.pem"), os.geteuid())
    assert "SSL_CERT_FILE" in str(caught.value.remedy)
    assert os.listdir("/proc/self/fd") == before


def test_installers_of_this_machine_are_asked_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And again after a caller that waited for them has gone."""
    asked: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def find(_settings: EngineSettings) -> package_registries.Found:
        may_go_on = asyncio.Event()
        asked.put_nowait(may_go_on)
        await may_go_on.wait()
        return package_registries.Found([], None)

    monkeypatch.setattr(package_registries, "find", find)

    async def run() -> None:
        registries = package_registries.Registries(EngineSettings(), tmp_path)
        first, *others = [asyncio.ensure_future(registries.handed()) for _ in range(3)]
        await asked.get()
        first.cancel()
        (await asked.get()).set()
        await asyncio.gather(*others, registries.handed())
        assert asked.empty()

    asyncio.run(run())


def test_requirements_are_plain(tmp_path: Path) -> None:
    assert installing.checked(["Requests >=2", "pandas[excel]"]) == ("Requests>=2", "pandas[excel]")
    for wrong in ([], "requests", ["-r x"], ["git+https://x/y"], ["a @ file:///b"]):
        with pytest.raises(UsageError):
            installing.checked(wrong)

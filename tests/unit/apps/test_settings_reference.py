"""The list of settings: complete, explained, and true of what the loader does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cellwall.apps import settings_loader
from cellwall.apps.cli.commands import app_of
from cellwall.apps.cli.settings_reference import Setting, reference, section_names
from cellwall.apps.cluster.settings import gateway_settings
from cellwall.model.errors import UsageError

ALL = reference()
VARIABLES = [each for each in ALL if each.variable and each.section != "[gateway]"]
OF_GATEWAYS = [each for each in ALL if each.variable and each.section == "[gateway]"]
_SAMPLES = {"list of texts": "a,b", "text": "sample"}
_CHOSEN = {
    "log_format": "json",
    "node": "a7c2",
    "audit": "flag",
    "runtimes": "jail,process",
    "least_isolation": "kernel",
    "default_isolation": "kernel",
    "network": "none",
    "network_addresses": "10.1.0.0/16",
    "network_authorities": __file__,
    "packages": "none",
    "package_registries": '[{"registry": "pypi", "url": "https://packages.example.org/simple/"}]',
    "image_registries": '[{"registry": "docker.io", "url": "https://mirror.example.org"}]',
    "metrics_token_sha256": "0" * 64,
    "proxies": "127.0.0.1,10.1.0.0/16",
}
KEY = "operators-key-0123456789abcdef0123456789abcdef"


def test_every_section_the_loader_reads_is_listed_and_no_other() -> None:
    assert set(section_names()) == set(settings_loader.SECTIONS)
    assert all(section_names().values())


def test_every_setting_says_what_it_means() -> None:
    assert [f"{each.section} {each.name}" for each in ALL if not each.meaning] == []


def sample(each: Setting) -> str:
    """Return a value that differs from the default."""
    if each.name in _CHOSEN:
        return _CHOSEN[each.name]
    if each.kind.startswith("true or false"):
        return "0" if each.default == "true" else "1"
    return _SAMPLES.get(each.kind.partition(",")[0], "7")


@pytest.mark.parametrize("each", VARIABLES, ids=lambda each: each.variable)
def test_variable_sets_what_the_list_says(each: Setting) -> None:
    loaded = settings_loader.load(None, {}, {each.variable: sample(each)})
    plain = settings_loader.load(None, {}, {})
    part = each.section.strip("[]")
    assert getattr(getattr(loaded, part), each.name) != getattr(getattr(plain, part), each.name)


@pytest.mark.parametrize("each", OF_GATEWAYS, ids=lambda each: each.variable)
def test_variable_of_a_gateway_sets_what_the_list_says(
    each: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(
        '[gateway]\nnodes = ["10.0.0.5:7443"]\nauthority = "a"\ncertificate = "c"\nkey = "k"\n'
        f'{each.name} = "by the file"\n',
        encoding="utf-8",
    )
    assert getattr(gateway_settings(path), each.name) == "by the file"
    monkeypatch.setenv(each.variable, "by the variable")
    assert getattr(gateway_settings(path), each.name) == "by the variable"


@pytest.mark.parametrize("each", [e for e in ALL if e.section == "[server]"], ids=lambda e: e.name)
def test_default_of_the_list_can_be_written_into_a_file(each: Setting, tmp_path: Path) -> None:
    if each.default == "none":
        return
    path = tmp_path / "cellwall.toml"
    path.write_text(f"{each.section}\n{each.name} = {each.default}\n", encoding="utf-8")
    assert settings_loader.load(path, {}, {}) == settings_loader.load(None, {}, {})


def test_flags_of_the_list_are_flags_of_serve() -> None:
    shown = cellwall("serve", "--help").output
    flags = [each.flag for each in ALL if each.flag]
    assert len(flags) >= 6
    assert [flag for flag in flags if flag not in shown] == []


def cellwall(*words: str) -> Result:
    return CliRunner().invoke(app_of(words), words)


def test_settings_prints_the_same_list() -> None:
    printed = json.loads(cellwall("settings", "--json").stdout)
    assert [(each["section"], each["name"]) for each in printed] == [
        (each.section, each.name) for each in ALL
    ]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[server]\nport = 9000\n", ""),
        ("[server]\nprot = 9000\n", "unknown name 'prot'"),
        ("[sever]\nport = 9000\n", "unknown section 'sever'"),
        ("[limits]\nwall_s = 0\n", "out of bounds"),
        ('[server]\nhost = "0.0.0.0"\n', "in plain text"),
        (f'[[keys]]\nsha256 = "{KEY}"\n', "not a SHA-256"),
        ("[server\n", "write it as TOML"),
    ],
)
def test_check_says_what_serve_would_say(text: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "cellwall.toml"
    path.write_text(text, encoding="utf-8")
    done = cellwall("settings", "check", str(path))
    assert KEY not in done.output + str(done.exception)
    if not word:
        assert (done.exit_code, done.output) == (0, f"{path}: good\n")
        return
    assert isinstance(done.exception, UsageError)
    assert word in str(done.exception)
    if "host" not in text:  # what it would say of keys depends on the store
        served = cellwall("serve", "--port", "0", "--config", str(path))
        assert str(served.exception) == str(done.exception)

"""Templates: what identifies one, building it for real from a local wheel, and finding it.

No network: uv is real and offline, the packages are wheels made here.
"""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall.engine.templates import base_interpreter as base_interpreter_module
from cellwall.engine.templates import definitions as template_definitions
from cellwall.engine.templates.base_interpreter import base_interpreter
from cellwall.engine.templates.defaults import DEFAULTS
from cellwall.engine.templates.package_index import uv_variables
from cellwall.engine.templates.store import TemplateStore, _digest, state_dir
from cellwall.model.errors import HostUnsupported, NotFound, UsageError
from cellwall.model.template import Template

_MINIMAL = Template(name="minimal")


def make_wheel(directory: Path, name: str, version: str, requires: str = "") -> None:
    """Write a wheel of one module `<name>.py`, valid enough for any installer."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is the only index, and private settings and cache."""
    directory = tmp_path / "wheels"
    directory.mkdir()
    make_wheel(directory, "moss", "1.0", requires="fern")
    make_wheel(directory, "fern", "2.0")
    make_wheel(directory, "fern", "3.0")
    monkeypatch.setenv("UV_FIND_LINKS", str(directory))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CELLWALL_CONFIG_DIR", str(tmp_path / "config"))
    return directory


@pytest.fixture
def store(tmp_path: Path, wheels: Path) -> Iterator[TemplateStore]:
    """A store in a private state directory, with a template `plants`; removed even if sealed."""
    define(tmp_path, packages=["moss==1.0"], constraints=["fern==2.0"], preload=["moss"])
    yield TemplateStore(tmp_path / "state")
    for directory, _, _ in os.walk(tmp_path / "state"):
        os.chmod(directory, 0o755)


def define(tmp_path: Path, **fields: list[str]) -> None:
    """Write the user's `templates.toml` with one template `plants`."""
    (tmp_path / "config").mkdir(exist_ok=True)
    lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    text = "[templates.plants]\n" + "\n".join(lines)
    (tmp_path / "config/templates.toml").write_text(text)


# ── building ───────────────────────────────────────────────────────────────────────────────────


def test_template_is_absent_until_it_is_built(store: TemplateStore) -> None:
    assert store.find("plants") is None
    assert store.list() == []
    built = store.build("plants")
    assert store.find("plants") == built
    assert [each.digest for each in store.list()] == [built.digest]


def test_built_interpreter_imports_the_pinned_packages(store: TemplateStore) -> None:
    built = store.build("plants")
    program = "import moss, fern; print(moss.VERSION, fern.VERSION)"
    run = subprocess.run([built.python, "-I", "-c", program], capture_output=True, check=True)
    assert run.stdout == b"1.0 2.0\n"


def test_built_template_survives_being_moved(store: TemplateStore, tmp_path: Path) -> None:
    built = store.build("plants")
    moved = tmp_path / "elsewhere"
    Path(built.path).chmod(0o755)  # it is shut for writing; whoever is not root could not move it
    Path(built.path).rename(moved)
    python = str(moved / "bin/python")
    run = subprocess.run([python, "-I", "-c", "import moss"], capture_output=True, check=False)
    assert run.returncode == 0, run.stderr


def test_manifest_lists_what_was_resolved(store: TemplateStore) -> None:
    built = store.build("plants")
    manifest = json.loads((Path(built.path) / "manifest.json").read_text())
    assert manifest["packages"] == ["fern==2.0", "moss==1.0"]
    assert manifest["digest"] == built.digest
    assert manifest["size_bytes"] == built.size_bytes > 0


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_built_tree_is_read_only_and_readable_by_all(store: TemplateStore, umask: int) -> None:
    before = os.umask(umask)
    try:
        built = Path(store.build("plants").path)
    finally:
        os.umask(before)
    for path in (built, *built.rglob("*")):
        status = path.lstat()
        if not stat.S_ISLNK(status.st_mode):
            assert status.st_mode & 0o222 == 0, path
            assert status.st_mode & 0o444 == 0o444, path
    assert all(p.stat().st_mode & 0o055 == 0o055 for p in (built.parent, built.parent.parent))


def test_bytecode_is_there_so_that_nobody_writes_it(store: TemplateStore) -> None:
    built = store.build("plants")
    assert list(Path(built.path).rglob("moss.*.pyc"))


def test_second_build_does_nothing(store: TemplateStore) -> None:
    first = store.build("plants")
    inode = Path(first.path).stat().st_ino
    lines: list[str] = []
    assert store.build("plants", lines.append) == first
    assert (lines, Path(first.path).stat().st_ino) == ([], inode)


def test_two_builders_at_once_build_once(store: TemplateStore) -> None:
    lines: list[str] = []
    digests: list[str] = []
    start = threading.Barrier(2)

    def build() -> None:
        start.wait()
        digests.append(store.build("plants", lines.append).digest)

    builders = [threading.Thread(target=build) for _ in range(2)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert len(digests) == 2
    assert len(set(digests)) == 1
    assert len([line for line in lines if line.startswith("building ")]) == 1


def test_failed_build_leaves_nothing_and_says_why(store: TemplateStore, tmp_path: Path) -> None:
    define(tmp_path, packages=["moss==9.9"])
    with pytest.raises(HostUnsupported, match=r"plants.*moss==9\.9"):
        store.build("plants")
    assert [p.name for p in (tmp_path / "state/templates").iterdir() if p.is_dir()] == []


def test_rubbish_of_a_killed_builder_is_removed(store: TemplateStore, tmp_path: Path) -> None:
    digest = store.build("plants").digest
    store.remove("plants")
    rubbish = tmp_path / f"state/templates/{digest}.tmp-1"
    (rubbish / "lib").mkdir(parents=True)
    (rubbish / "lib").chmod(0o555)
    assert store.find("plants") is None
    store.build("plants")
    assert not rubbish.exists()


def test_source_distribution_is_refused_and_not_run(
    store: TemplateStore, wheels: Path, tmp_path: Path
) -> None:
    source = tmp_path / "lichen-1.0"
    source.mkdir()
    (source / "setup.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: lichen\nVersion: 1.0\n")
    with tarfile.open(wheels / "lichen-1.0.tar.gz", "w:gz") as archive:
        archive.add(source, "lichen-1.0")
    define(tmp_path, packages=["lichen==1.0"])
    with pytest.raises(HostUnsupported, match="lichen"):
        store.build("plants")
    assert not (tmp_path / "ran").exists()


def test_remove_deletes_it_and_the_definition_stays(store: TemplateStore) -> None:
    built = store.build("plants")
    store.remove("plants")
    assert not Path(built.path).exists()
    assert store.find("plants") is None
    with pytest.raises(NotFound, match="plants"):
        store.remove("plants")


def test_unwritable_state_directory_names_the_remedy(wheels: Path, tmp_path: Path) -> None:
    define(tmp_path, packages=["fern==2.0"])
    (tmp_path / "file").write_text("")
    with pytest.raises(HostUnsupported, match="CELLWALL_STATE_DIR"):
        TemplateStore(tmp_path / "file/state").build("plants")


# ── identity ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "change",
    [
        {"packages": ("a==1",)},
        {"constraints": ("a==1",)},
        {"preload": ("json",)},
        {"env": {"A": "1"}},
        {"languages": ("bash",)},
        {"fonts": ("Moss: moss/*.ttf",)},
    ],
)
def test_digest_changes_with_what_a_program_sees(change: dict[str, Any]) -> None:
    base = base_interpreter(_MINIMAL)
    changed = dataclasses.replace(_MINIMAL, **change)
    assert _digest(changed, base) != _digest(_MINIMAL, base)


def test_digest_changes_with_the_order_of_fonts() -> None:
    base = base_interpreter(_MINIMAL)
    one, two = "Moss: moss/*.ttf", "Fern: fern/*.ttf"
    digests = {_digest(Template(name="x", fonts=each), base) for each in ((one, two), (two, one))}
    assert len(digests) == 2


def test_digest_does_not_change_with_name_or_description() -> None:
    base = base_interpreter(_MINIMAL)
    renamed = dataclasses.replace(_MINIMAL, name="other", description="other")
    assert _digest(renamed, base) == _digest(_MINIMAL, base)


def test_digest_changes_with_the_interpreter_but_not_its_patch_level() -> None:
    base = base_interpreter(_MINIMAL)
    patched = dataclasses.replace(base, version=(*base.version[:2], 99))
    other = dataclasses.replace(base, executable="/usr/bin/python3.99")
    assert _digest(_MINIMAL, patched) == _digest(_MINIMAL, base)
    assert _digest(_MINIMAL, other) != _digest(_MINIMAL, base)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "../up"},
        {"packages": ("--index-url=x",)},
        {"packages": (" -r x",)},
        {"constraints": ("a==1\n-r x",)},
        {"preload": ("os; evil",)},
        {"env": {"A=B": "1"}},
        {"python": "three"},
        {"fonts": ("Moss",)},
        {"fonts": ("Moss: /etc/passwd",)},
        {"fonts": ("Moss: moss/../../../x.ttf",)},
        {"fonts": ("Moss</dir>: moss/x.ttf",)},
        {"fonts": ("Moss\nbackend: x: moss/x.ttf",)},
    ],
)
def test_definition_that_could_never_work_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Template(**({"name": "x"} | fields))


@pytest.mark.parametrize(
    ("requirement", "version", "accepted"),
    [
        (">=3.11", (3, 11, 0), True),
        (">=3.11", (3, 10, 9), False),
        (">=3.8, <3.12", (3, 12, 0), False),
        ("==3.11", (3, 11, 7), True),
        ("!=3.11.2", (3, 11, 2), False),
    ],
)
def test_python_requirement(requirement: str, version: tuple[int, ...], accepted: bool) -> None:
    assert Template(name="x", python=requirement).accepts_python(version) is accepted


def test_impossible_python_names_what_was_tried() -> None:
    with pytest.raises(HostUnsupported, match=r">=4\.0.*/python3"):
        base_interpreter(Template(name="x", python=">=4.0"))


def test_base_interpreter_is_found_where_there_is_no_usr_bin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(path: str) -> list[str]:
        raise FileNotFoundError(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", absent)
        found = list(base_interpreter_module._paths())
    assert found[1:] == [getattr(sys, "_base_executable", None) or sys.executable]


def test_base_interpreter_below_usr_needs_no_mount() -> None:
    base = base_interpreter(_MINIMAL)
    outside = not base.executable.startswith("/usr/")
    assert bool(base.mounts) is outside


# ── definitions and settings ───────────────────────────────────────────────────────────────────


def test_defaults_pin_every_package() -> None:
    for template in DEFAULTS:
        assert all("==" in pin for pin in (*template.packages, *template.constraints))


def test_user_definition_replaces_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLWALL_CONFIG_DIR", str(tmp_path))
    (tmp_path / "templates.toml").write_text("[templates.data]\npackages = ['x==1']\n")
    known = TemplateStore(tmp_path).definitions()
    assert known["data"].packages == ("x==1",)
    assert known["python"] == DEFAULTS[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[templates.x]\ncolour = 'green'", "unknown field 'colour'"),
        ("[templates.x]\npackages = 'numpy'", "packages is of the wrong type"),
        ("[templates.x]\nenv = {A = 1}", "env is of the wrong type"),
        ("templates = 3", "no table of templates"),
        ("[x]\npackages = []", "unknown 'x'"),
        ("[", "templates.toml"),
    ],
)
def test_wrong_definition_file_says_what_is_wrong(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLWALL_CONFIG_DIR", str(tmp_path))
    (tmp_path / "templates.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        template_definitions.definitions()


def test_unknown_template_lists_the_defined_ones(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="data, python"):
        TemplateStore(tmp_path).find("quantum")


def test_state_dir_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLWALL_STATE_DIR", "/srv/cells")
    assert state_dir() == Path("/srv/cells")


def test_pip_settings_reach_uv(tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://a.test/simple\ntrusted-host = a.test\n")
    environ = {"PIP_CONFIG_FILE": str(config), "PIP_EXTRA_INDEX_URL": "file:///x\n file:///y"}
    found = uv_variables(environ | {"HOME": str(tmp_path)})
    assert found["UV_DEFAULT_INDEX"] == "https://a.test/simple"
    assert found["UV_INSECURE_HOST"] == "a.test"
    assert found["UV_INDEX"] == "file:///x file:///y"
    assert found["UV_INDEX_STRATEGY"] == "unsafe-best-match"


def test_uv_settings_win_over_pips() -> None:
    environ = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "https://a.test"}
    assert uv_variables(environ, ()) == {"UV_DEFAULT_INDEX": "https://a.test"}
    assert uv_variables(environ | {"UV_INDEX_URL": "https://b.test"}, ()) == {}


@pytest.mark.parametrize(
    ("said", "trusted"),
    [
        ({}, {"SSL_CERT_FILE": "{here}/system.pem"}),
        ({"PIP_CERT": "/pip.pem"}, {"SSL_CERT_FILE": "/pip.pem"}),
        ({"SSL_CERT_FILE": "/mine.pem"}, {}),
        ({"SSL_CERT_DIR": "/mine"}, {}),
        ({"UV_SYSTEM_CERTS": "false"}, {}),
    ],
)
def test_uv_trusts_whom_pip_trusts(
    tmp_path: Path, said: dict[str, str], trusted: dict[str, str]
) -> None:
    """The machine's own bundle, where an administrator's authority is, unless somebody chose."""
    bundle = tmp_path / "system.pem"
    bundle.touch()
    stores = (str(tmp_path / "absent.pem"), str(bundle))
    found = uv_variables({"PIP_CONFIG_FILE": os.devnull} | said, stores)
    assert found == {name: path.format(here=tmp_path) for name, path in trusted.items()}
    assert uv_variables({"PIP_CONFIG_FILE": os.devnull}, stores[:1]) == {}

"""What the package broker is made of: handed over once; what is wrong is said at once."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest

from cellwall import HostUnsupported
from cellwall.egress.proxy.proxy_process import PackageSource
from cellwall.engine.engine import Engine
from cellwall.engine.parts.package_registries import open_files
from cellwall.engine.templates.store import TemplateStore, state_dir
from kit.outside.world import World, world
from kit.packages import registries
from kit.packages.made import wheel

pytestmark = pytest.mark.root

_PAGE = "http://packages.cellwall.internal/simple/alpha/"
_INSTALL = "pip install -q alpha && python -c 'import alpha; print(alpha.version)'"


def _pid(made: World) -> int | None:
    async def pid(engine: Engine) -> int | None:
        return engine.outside.proxy.pid

    found: int | None = made.runner.call(lambda engine, _put: pid(engine))
    return found


def _wait(what: Callable[[], object]) -> None:
    until = time.monotonic() + 30
    while not what():
        assert time.monotonic() < until
        time.sleep(0.01)


def _upstream(registry: registries.Registry) -> dict[str, object]:
    return {"package_registries": ({"registry": "pypi", "url": registry.url("/simple")},)}


@pytest.mark.parametrize("content", [None, "no certificate"], ids=["missing", "wrong"])
def test_wrong_certificates_are_an_error_of_the_first_sandbox(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    bundle = tmp_path / "bundle.pem"
    if content is not None:
        bundle.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    with registries.running() as registry, world("jail", settings=_upstream(registry)) as made:
        for options in ({"network": "packages"}, {"network": None, "packages": ["alpha"]}):
            with pytest.raises(HostUnsupported, match=f"the certificates in {bundle}") as caught:
                made.sandbox(**options)
            assert "SSL_CERT_FILE" in str(caught.value.remedy)
        with made.sandbox(["web.test"]) as other:
            assert other.run("1").outcome.verdict == "ok"
        bundle.write_text(made.authority)
        registry.add(wheel("alpha"))
        with made.sandbox("packages") as sandbox:
            assert sandbox.commands.run(_INSTALL).stdout == "1.0\n"


def test_certificates_of_the_operator_may_be_closed_to_the_proxy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has another user's id, and gets what the engine opened."""
    with registries.running() as registry, world("jail", settings=_upstream(registry)) as made:
        registry.add(wheel("alpha"))
        bundle = tmp_path / "bundle.pem"
        bundle.touch(mode=0o600)
        bundle.write_text(made.authority)
        tmp_path.chmod(0o700)
        monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
        with made.sandbox("packages") as sandbox:
            assert sandbox.commands.run(_INSTALL).stdout == "1.0\n"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[World]:
    """A world with a state directory of its own, in which root alone may look."""
    tmp_path.chmod(0o700)
    with registries.running() as registry:
        registry.add(wheel("alpha"))
        more = {"directory": tmp_path / "state", "templates": TemplateStore(state_dir())}
        with world("jail", settings=_upstream(registry), **more) as made:
            yield made


def _spoiled(made: World, state: Path) -> Path:
    """Put a file where the proxy's cache has a folder; return it."""
    uid = os.stat(f"/proc/{_pid(made)}").st_uid
    folder = state / "packages" / str(uid)
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        folder.mkdir(mode=0o700)
        os.chown(folder, uid, uid)
    shutil.rmtree(folder / "parts", ignore_errors=True)
    (folder / "parts").touch()
    return folder / "parts"


def test_a_folder_that_is_no_cache_is_an_error_of_the_first_sandbox(
    own: World, tmp_path: Path
) -> None:
    with own.sandbox(["web.test"]):
        file = _spoiled(own, tmp_path / "state")
        with pytest.raises(HostUnsupported, match=f"the folder {file.parent} ") as caught:
            own.sandbox("packages")
        assert "/proc/" not in str(caught.value)
        assert caught.value.remedy == "remove it; it is made again"
        file.unlink()
        with own.sandbox("packages") as sandbox:
            assert sandbox.commands.run(_INSTALL).stdout == "1.0\n"


def test_a_new_proxy_goes_on_without_a_broker_that_cannot_be_made(
    own: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = own.web.port
    get = f"import urllib.request; urllib.request.urlopen('http://web.test:{port}/', timeout=5)"
    page = f"import urllib.request; urllib.request.urlopen('{_PAGE}', timeout=5)"
    with own.sandbox({"allow": [f"web.test:{port}"], "packages": True}) as sandbox:
        assert sandbox.run(page).error is None
        file = _spoiled(own, tmp_path / "state")
        first = _pid(own)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        _wait(lambda: _pid(own) not in (None, first))
        _wait(lambda: sandbox.run(get).error is None)
        assert "403" in str(sandbox.run(page).error)
        rules = [record["rule"] for record in sandbox.network_log()]
        assert "no package broker runs here" in rules
        assert "has no package broker" in caplog.text
        with pytest.raises(HostUnsupported, match="cannot be used"):
            own.sandbox("packages")
        file.unlink()
        with own.sandbox("packages"):
            assert sandbox.run(page).error is None, "the first one has it again as well"


def test_a_proxy_gets_one_broker_however_many_want_it_first(own: World, tmp_path: Path) -> None:
    opened: list[int] = []

    def open_folder(uid: int) -> list[int]:
        opened.append(uid)
        return open_files(tmp_path, None, uid)

    def watch(engine: Engine, _put: object) -> Coroutine[object, object, None]:
        async def at_once() -> None:
            proxy, source = engine.outside.proxy, PackageSource([], open_folder)
            await asyncio.gather(*(proxy.serve_packages(source) for _ in range(5)))

        return at_once()

    own.runner.call(watch)
    assert len(opened) == 1

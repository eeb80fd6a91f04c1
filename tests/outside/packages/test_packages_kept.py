"""Packages that come again are put into a sandbox as the installer left them in another one.

Only for the same caller and question, and never with what a program made of them; the witnesses are
the engine's count of sandboxes that got them so, and the egress proxy's record of connections.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from cellwall import Sandbox
from cellwall.engine.engine import Engine
from cellwall.engine.packages import kept
from cellwall.engine.packages.kept import KeptInstallations
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.model.errors import UsageError
from cellwall.runtimes.channel import sealed_files
from conftest import ground
from kit.outside.world import World, world
from kit.packages import registries
from kit.packages.made import wheel
from kit.packages.registries import Registry
from kit.waiting import wait_until

pytestmark = pytest.mark.root

_SAYS = "import alpha, beta; print(alpha.version, beta.version)"


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with registries.running() as made:
        made.add(wheel("alpha", "1.0", requires=("beta>=2",)))
        made.add(wheel("beta", "2.0"))
        made.add(wheel("large", "1.0", padding=b"." * (4 << 20)))
        yield made


_OTHERS = [pytest.param(name, marks=pytest.mark.again) for name in ("gvisor", "docker")]


@pytest.fixture(scope="module", params=["jail", *_OTHERS])
def ours(request: pytest.FixtureRequest, registry: Registry) -> Iterator[World]:
    settings = {"package_registries": ({"registry": "pypi", "url": registry.url("/simple")},)}
    more = ground(request, request.param)
    if request.param == "docker":
        more["templates"] = TemplateStore(state_dir())  # a bare one has no installer
    with world(request.param, settings=settings, **more) as made:
        yield made


def test_large_file_goes_to_where_packages_are_as_bytes(
    ours: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was installed may have run; without it a jail is given a file in memory."""
    given: list[int] = []
    send = sealed_files._request_with_file

    async def noted(channel: Any, op: str, content: Any, fields: Any) -> Any:
        given.append(len(content))
        return await send(channel, op, content, fields)

    monkeypatch.setattr(sealed_files, "_request_with_file", noted)
    size = 2 << 20
    code, files = "import os\nprint(os.path.getsize('large.bin'))", {"large.bin": b"x" * size}
    for packages in ([], ["alpha"]):
        given.clear()
        assert ours.run(code, "packages", files=files, packages=packages) == f"{size}\n"
        assert given == ([size] if ours.runtime == "jail" and not packages else [])


@pytest.fixture(autouse=True)
def nothing_kept(ours: World) -> None:
    """Have each test begin as after the start of an engine."""

    def forget(engine: Engine, _put: Any) -> Any:
        async def work() -> None:
            engine._installations.close()
            engine._installations._asked.clear()
            engine._installations.placed = 0

        return work()

    ours.runner.call(forget)


def placed(ours: World) -> int:
    """Return how many sandboxes got what was kept."""

    def count(engine: Engine, _put: Any) -> Any:
        async def work() -> int:
            return engine._installations.placed

        return work()

    return int(ours.runner.call(count))


def sandbox(ours: World, *packages: str, **options: Any) -> Sandbox:
    return ours.sandbox(None, packages=list(packages or ("alpha",)), **options)


def test_the_third_has_the_files_of_the_second(ours: World) -> None:
    for number in range(4):
        with sandbox(ours) as made:
            assert placed(ours) == max(0, number - 1)
            assert made.run(_SAYS).stdout == "1.0 2.0\n"
            names = {each["name"] for each in made.network_log() if each["event"] == "package"}
            assert names == {"alpha-1.0-py3-none-any.whl", "beta-2.0-py3-none-any.whl"}
            asked_broker = any(each["event"] == "open" for each in made.network_log())
            assert asked_broker == (number < 2)
            listed = made.commands.run("uv pip list; uv pip check; ls -A ~")
            assert "alpha" in listed.stdout
            assert "beta" in listed.stdout
    assert ours.run(_SAYS, None, packages=["alpha"]) == "1.0 2.0\n"  # a program's alike
    assert placed(ours) == 3


def test_a_sandbox_with_kept_packages_installs_and_removes_others(ours: World) -> None:
    for _ in range(3):
        with sandbox(ours, "beta") as made:
            assert made.install(["alpha"]).packages == ("alpha==1.0",)
            assert made.run(_SAYS).stdout == "1.0 2.0\n"
            assert made.commands.run("uv pip uninstall alpha beta").ok
            assert made.run("import importlib.util as u; print(u.find_spec('beta'))").ok
            assert made.commands.run("python3 -c 'import beta'").exit_code == 1
    assert placed(ours) == 1


@pytest.mark.parametrize("other", ["tenant", "env", "requirement", "policy"])
def test_who_asks_for_another_gets_none_of_it(ours: World, other: str) -> None:
    own = {"packages": {"registries": ["pypi"]}} if other == "policy" else None
    for _ in range(2):
        ours.sandbox(own, packages=["alpha"]).close()
    options: dict[str, Any] = {"packages": ["alpha"]}
    network: object = None
    if other == "tenant":
        options["tenant"] = "another"
    elif other == "env":
        options["env"] = {"UV_NO_DEPS": "0"}
    elif other == "requirement":
        options["packages"] = ["alpha==1.0"]
    else:
        network = {"packages": {"registries": ["pypi"], "allow": ["alpha", "beta"]}}

    def make(engine: Engine, _put: Any) -> Any:
        async def work() -> str:
            given = {**ours._where, **options}
            async with await engine.create_sandbox(network=network, **given) as made:
                return (await made.run(_SAYS)).stdout

        return work()

    assert ours.runner.call(make) == "1.0 2.0\n"
    assert placed(ours) == 0
    with ours.sandbox(own, packages=["alpha"]) as made:  # the control: the same has it
        assert made.run(_SAYS).stdout == "1.0 2.0\n"
    assert placed(ours) == 1


def test_what_a_program_makes_of_its_packages_stays_with_it(ours: World) -> None:
    spoil = (
        "import beta, pathlib\n"
        "pathlib.Path(beta.__file__).write_text('version = \"poisoned\"')\n"
        "print(1)"
    )
    for _ in range(4):
        with sandbox(ours) as made:
            assert made.run(_SAYS).stdout == "1.0 2.0\n"
            assert made.run(spoil).stdout == "1\n"
    assert placed(ours) == 2


def test_files_taken_after_a_program_ran_would_be_its(
    ours: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test before: taken later, they would have the program's word."""
    real = KeptInstallations._keep

    async def late(self: KeptInstallations, asked: bytes, live: Any) -> None:
        found = f"{kept._FOLDER}/lib/python3.11/site-packages/beta.py"
        await live.channel.request(
            "file_write",
            b"version = 'poisoned'",
            path=found,
            append=False,
            parents=True,
            mode=None,
        )
        await real(self, asked, live)

    monkeypatch.setattr(KeptInstallations, "_keep", late)
    for _ in range(2):
        sandbox(ours).close()
    with sandbox(ours) as made:
        assert "poisoned" in made.run(_SAYS).stdout


def test_what_was_asked_for_long_ago_does_not_come_again(
    ours: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox(ours).close()
    with monkeypatch.context() as later:
        later.setattr(kept, "_now_s", lambda: asyncio.get_running_loop().time() + kept.KEPT_S)
        sandbox(ours).close()
    with sandbox(ours) as made:
        assert made.run(_SAYS).stdout == "1.0 2.0\n"
    assert placed(ours) == 0


def test_a_sandbox_that_is_too_small_gets_the_installers_reason(ours: World) -> None:
    for _ in range(2):
        sandbox(ours, "large").close()
    with pytest.raises(UsageError, match="large"):
        sandbox(ours, "large", limits={"disk_mb": 2})
    assert placed(ours) == 0


def test_no_more_is_kept_than_is_allowed(ours: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_LARGEST_BYTES", 1 << 20)
    for _ in range(3):
        with sandbox(ours, "large") as made:
            assert made.run("import large; print(large.version)").stdout == "1.0\n"
    assert placed(ours) == 0


def test_the_oldest_gives_way(ours: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_MOST_BYTES", 5 << 20)
    for name, so_far in (("alpha", 1), ("large", 2)):
        for _ in range(3):
            sandbox(ours, name).close()
        assert placed(ours) == so_far
    monkeypatch.setattr(kept, "_MOST_BYTES", 4 << 20)  # less than the second takes alone
    for _ in range(2):
        sandbox(ours, "beta").close()
    sandbox(ours, "alpha").close()
    assert placed(ours) == 2
    sandbox(ours, "beta").close()
    assert placed(ours) == 3


def test_a_file_that_cannot_be_read_is_installed_anew(
    ours: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        sandbox(ours).close()

    async def fails(_kept: object) -> AsyncIterator[bytes]:
        yield b"half of"
        raise OSError(errno.EIO, "of a disk")

    monkeypatch.setattr(kept, "_pieces", fails)
    with sandbox(ours) as made:
        assert made.run(_SAYS).stdout == "1.0 2.0\n"
    assert placed(ours) == 0


def test_what_is_kept_ends_by_itself(ours: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no caller asks for it again."""
    monkeypatch.setattr(kept, "KEPT_S", 1.0)
    monkeypatch.setattr(KeptInstallations, "_comes_again", lambda *_: True)
    forget, ended = KeptInstallations._forget, list[bool]()

    def forgotten(self: KeptInstallations, asked: bytes) -> None:
        (each,) = self._kept.values()
        forget(self, asked)
        ended.append(each.file.closed and not self._kept)

    monkeypatch.setattr(KeptInstallations, "_forget", forgotten)
    sandbox(ours).close()
    wait_until(lambda: ended, "it has ended")
    assert ended == [True]

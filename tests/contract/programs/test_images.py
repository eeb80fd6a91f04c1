"""Sandboxes on an image: what of it holds inside, and the store of images."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.model.errors import Conflict, HostUnsupported, NotFound, UsageError
from conftest import Require
from kit import command_line, waiting
from kit.images import archives
from kit.images.archives import config_of, layer, small_root
from kit.images.host_tree import APP, host_tree
from kit.images.host_tree import image as host_image

pytestmark = pytest.mark.root
OWN = {
    "Env": ["PATH=/bin:/usr/bin", "GREETING=hello"],
    "WorkingDir": "/app",
    "Cmd": ["/usr/bin/id"],
}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small image of this machine's own programs, without Python."""
    root = layer(small_root())
    place = tmp_path_factory.mktemp("image")
    return archives.docker_archive(place / "small.tar", [root], config_of([root], **OWN))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def templates(request: pytest.FixtureRequest, runtime: str) -> Any:
    """The usual templates; for containers a bare one, of which an image is made in a second."""
    if runtime == "docker":
        return request.getfixturevalue("docker_ground")[1]
    return TemplateStore(state_dir())


def made(place: Path, templates: Any = None, **settings: Any) -> Engine:
    settings = {"pool_min": 0, "pool_max": 0, **settings}
    known = templates or TemplateStore(state_dir())
    return Engine(place, EngineSettings(**settings), templates=known)


@asynccontextmanager
async def engine_in(place: Path, **settings: Any) -> AsyncIterator[Engine]:
    engine = made(place, **settings)
    try:
        yield engine
    finally:
        await engine.aclose()


@pytest.fixture(scope="module", params=["jail", "gvisor", "docker"])
def runtime(request: pytest.FixtureRequest, require: Require) -> str:
    """Each runtime on which images are roots."""
    name: str = request.param
    if name == "gvisor":
        require("gvisor", shutil.which("runsc") is not None, "run: apt-get install runsc")
    return name


@pytest.fixture(scope="module")
def inside(place: Path, image: Path, runtime: str, templates: Any) -> Iterator[Callable[..., Any]]:
    """Run a coroutine function with a new sandbox on the image."""
    with asyncio.Runner() as runner:
        engine = runner.run(_made(place, templates))

        def do(job: Callable[[AsyncSandbox], Awaitable[Any]], **options: Any) -> Any:
            async def done() -> Any:
                wanted = {"image": str(image), "runtime": runtime, **options}
                sandbox = await engine.create_sandbox(**wanted)
                try:
                    return await job(sandbox)
                finally:
                    await sandbox.close()

            return runner.run(done())

        yield do
        runner.run(engine.aclose())


async def _made(place: Path, templates: Any) -> Engine:
    return made(place, templates)


def test_the_image_says_environment_directory_and_user(inside: Callable[..., Any]) -> None:
    async def job(sandbox: AsyncSandbox) -> str:
        return (await sandbox.commands.run("id -u; pwd; echo $GREETING $HOME $PATH")).stdout

    assert inside(job) == "0\n/app\nhello /root /bin:/usr/bin\n"


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ("root", "uid=0(root) gid=0(root)"),
        ("app", "uid=1001(app) gid=1001"),
        ("1001", "uid=1001(app) gid=1001"),
        ("1001:50", "uid=1001(app) gid=50(staff)"),
        ("app:staff", "uid=1001(app) gid=50(staff)"),
        ("4711", "uid=4711 gid=0(root)"),
    ],
)
def test_users_of_the_image(inside: Callable[..., Any], user: str, said: str) -> None:
    async def job(sandbox: AsyncSandbox) -> str:
        return (await sandbox.commands.run(["id"])).stdout

    assert inside(job, user=user).startswith(said)


@pytest.mark.parametrize("user", ["nobody-here", "70000", "app:nothing", "-1", "0:70000"])
def test_users_that_the_image_does_not_have(inside: Callable[..., Any], user: str) -> None:
    async def job(_sandbox: AsyncSandbox) -> None:
        raise AssertionError("it started")

    with pytest.raises(UsageError, match="user"):
        inside(job, user=user)


def test_root_may_do_what_a_container_s_root_may(inside: Callable[..., Any]) -> None:
    async def job(sandbox: AsyncSandbox) -> Any:
        done = await sandbox.commands.run("echo x > /etc/new && chown 1001:50 /etc/new")
        # Not by stat(1): its system call is one that old versions of gVisor refuse.
        code = "import os; found = os.stat('/etc/new'); print(found.st_uid, found.st_gid)"
        return done, await sandbox.run(code)

    assert inside(job)[1].stdout == "1001 50\n"
    refused, looked = inside(job, user="app")
    assert "ermission denied" in refused.stderr
    assert looked.error.name == "FileNotFoundError"


LISTEN = """
import socket
with socket.socket() as sock:
    sock.bind(("127.0.0.1", 80))
    sock.listen()
    print(sock.getsockname()[1])
"""


def test_services_listen_on_port_80(tmp_path: Path, runtime: str, templates: Any) -> None:
    """The control is a jail on a template; the other walls let every user listen there."""
    tree = host_tree(tmp_path)

    async def scenario() -> None:
        async with engine_in(tmp_path / "state", templates=templates) as engine:
            for uid, said in ((0, "80\n"), (APP, "80\n")):
                sandbox = await engine.create_sandbox(image=host_image(tree, uid), runtime=runtime)
                assert (await sandbox.run(LISTEN)).stdout == said
                await sandbox.close()
            if runtime == "jail":
                sandbox = await engine.create_sandbox()
                error = (await sandbox.run(LISTEN)).error
                assert error is not None
                assert error.name == "PermissionError"
                await sandbox.close()

    asyncio.run(scenario())


def test_files_terminals_and_relative_paths(inside: Callable[..., Any]) -> None:
    async def job(sandbox: AsyncSandbox) -> None:
        await sandbox.files.write("made", "content")
        assert (await sandbox.commands.run(["cat", "/app/made"])).stdout == "content"
        assert await sandbox.files.read("/etc/group") == "root:x:0:\nstaff:x:50:\n"
        terminal = await sandbox.commands.start("echo $((6 * 7))", pty=(24, 80))
        said = b""
        while b"42" not in said:
            said += await asyncio.wait_for(terminal.read(), 20)
        await terminal.kill()

    inside(job)


CELL = """
import ctypes, hashlib, os, sqlite3, ssl, subprocess, sys
again = subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True)
print(os.getuid(), again.stdout.strip(), os.path.exists("/usr/lib/python3"), "\u00e9")
kept = 41
"""


@pytest.mark.parametrize(("user", "uid"), [("root", 0), ("app", 1001)])
def test_cells_in_an_image_without_python(inside: Callable[..., Any], user: str, uid: int) -> None:
    """An interpreter of ours runs them, with nothing of the image."""

    async def job(sandbox: AsyncSandbox) -> None:
        done = await sandbox.run(CELL)
        assert done.stdout == f"{uid} 42 False \u00e9\n", done
        assert (await sandbox.run("print(kept + 1)")).stdout == "42\n"
        missing = await sandbox.commands.run("python3 -c 1")
        assert missing.exit_code == 127  # it is not on the image's PATH

    inside(job, user=user)


def test_cells_are_run_by_the_image_s_own_python(
    tmp_path: Path, runtime: str, templates: Any
) -> None:
    tree = host_tree(tmp_path)

    async def scenario() -> None:
        async with engine_in(tmp_path / "state", templates=templates) as engine:
            sandbox = await engine.create_sandbox(image=host_image(tree), runtime=runtime)
            assert (await sandbox.run("import sys; print(sys.prefix)")).stdout == "/usr\n"
            await sandbox.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("options", "said"),
    [({"packages": ["six"]}, "template's environment"), ({"start": "exec"}, "by exec")],
)
def test_what_is_of_templates_is_refused(
    inside: Callable[..., Any], options: dict[str, Any], said: str
) -> None:
    async def job(_sandbox: AsyncSandbox) -> None:
        raise AssertionError("it started")

    with pytest.raises(UsageError, match=said):
        inside(job, **options)


@pytest.mark.parametrize("named", [5, b"./task.tar", Path("task.tar"), ["./task.tar"]])
def test_what_names_no_image_is_refused(inside: Callable[..., Any], named: object) -> None:
    async def job(_sandbox: AsyncSandbox) -> None:
        raise AssertionError("it started")

    with pytest.raises(UsageError, match="it is no text"):
        inside(job, image=named)


def test_a_user_without_an_image_is_refused(inside: Callable[..., Any]) -> None:
    async def job(_sandbox: AsyncSandbox) -> None:
        raise AssertionError("it started")

    with pytest.raises(UsageError, match="name an image"):
        inside(job, image=None, user="root")


def test_isolation_is_told(inside: Callable[..., Any], runtime: str) -> None:
    """Capabilities as a process inside reads them; the jail's posture has them, too."""

    async def job(sandbox: AsyncSandbox) -> list[str]:
        assert sandbox.isolation.runtime == runtime
        assert sandbox.isolation.hardness["disk_mb"] == "hard"
        status = (await sandbox.commands.run(["cat", "/proc/self/status"])).stdout
        lines = [line.split() for line in status.splitlines() if line.startswith("Cap")]
        found = [value for name, value in lines if name in {"CapEff:", "CapBnd:"}]
        if runtime == "jail":
            assert [sandbox.posture["CapEff"]] * 2 == found
        assert sandbox.isolation.ids == ("shared" if runtime == "gvisor" else "own")
        return found

    assert inside(job, user="root") == ["00000000200405fb"] * 2
    assert inside(job, user="app") == ["0000000000000000"] * 2


def test_process_refuses_an_image(place: Path, image: Path) -> None:
    """The runtime without a root of its own cannot have an image's."""

    async def scenario() -> None:
        async with engine_in(place, allow_process=True) as engine:
            with pytest.raises(HostUnsupported, match="cannot use one as the root"):
                await engine.create_sandbox(
                    image=str(image), runtime="process", isolation="process"
                )

    asyncio.run(scenario())


def test_store_lists_holds_and_removes(tmp_path: Path, image: Path) -> None:
    place = tmp_path

    async def scenario() -> None:
        async with engine_in(place) as one, engine_in(place) as other:
            root = await one.images.root(str(image))
            (stored,) = other.images.images()
            assert (stored.digest, stored.names) == (root.digest, ("small.tar",))
            assert not stored.has_python
            with pytest.raises(Conflict, match="an engine uses it"):
                await other.images.remove("small.tar")
            with pytest.raises(NotFound, match="none of that name"):
                await other.images.remove("other")
        async with engine_in(place) as engine:
            await engine.images.remove(root.digest[:20])
            assert engine.images.images() == []
            assert not await asyncio.to_thread(os.path.exists, root.tree)
            # Two at once: it is unpacked once.
            both = await asyncio.gather(*(engine.images.root(str(image)) for _ in range(2)))
            assert both[0] == both[1]

    asyncio.run(scenario())


def test_sandboxes_on_images_are_parked_apart(place: Path, image: Path) -> None:
    """A parked one is of its image and user; sandboxes on a template have theirs beside it."""

    async def scenario() -> None:
        async with engine_in(place, pool_min=1, pool_max=1) as engine:
            wanted: list[dict[str, Any]] = [
                {"image": str(image)},
                {"image": str(image), "user": "app"},
                {},
            ]
            for options in wanted:
                await (await engine.create_sandbox(**options)).close()
            await asyncio.to_thread(
                waiting.wait_until, lambda: engine.pool.statistics().parked == 3, "all are parked"
            )
            for options, uid in zip(wanted, ("0", "1001", "1000"), strict=True):
                sandbox = await engine.create_sandbox(**options)
                assert (await sandbox.commands.run(["id", "-u"])).stdout == f"{uid}\n"
                await sandbox.close()
            assert engine.pool.statistics().claims_parked == 3

    asyncio.run(scenario())


def test_changed_archive_is_another_image(place: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with engine_in(place) as engine:
            path = tmp_path / "task.tar"
            digests = []
            for text in (b"one", b"two"):
                archives.docker_archive(path, [layer([archives.member("file", text)])])
                digests.append((await engine.images.root(str(path))).digest)
            assert digests[0] != digests[1]
        async with engine_in(place) as engine:
            for each in digests:
                await engine.images.remove(each)

    asyncio.run(scenario())


def test_command_line(image: Path) -> None:
    def run(*words: str, **environ: str) -> command_line.Done:
        return command_line.start("run", "--image", str(image), *words, **environ)

    try:
        said = run("--user", "app", "--", "sh", "-c", "id -un; exit 3")
        assert (said.returncode, said.stdout) == (3, "app\n"), said.stderr
        assert run().stdout.startswith("uid=0(root)")
        own = ("--file", f"{Path(__file__)}:in/own", "--env", "OWN=1")
        seen = run(*own, "--", "sh", "-c", 'echo $OWN; read -r line < in/own; echo "$line"')
        assert seen.stdout == f"1\n{Path(__file__).read_text().splitlines()[0]}\n", seen.stderr
        secret = ("--secret", "KEY=env:MY_KEY@api.example.org", "--", "sh", "-c", "echo $KEY")
        placeholder = run(*secret, MY_KEY="a-value-of-some-length")
        assert placeholder.returncode == 0, placeholder.stderr
        assert len(placeholder.stdout) == len("a-value-of-some-length\n")
        assert "a-value" not in placeholder.stdout
        wrong = run("-c", "print(1)")
        assert wrong.returncode == 125
        assert "-c and --image do not go together" in wrong.stderr
        listed = command_line.start("images", "ls", "--json")
        assert [image.name] in [each["names"] for each in json.loads(listed.stdout)]
    finally:
        done = command_line.start("images", "rm", image.name)
    assert done.stdout.startswith("sha256:"), done.stderr

"""What a sandbox has become is an image: its files, owners, modes, links and deletions."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings
from cellwall.engine.images.commit import Committed, commit
from cellwall.engine.images.image_store import StoredImage
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.images.image import ImageInvalid
from cellwall.model.errors import CellwallError
from kit.images import archives
from kit.images.archives import config_of, layer, small_root

_OF_LIBC = 3 << 31
"""Signals 32 and 33: glibc keeps them, and what started the tests may ignore them."""

pytestmark = pytest.mark.root
CHANGES = """
echo new > /app/new; chown 1001:50 /app/new; chmod 4750 /app/new
ln -s /etc/passwd /app/link; ln /app/new /app/other
echo changed > /etc/group
rm /home/app/old; rmdir /home/gone
"""
LOOK = """
stat -c '%u:%g %a %h' /app/new; cat /app/other /etc/group; ls /home /home/app; ls -d /app/link
cat /app/link | head -1
"""


def archive(place: Path) -> str:
    extra = [archives.member("home/app/old", b"x"), archives.directory("home/gone")]
    extra += [
        archives.member(f"bin/{name}", Path(f"/bin/{name}").read_bytes(), mode=0o755)
        for name in ("rm", "rmdir", "chmod", "ln", "head", "sleep")
    ]
    root = layer([*small_root(), *extra])
    own = {"Env": ["PATH=/bin:/usr/bin"], "WorkingDir": "/app"}
    return str(archives.docker_archive(place / "base.tar", [root], config_of([root], **own)))


def made(place: Path) -> Engine:
    settings = EngineSettings(pool_min=0, pool_max=0)
    return Engine(place, settings, templates=TemplateStore(state_dir()))


async def committed(engine: Engine, sandbox: AsyncSandbox, **how: object) -> StoredImage:
    base = engine.images.images()[-1]
    said = Committed(**{"name": "built", **how})  # type: ignore[arg-type] # a test's words
    return await commit(engine.images, engine.state_dir / "images", sandbox, base.config, said)


def test_what_changed_is_in_the_image(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = made(tmp_path / "state")
        try:
            base = archive(tmp_path)
            sandbox = await engine.create_sandbox(image=base, user="root")
            done = await sandbox.commands.run(CHANGES)
            assert done.stderr == ""
            wanted = (await sandbox.commands.run(LOOK)).stdout
            assert wanted.startswith("1001:50 4750 2\nnew\nchanged\n")
            stored = await committed(engine, sandbox, history=["RUN changes"])
            await sandbox.close()
            assert stored.names == ("built:latest",)
            other = await engine.create_sandbox(image="built", user="root")
            assert (await other.commands.run(LOOK)).stdout == wanted
            await other.close()
            # The control: the image that it came from is as it was.
            first = await engine.create_sandbox(image=base, user="root")
            assert (await first.commands.run("ls /home /app")).stdout.split() == [
                *("/app:", "/home:", "app", "gone")
            ]
            await first.close()
        finally:
            await engine.aclose()

    asyncio.run(scenario())


def test_processes_are_dead_before_it_is_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = made(tmp_path / "state")
        try:
            sandbox = await engine.create_sandbox(image=archive(tmp_path), user="root")
            words = "while :; do echo more >> /app/grows; done"
            left = await sandbox.commands.start(["sh", "-c", words])
            await committed(engine, sandbox)
            assert (await left.wait()).outcome.signal == 9
            await sandbox.close()
        finally:
            await engine.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("before", "how", "said"),
    [
        ("echo > /app/.wh..wh..opq", {}, "cannot hold such a name"),
        ("", {"most_bytes": 1 << 20}, "more than 1048576 bytes"),
        ("", {"name": "./built"}, "cannot name one"),
    ],
)
def test_a_root_that_is_no_image(
    tmp_path: Path, before: str, how: dict[str, object], said: str
) -> None:
    """Nothing is left of it."""

    async def scenario() -> None:
        engine = made(tmp_path / "state")
        try:
            sandbox = await engine.create_sandbox(image=archive(tmp_path), user="root")
            await sandbox.commands.run(before or "true")
            with pytest.raises((ImageInvalid, CellwallError), match=said):
                await committed(engine, sandbox, **how)
            await sandbox.close()
            assert len(engine.images.images()) == 1
            left = await asyncio.to_thread(os.listdir, engine.state_dir / "images")
            assert not [name for name in left if name.startswith(".building")]
        finally:
            await engine.aclose()

    asyncio.run(scenario())


def test_changes_are_shown_for_reading_and_only_where_asked(tmp_path: Path) -> None:
    """The control is a sandbox that becomes no image: it is shown none of its own."""
    look = "echo x > /app/x; ls /opt/cellwall/changes; echo y > /opt/cellwall/changes/app/y; rm {}"

    async def scenario() -> None:
        engine = made(tmp_path / "state")
        try:
            root = await engine.images.root(archive(tmp_path), "root")
            shown = await engine.create_sandbox(image=replace(root, shows_changes=True))
            line = look.format("/opt/cellwall/changes/app/x")
            done = await shown.commands.run(line)
            assert done.stdout == "app\n"
            assert done.stderr.count("Read-only file system") == 2
            await shown.close()
            plain = await engine.create_sandbox(image=root)
            hidden = await plain.commands.run(line)
            assert hidden.stdout == ""
            assert "/app/y" in hidden.stderr
            await plain.close()
            engine.images.let_go(root.digest)
        finally:
            await engine.aclose()

    asyncio.run(scenario())


def test_commands_have_the_user_that_is_named(tmp_path: Path) -> None:
    """On pipes and on a terminal, with groups and home; only root may become another."""

    async def scenario() -> None:
        engine = made(tmp_path / "state")
        try:
            base = archive(tmp_path)
            sandbox = await engine.create_sandbox(image=base, user="root")
            await sandbox.commands.run("echo 'more:x:60:app,other' >> /etc/group")
            line = "id; echo $HOME; cat < /dev/stdin; echo out > /dev/stdout; echo e > /dev/stderr"
            done = await sandbox.commands.run(line, user="app", stdin="in\n")
            want = "uid=1001(app) gid=1001 groups=1001,60(more)\n/home/app\nin\nout\n"
            assert (done.stdout, done.stderr) == (want, "e\n")
            status = await sandbox.commands.run(["/bin/cat", "/proc/self/status"], user="app")
            masks = dict(line.split(":\t") for line in status.stdout.splitlines() if ":\t" in line)
            assert [int(masks[name], 16) & ~_OF_LIBC for name in ("SigBlk", "SigIgn")] == [0, 0]
            number = await sandbox.commands.run(["id", "-u"], user="4000:50")
            assert number.stdout == "4000\n"
            started = await sandbox.commands.start("id -un > /dev/tty", pty=(24, 80), user="app")
            assert b"app" in await started.read()
            await started.wait()
            with pytest.raises(CellwallError, match="has no user 'missing'"):
                await sandbox.commands.run("id", user="missing")
            await sandbox.close()
            plain = await engine.create_sandbox(image=base, user="app")
            assert (await plain.commands.run("id -u", user="app")).stdout == "1001\n"
            with pytest.raises(CellwallError, match="cannot become 'root'"):
                await plain.commands.run("id", user="root")
            await plain.close()
        finally:
            await engine.aclose()

    asyncio.run(scenario())

"""Images from Dockerfiles: steps, stages, what was done before, and what fails."""

from __future__ import annotations

import asyncio
import gzip
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cellwall import Engine, EngineSettings, Images, ImageSteps, Sandbox
from cellwall.embedded import Runner
from cellwall.engine.images.builder import BuildEvent, BuildFailed, BuildRequest, build
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.images.dockerfile import DockerfileInvalid
from cellwall.images.image import ImageInvalid
from cellwall.model.errors import NotFound
from kit.images import archives
from kit.images.archives import config_of, layer, small_root

pytestmark = pytest.mark.root
TOOLS = ("rm", "chmod", "mkdir", "sleep", "touch")
TWO_STAGES = """
ARG BASE=none
FROM {base} AS maker
ARG WORD=default
ENV GREETING="hello $WORD"
WORKDIR /made/here
RUN echo "$GREETING" > said && pwd > where
FROM {base} AS unused
RUN exit 9
FROM {base}
COPY --chown=1001:50 files /data/
COPY --from=maker /made/here /from
WORKDIR /app
USER app
CMD ["/bin/cat", "/from/said"]
"""


def made(place: Path) -> Engine:
    settings = EngineSettings(pool_min=0, pool_max=0)
    return Engine(place, settings, templates=TemplateStore(state_dir()))


def with_engine(place: Path, job: Callable[[Engine], Awaitable[None]]) -> None:
    async def scenario() -> None:
        engine = made(place)
        try:
            await job(engine)
        finally:
            await engine.aclose()

    asyncio.run(scenario())


def base_in(place: Path) -> str:
    extra = [
        archives.member(f"bin/{name}", Path(f"/bin/{name}").read_bytes(), mode=0o755)
        for name in TOOLS
    ]
    root = layer([*small_root(), *extra])
    path = place / "base.tar"
    archives.docker_archive(path, [root], config_of([root], Env=["PATH=/bin:/usr/bin"]))
    return str(path)


def asked(text: str, context: Path | None, events: list[BuildEvent], **more: Any) -> BuildRequest:
    return BuildRequest(text.encode(), context, on_event=events.append, **more)


def test_stages_files_users_and_what_was_done_before(tmp_path: Path) -> None:
    context = tmp_path / "context"
    (context / "files").mkdir(parents=True)
    (context / "files" / "one").write_text("content\n")
    (context / "files" / "secret").write_text("ignored\n")
    (context / ".dockerignore").write_text("**/secret\n")
    text = TWO_STAGES.format(base=base_in(tmp_path))

    async def job(engine: Engine) -> None:
        events: list[BuildEvent] = []
        words = {"name": "task:1", "arguments": {"WORD": "there"}}
        stored = await build(engine, asked(text, context, events, **words))
        assert events[-1].text == stored.digest
        assert not [each for each in events if each.kind == "cached" or "exit 9" in each.text]
        sandbox = await engine.create_sandbox(image="task:1")
        said = await sandbox.commands.run(
            "id -un; pwd; cat /from/said /from/where; stat -c '%u:%g' /data/one; ls /data"
        )
        await sandbox.close()
        assert said.stdout == "app\n/app\nhello there\n/made/here\n1001:50\none\n"
        again: list[BuildEvent] = []
        assert (await build(engine, asked(text, context, again, **words))).digest == stored.digest
        assert {each.kind for each in again} == {"step", "cached", "done"}
        (context / "files" / "one").write_text("other\n")
        other = await build(engine, asked(text, context, again, **words))
        assert other.digest != stored.digest
        assert engine.images.find("task:1").digest == other.digest

    with_engine(tmp_path / "state", job)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("RUN echo some words; exit 3", "line 2: RUN: it ended with 3: some words"),
        ("COPY ../.. /a", "line 2: COPY: '../..' leads out"),
        ("COPY out/passwd /a", "leads out of the context by a link"),
        ("COPY missing /a", "the context has no 'missing'"),
        ("ADD https://example.org/x /a", "URLs are not added"),
        ("ADD odd.tar /a", "an archive is unpacked to `/` alone"),
        ("ADD odd.tar /", "line 2: ADD: .*damaged header"),
        ("ADD odd.tar.gz /", "cannot be read"),
        ("ADD out.tar /", "line 2: ADD: 'out.tar' cannot be read"),
        ("USER nobody-here\nRUN id", "line 3: RUN: .*has no user 'nobody-here'"),
    ],
)
def test_what_fails_says_its_line_and_leaves_nothing(tmp_path: Path, text: str, said: str) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "out").symlink_to("/etc")
    (context / "odd.tar").write_bytes(b"odd" * 1000)
    (context / "odd.tar.gz").write_bytes(gzip.compress(b"odd")[:-6])
    (context / "out.tar").symlink_to("/etc/passwd")

    async def job(engine: Engine) -> None:
        whole = f"FROM {base_in(tmp_path)}\n{text}\n"
        with pytest.raises((BuildFailed, DockerfileInvalid, ImageInvalid), match=said):
            await build(engine, asked(whole, context, [], name="bad"))
        assert len(engine.images.images()) == 1
        left = await asyncio.to_thread(os.listdir, engine.state_dir / "images")
        assert not [name for name in left if name.startswith(".coming")]
        assert not engine._sandboxes

    with_engine(tmp_path / "state", job)


def test_links_in_the_context_lead_nowhere_on_the_host(tmp_path: Path) -> None:
    """The control: the link itself arrives, and leads within the sandbox."""
    context = tmp_path / "context"
    context.mkdir()
    secret = tmp_path / "secret"
    secret.write_text("of the host\n")
    (context / "link").symlink_to(secret)
    (context / "plain").write_text("plain\n")

    async def job(engine: Engine) -> None:
        text = f"FROM {base_in(tmp_path)}\nCOPY . /data/\n"
        await build(engine, asked(text, context, [], name="links"))
        sandbox = await engine.create_sandbox(image="links", user="root")
        said = await sandbox.commands.run("cat /data/plain; ls -l /data/link; cat /data/link")
        await sandbox.close()
        assert said.stdout.startswith("plain\n")
        assert str(secret) in said.stdout
        assert "of the host" not in said.stdout
        assert said.exit_code == 1

    with_engine(tmp_path / "state", job)


def test_a_build_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    async def job(engine: Engine) -> None:
        started = asyncio.Event()

        def heard(event: BuildEvent) -> None:
            if event.kind == "output":
                started.set()

        text = f"FROM {base_in(tmp_path)}\nRUN echo begun; sleep 1000\n"
        request = BuildRequest(text.encode(), on_event=heard)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(build(engine, request))
            await asyncio.wait_for(started.wait(), 60)
            task.cancel()
        assert task.cancelled()
        assert not engine._sandboxes
        left = await asyncio.to_thread(os.listdir, engine.state_dir / "images")
        assert not [name for name in left if name.startswith(".coming")]

    with_engine(tmp_path / "state", job)


def test_steps_in_python_are_built_by_the_library(tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "notes.txt").write_text("kept\n")
    steps = (
        ImageSteps(base_in(tmp_path))
        .env(GREETING="it's $HOME")
        .workdir("/app")
        .copy("notes.txt", "/app/notes.txt", owner="1001:50")
        .run('echo "$GREETING" > said')
        .user("app")
        .command("/bin/cat", "said", "notes.txt")
    )
    runner = Runner(lambda: made(tmp_path / "state"))
    try:
        images = Images(runner)
        stored = images.build(steps, context=context, name="described")
        assert [each.names for each in images.all() if each.digest == stored.digest] == [
            ("described:latest",)
        ]
        with Sandbox(image="described", runner=runner) as sandbox:
            assert sandbox.commands.run("id -un; cat said notes.txt").stdout == (
                "app\nit's $HOME\nkept\n"
            )
        with pytest.raises(NotFound):
            images.remove("never")
    finally:
        runner.close()


def test_words_that_are_gone_are_not_in_a_later_image(tmp_path: Path) -> None:
    """The step is taken from the first build, and what was said behind it is not."""

    async def job(engine: Engine) -> None:
        first = f'FROM {base_in(tmp_path)}\nRUN touch /made\nUSER app\nCMD ["/bin/id"]\n'
        stored = await build(engine, asked(first, None, []))
        assert (stored.config.user, stored.config.command) == ("app", ("/bin/id",))
        assert len(engine.images.images()) == 2  # the base, and one for all of it
        again: list[BuildEvent] = []
        second = f"FROM {base_in(tmp_path)}\nRUN touch /made\nENV WORD=1\n"
        other = await build(engine, asked(second, None, again))
        assert [each.kind for each in again] == ["step", "step", "cached", "step", "done"]
        assert other.config.user in {"", "root"}
        assert other.config.command == ()
        sandbox = await engine.create_sandbox(image=other.digest)
        said = await sandbox.commands.run("id -u; echo $WORD; ls /made")
        await sandbox.close()
        assert said.stdout == "0\n1\n/made\n"

    with_engine(tmp_path / "state", job)


LAYERS = """FROM {base}
RUN mkdir /app && echo one > /app/one && mkdir -m 700 /home/d && echo x > /home/d/x
RUN rm -r /home/d /app/one && mkdir /home/d && echo y > /home/d/y && echo new >> /etc/group
"""


def test_a_step_costs_what_it_changed(tmp_path: Path) -> None:
    """What it left as it was is one file on disk, with the image below; that one is not changed."""

    async def job(engine: Engine) -> None:
        base = base_in(tmp_path)
        first = await engine.create_sandbox(image=base, user="root")
        await first.close()
        (below,) = engine.images.images()
        stored = await build(engine, asked(LAYERS.format(base=base), None, [], name="top"))
        assert len(stored.config.diff_ids) == 3
        assert 0 < stored.own_bytes < 4096 < stored.size_bytes
        middle = engine.images.get(stored.below)
        assert middle is not None
        assert middle.below == below.digest
        trees = [
            engine.state_dir / "images" / each.digest[7:] / "tree"
            for each in (below, middle, stored)
        ]
        assert len({(tree / "bin/sh").stat().st_ino for tree in trees}) == 1
        # cron(8) reads no crontab that has several names: what lies in /etc is copied.
        assert [(tree / "etc/group").stat().st_nlink for tree in trees] == [1, 1, 1]
        assert (trees[1] / "app/one").read_text() == "one\n"
        # Each is whole without the others, and a sandbox sees what the step saw.
        await engine.images.remove(below.digest)
        await engine.images.remove(middle.digest)
        sandbox = await engine.create_sandbox(image="top", user="root")
        said = await sandbox.commands.run("ls /home/d /app; stat -c %a /home/d; cat /etc/group")
        await sandbox.close()
        assert said.stdout == "/app:\n\n/home/d:\ny\n755\nroot:x:0:\nstaff:x:50:\nnew\n"

    with_engine(tmp_path / "state", job)


AS_USER = """FROM {base}
RUN mkdir /made; chown app /made
USER app
RUN id -un > /made/who; echo $HOME $USER >> /made/who; echo seen > /dev/stderr
RUN touch /etc/no 2>/dev/null || echo refused >> /made/who
USER 1001:50
RUN id -g >> /made/who
"""


def test_steps_run_as_the_user_that_the_file_names(tmp_path: Path) -> None:
    async def job(engine: Engine) -> None:
        events: list[BuildEvent] = []
        await build(engine, asked(AS_USER.format(base=base_in(tmp_path)), None, events, name="u"))
        assert [each.text for each in events if each.kind == "output"] == ["seen\n"]
        sandbox = await engine.create_sandbox(image="u", user="root")
        said = await sandbox.commands.run("cat /made/who; stat -c %U /made/who")
        await sandbox.close()
        assert said.stdout == "app\n/home/app app\nrefused\n50\napp\n"

    with_engine(tmp_path / "state", job)


@pytest.mark.parametrize("name", ["root.tar", "root.tar.gz"])
def test_archive_is_the_root_of_an_image_from_nothing(tmp_path: Path, name: str) -> None:
    context = tmp_path / "context"
    context.mkdir()
    content = layer([*small_root(), archives.member("app/x", b"x", uid=7, mode=0o4755)])
    packed = gzip.compress(content) if name.endswith("gz") else content
    (context / name).write_bytes(packed)
    text = f"FROM scratch\nADD {name} /\nENV PATH=/bin:/usr/bin\nRUN echo y >> /app/x\n"

    async def job(engine: Engine) -> None:
        await build(engine, asked(text, context, [], name="made"))
        sandbox = await engine.create_sandbox(image="made", user="root")
        said = await sandbox.commands.run("cat /app/x; stat -c '%u %a' /app/x")
        await sandbox.close()
        assert said.stdout == "xy\n7 755\n"

    with_engine(tmp_path / "state", job)


def test_a_run_sees_files_of_the_context_that_do_not_stay(tmp_path: Path) -> None:
    context = tmp_path / "context"
    (context / "in").mkdir(parents=True)
    (context / "in" / "word").write_text("first")
    text = (
        f"FROM {base_in(tmp_path)}\n"
        "RUN --mount=type=bind,source=in,target=/seen/here cat /seen/here/word > /said\n"
    )
    taken = f"{text}RUN --mount=type=bind,source=in/word,target=/said cat /said\n"

    async def job(engine: Engine) -> None:
        async def said() -> str:
            stored = await build(engine, BuildRequest(text.encode(), context, tenant="t"))
            root = await engine.images.root(stored.digest, "root")
            sandbox = await engine.create_sandbox(image=root)
            try:
                assert not await sandbox.files.exists("/seen/here")
                return (await sandbox.commands.run("cat /said")).stdout
            finally:
                await sandbox.close()
                engine.images.let_go(root.digest)

        assert await said() == "first"
        (context / "in" / "word").write_text("second")
        assert await said() == "second"
        with pytest.raises(DockerfileInvalid, match="'/said' is there"):
            await build(engine, BuildRequest(taken.encode(), context))
        with pytest.raises(DockerfileInvalid, match="there is no context"):
            await build(engine, BuildRequest(text.encode()))

    with_engine(tmp_path, job)


def test_labels_are_the_images_and_those_of_what_is_built_on_it(tmp_path: Path) -> None:
    text = f"FROM {base_in(tmp_path)}\nLABEL a=1 b='x y'\n"

    async def job(engine: Engine) -> None:
        first = await build(engine, BuildRequest(text.encode(), name="first"))
        assert first.config.labels == {"a": "1", "b": "x y"}
        second = await build(
            engine, BuildRequest(b"FROM first:latest\nLABEL a=2\nRUN cat /etc/passwd\n")
        )
        assert second.config.labels == {"a": "2", "b": "x y"}

    with_engine(tmp_path, job)


HERE_DOCUMENTS = """
FROM {base}
ENV NAME="a name"
RUN <<END
cat > said <<INNER
$NAME
INNER
pwd >> said
END
RUN cat <<A - <<'B' >> said 4<<-C
$NAME first
A
$NAME second
B
\tC
COPY <<A <<-"B" /data/
it's $NAME
A
\tit's $NAME
B
COPY --chmod=700 --chown=1001:50 <<tool /data/deep/tool
#!/bin/sh
echo \\$0 {word}
tool
"""


def test_here_documents_are_a_shell_s_input_or_files(tmp_path: Path) -> None:
    base = base_in(tmp_path)

    async def job(engine: Engine) -> None:
        text = HERE_DOCUMENTS.format(base=base, word="one")
        await build(engine, asked(text, None, [], name="here"))
        sandbox = await engine.create_sandbox(image="here", user="root")
        said = await sandbox.commands.run(
            "cat /said /data/A /data/B; /data/deep/tool; stat -c '%a %u:%g' /data/A /data/deep/tool"
        )
        await sandbox.close()
        assert said.stdout == (
            "a name\n/\n$NAME second\nit's a name\nit's $NAME\n/data/deep/tool one\n"
            "644 0:0\n700 1001:50\n"
        )
        events: list[BuildEvent] = []
        again = HERE_DOCUMENTS.format(base=base, word="two")
        await build(engine, asked(again, None, events, name="again"))
        assert [each.kind for each in events].count("cached") == 3
        mixed = f"FROM {base}\nCOPY <<A file /data/\nA\n"
        with pytest.raises(DockerfileInvalid, match="line 2: COPY: files and here-documents"):
            await build(engine, asked(mixed, tmp_path, [], name="mixed"))

    with_engine(tmp_path / "state", job)


def test_what_is_missing_of_a_working_directory_belongs_to_the_user(tmp_path: Path) -> None:
    text = """
FROM {base}
WORKDIR /of-root
RUN mkdir -p /there/old
USER app
WORKDIR /there/old/new/one
USER 1234:50
WORKDIR ../two
USER root
WORKDIR /also-of-root
RUN touch made
USER app
WORKDIR /last
"""

    async def job(engine: Engine) -> None:
        whole = text.format(base=base_in(tmp_path))
        stored = await build(engine, asked(whole, None, [], name="places"))
        sandbox = await engine.create_sandbox(image="places", user="root")
        said = await sandbox.commands.run(
            "stat -c '%n %u:%g' /of-root /there/old /there/old/new /there/old/new/one"
            " /there/old/new/two /also-of-root /also-of-root/made /last; pwd"
        )
        await sandbox.close()
        assert said.stdout.splitlines() == [
            "/of-root 0:0",
            "/there/old 0:0",
            "/there/old/new 1001:1001",
            "/there/old/new/one 1001:1001",
            "/there/old/new/two 1234:50",
            "/also-of-root 0:0",
            "/also-of-root/made 0:0",
            "/last 1001:1001",
            "/last",
        ]
        assert stored.config.user == "app"
        again = await build(engine, asked(whole, None, [], name="places"))
        assert again.digest == stored.digest

    with_engine(tmp_path / "state", job)


def test_without_a_chown_a_working_directory_is_roots_and_that_is_said(tmp_path: Path) -> None:
    root = layer([each for each in small_root() if not each[0].name.endswith("/chown")])
    path = archives.docker_archive(tmp_path / "bare.tar", [root], config_of([root]))

    async def job(engine: Engine) -> None:
        events: list[BuildEvent] = []
        await build(engine, asked(f"FROM {path}\nUSER app\nWORKDIR /work\n", None, events))
        said = [each.text for each in events if each.kind == "output"]
        assert said == ["/work is root's: the image has no chown\n"]

    with_engine(tmp_path / "state", job)

"""Templates by the SDK and from the command line, and contexts that strangers wrote."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cellwall
from cellwall import ImageSteps
from kit.images import registry
from kit.images.archives import layer, small_root
from kit.images.registry import ImageRegistry
from kit.servers import MANAGER, Server, error_of, running

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def stocked() -> Iterator[ImageRegistry]:
    with registry.running() as made:
        made.add("team/base:1", [layer(small_root())], Env=["PATH=/bin:/usr/bin"])
        yield made


@pytest.fixture(scope="module")
def door(stocked: ImageRegistry) -> Iterator[Server]:
    more = f"[engine]\n{stocked.setting(credentials='user:word@')}"
    names = [f"{stocked.host}/team/*"]
    with running(more, images=names, templates_mb=500, upload_bytes=2_000_000) as made:
        yield made


def test_sdk_builds_from_steps_and_a_directory(
    door: Server, stocked: ImageRegistry, tmp_path: Path
) -> None:
    (tmp_path / "kept").write_text("kept\n")
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "out").symlink_to("/etc/passwd")
    (tmp_path / ".dockerignore").write_text("left\n")
    steps = (
        ImageSteps(stocked.name("team/base:1")).copy(".", "/data").run("echo heard; ls -a /data")
    )
    heard: list[dict[str, Any]] = []
    with cellwall.connect(door.address, MANAGER) as client:
        made = client.templates.build(steps, "sdk", context=tmp_path, on_event=heard.append)
        assert made["name"] == "sdk:latest"
        assert "heard\n" in "".join(each["text"] for each in heard if each["type"] == "output")
        assert client.templates.list() == [client.templates.get("sdk")]
        with client.Sandbox(template="sdk") as sandbox:
            assert sandbox.commands.run("cat /data/kept").stdout == "kept\n"
            assert not sandbox.commands.run("cat /data/left/out").ok
        client.templates.remove("sdk")
        for name in ("sdk", "../keys", ""):
            with pytest.raises(cellwall.NotFound):
                client.templates.get(name)
        with pytest.raises(cellwall.CellwallError, match="ended with 3") as failed:
            client.templates.build(ImageSteps(stocked.name("team/base:1")).run("exit 3"), "bad")
        assert "line 2" in str(failed.value.__notes__)


def test_build_that_its_caller_gives_up_is_cancelled(door: Server, stocked: ImageRegistry) -> None:
    text = f"FROM {stocked.name('team/base:1')}\nRUN while :; do :; done\n"

    async def scenario() -> None:
        client = await cellwall.aconnect(door.address, MANAGER)
        heard: list[Any] = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(8):
                await client.templates.build(text, "endless", on_event=heard.append)
        assert heard
        made = await client.templates.build(text.partition("RUN")[0], "ends")
        assert made["name"] == "ends:latest"
        await client.templates.remove("ends")
        await client.aclose()

    asyncio.run(scenario())


def test_command_line_builds_lists_and_removes(
    door: Server, stocked: ImageRegistry, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(
        f'FROM {stocked.name("team/base:1")}\nARG WORD\nCOPY note /note\nRUN echo "$WORD"\n'
    )
    (tmp_path / "note").write_text("note\n")
    words = ["--own", "--context", str(tmp_path), "--build-arg", "WORD=passed"]
    done = cellwall_at(door, "templates", "build", "cli:1", *words)
    assert (done.returncode, done.stdout) == (0, "cli:1\n"), done.stderr
    assert "passed\n" in done.stderr
    listed = cellwall_at(door, "templates", "ls", "--own", "--json")
    assert [each["name"] for each in json.loads(listed.stdout)] == ["cli:1"]
    assert "cli:1" in cellwall_at(door, "templates", "ls", "--own").stdout
    assert cellwall_at(door, "templates", "rm", "--own", "cli:1").stdout == "cli:1\n"
    wrong = cellwall_at(door, "templates", "build", "cli:1", "--own")
    assert wrong.returncode != 0
    assert "--context" in wrong.stderr


def cellwall_at(door: Server, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "CELLWALL_URL": door.address, "CELLWALL_API_KEY": MANAGER}
    line = [sys.executable, "-m", "cellwall.apps.cli.main", *words]
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=60, check=False)


def entry(name: str, **fields: Any) -> bytes:
    member = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(member, field, value)
    return member.tobuf(tarfile.PAX_FORMAT)


END = bytes(1024)


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (entry("../escape") + END, "leads elsewhere"),
        (entry("/tmp/escape") + END, "leads elsewhere"),
        (entry("a/../../escape") + END, "leads elsewhere"),
        (entry("link", type=tarfile.SYMTYPE, linkname="/etc/passwd") + END, "links or devices"),
        (entry("link", type=tarfile.LNKTYPE, linkname="/etc/passwd") + END, "links or devices"),
        (entry("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3) + END, "links or devices"),
        (entry("pipe", type=tarfile.FIFOTYPE) + END, "links or devices"),
        (entry("large", size=1 << 40) + END, "more bytes"),
        (entry("short", size=5) + b"abc", "too early"),
        (entry("twice") + entry("twice") + END, "comes twice"),
        (entry("a") + entry("a/b") + END, "Not a directory"),
        (entry("/".join("d" * 200)) + END, "leads elsewhere"),
        (b"\xff" * 1024, ""),
        (b"", "too early"),
        (b"0" * 512, ""),
    ],
)
def test_hostile_context_is_refused(
    door: Server, stocked: ImageRegistry, context: bytes, words: str
) -> None:
    """The control is `test_sdk_builds_from_steps_and_a_directory`."""
    answer = posted(door, stocked, context)
    assert answer.status_code == 400, answer.text
    assert words in error_of(answer)["message"], answer.text
    assert not Path("/tmp/escape").exists()
    assert door.client(MANAGER).get("/templates").json()["own"] == []


def test_context_above_the_operators_bound_is_refused(door: Server, stocked: ImageRegistry) -> None:
    answer = posted(door, stocked, entry("large", size=3_000_000) + bytes(3_000_832) + END)
    assert answer.status_code == 413, answer.text
    for files in (
        {"context": ("c", b"", "application/x-tar")},
        {"build": (None, b"{}", "application/json")},
        {"build": (None, b"x", "application/json"), "context": ("c", END)},
    ):
        wrong: Any = files
        assert door.client(MANAGER).post("/templates", files=wrong).status_code == 400
    # The place of a refused build is free again: a tenant has one.
    assert posted(door, stocked, END).status_code == 202


def posted(door: Server, stocked: ImageRegistry, context: bytes) -> Any:
    text = f"FROM {stocked.name('team/base:1')}\nCOPY . /x\n"
    form: dict[str, Any] = {
        "build": (None, json.dumps({"name": "evil", "dockerfile": text}), "application/json"),
        "context": ("context.tar", io.BytesIO(context), "application/x-tar"),
    }
    return door.client(MANAGER).post("/templates", files=form)

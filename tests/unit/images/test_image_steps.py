"""Images described in Python: which Dockerfile comes of it, and what is no word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cellwall import ImageSteps
from cellwall.images import dockerfile
from cellwall.model.errors import UsageError

ODD = 'it\'s "quoted" $HOME \\n ; rm -rf /'


def test_steps_are_a_dockerfile() -> None:
    steps = (
        ImageSteps("debian:12")
        .env(WORD=ODD)
        .workdir("/app")
        .copy("a $b", "/app/")
        .run(f"echo {ODD}")
        .run(["echo", ODD])
        .apt_install("git", "curl")
        .user("app")
        .command("/bin/cat", ODD)
    )
    (stage,) = dockerfile.parse(str(steps).encode()).stages
    said = [each.name for each in stage.instructions]
    assert said == ["ENV", "WORKDIR", "COPY", "RUN", "RUN", "RUN", "USER", "CMD"]
    env, _, copied, shell, program, apt, _, command = stage.instructions
    assert dockerfile.assignments(env, {"HOME": "/wrong"}) == {"WORD": ODD}
    assert copied.words is not None
    words = [dockerfile.expand(copied, word, {"b": "wrong"}) for word in copied.words]
    assert words == ["a $b", "/app/"]
    assert shell.words == ("/bin/sh", "-c", f"echo {ODD}")
    assert program.words == ("echo", ODD)
    assert apt.words is not None
    assert apt.words[-2:] == ("git", "curl")
    assert command.words == ("/bin/cat", ODD)


def test_each_step_makes_new_ones() -> None:
    base = ImageSteps("debian:12")
    assert base.run("true") != base
    assert base.lines == ()


@pytest.mark.parametrize(
    "make",
    [
        lambda steps: steps.workdir("/a b"),
        lambda steps: steps.user("app\nRUN id"),
        lambda steps: steps.env(WORD="one\ntwo"),
        lambda steps: steps.copy("a", "b", owner="app RUN"),
        lambda steps: steps.pip_install("--index-url=elsewhere"),
        lambda steps: steps.pip_install(),
        lambda _: str(ImageSteps("debian:12 AS x")),
    ],
)
def test_values_are_words(make: Callable[[ImageSteps], object]) -> None:
    with pytest.raises(UsageError, match="image"):
        make(ImageSteps("debian:12"))


def test_name_of_a_base_may_be_a_path(tmp_path: Path) -> None:
    assert str(ImageSteps(f"{tmp_path}/base.tar")).startswith(f"FROM {tmp_path}/base.tar\n")


def test_text_of_a_step_may_have_a_here_document() -> None:
    """The shell's own: what follows it is the next step, as it is not behind one of a file."""
    text = "cat > file <<EOF\nline\nEOF"
    steps = ImageSteps("debian:12").run(text).run("cat <<EOF").run(["cat", "<<EOF"]).user("app")
    (stage,) = dockerfile.parse(str(steps).encode()).stages
    assert stage.instructions[0].words == ("/bin/sh", "-c", text)
    assert [each.name for each in stage.instructions] == ["RUN", "RUN", "RUN", "USER"]
    assert not any(each.documents for each in stage.instructions)
    ending = b"FROM debian:12\nRUN cat <<EOF\nUSER app\nEOF\n"
    assert len(dockerfile.parse(ending).stages[0].instructions) == 1

"""Dockerfiles as they are parsed: real ones, odd ones, and such as only an attacker writes."""

from __future__ import annotations

import time

import pytest

from cellwall.images import dockerfile, here_documents
from cellwall.images.dockerfile import DockerfileInvalid, Instruction
from cellwall.images.image import machine_architecture

TWO_STAGES = b"""\
# syntax=docker/dockerfile:1
ARG VERSION=3
FROM debian:$VERSION AS Build
RUN echo one && \\
    # between
    echo two

COPY --chown=1:2 --chmod=755 a b /c/
FROM scratch
COPY --from=build /c /d
cmd ["/d", "x"]
"""


def one(text: str) -> Instruction:
    return dockerfile.parse(f"FROM scratch\n{text}".encode()).stages[0].instructions[0]


def test_stages_flags_lists_and_continued_lines() -> None:
    found = dockerfile.parse(TWO_STAGES)
    assert [each.text for each in found.arguments] == ["VERSION=3"]
    build, last = found.stages
    assert (build.base, build.name, build.origin.line) == ("debian:$VERSION", "build", 3)
    run, copy = build.instructions
    assert (run.line, run.name, run.words) == (4, "RUN", None)
    assert run.text.split() == ["echo", "one", "&&", "echo", "two"]
    assert copy.flags == {"chown": "1:2", "chmod": "755"}
    assert copy.text == "a b /c/"
    assert last.instructions[0].flags == {"from": "build"}
    assert last.instructions[1].words == ("/d", "x")
    assert str(last.instructions[0]) == "COPY --from=build /c /d"


def test_the_escape_directive() -> None:
    found = dockerfile.parse(b"# escape=`\nFROM scratch\nRUN a `\n b\\\nRUN c")
    assert [each.text for each in found.stages[0].instructions] == ["a  b\\", "c"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("$a", "one"),
        ("${a}two", "onetwo"),
        ("$none-", "-"),
        ("${none:-x}", "x"),
        ("${empty:-x}", "x"),
        ("${empty-x}", ""),
        ("${a:+x}", "x"),
        ("${empty:+x}", ""),
        ("${none:-${a}}", "one"),
        ("\\$a", "$a"),
        ("'$a'", "$a"),
        ('"$a b"', "one b"),
        ("$", "$"),
        ("a\\ b", "a b"),
    ],
)
def test_variables(text: str, value: str) -> None:
    assert dockerfile.expand(one("ENV a=b"), text, {"a": "one", "empty": ""}) == value


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ENV a=1 b='x y' c=$a", {"a": "1", "b": "x y", "c": "old"}),
        ("ENV a some words", {"a": "some words"}),
        ("LABEL org.x/y=1", {"org.x/y": "1"}),
    ],
)
def test_assignments(text: str, found: dict[str, str]) -> None:
    assert dockerfile.assignments(one(text), {"a": "old"}) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: there are 0 times FROM"),
        ("RUN x", "line 1: RUN: it comes before"),
        ("FROM a b", "line 1: FROM: it is not"),
        ("FROM a AS ../x", "no name of a stage"),
        ("FROM scratch\nFOO x", "line 2: 'FOO' is no instruction"),
        ("FROM scratch\nONBUILD RUN x", "line 2: ONBUILD"),
        ("FROM scratch\nCOPY --link a b", "'--link' is not taken"),
        ("FROM scratch\nRUN --mount=type=ssh x", "is not taken"),
        ("FROM scratch\nRUN --mount=type=cache,target=/a x", "is not taken"),
        ("FROM scratch\nRUN --mount=type=bind,source=a,target=/b,rw x", "is not taken"),
        ("FROM scratch\nRUN --mount=type=bind,target=/b x", "is not taken"),
        ("FROM scratch\nRUN --mount=type=bind,source=a,target=b x", "no plain absolute path"),
        ("FROM scratch\nRUN --mount=type=bind,source=a,target=/ x", "no plain absolute path"),
        ("FROM scratch\nRUN --mount=type=bind,source=a,target=/b/../c x", "no plain absolute path"),
        ("FROM scratch\nRUN --network=none x", "'--network=none' is not taken"),
        ("FROM scratch\nCOPY --chmod=1 --chmod=2 a b", "--chmod is given twice"),
        ("FROM scratch\nRUN <<EOF\nx\n EOF", "line 2: RUN: the here-document EOF does not end"),
        ("FROM scratch\nRUN cat <<EOF>/a\nx\nEOF", "no word of its own"),
        ("FROM scratch\nRUN sh -c 'cat <<EOF'\nx\nEOF", "no word of its own"),
        ("FROM scratch\nRUN cat <<'EOF\nx\nEOF", "a quotation does not end"),
        ("FROM scratch\nRUN <<EOF\n#!/bin/x\nEOF", "#! in a here-document"),
        ("FROM scratch\nENV", "line 2: ENV: it says nothing"),
        ("FROM --platform=linux/s390x a", "is not this machine's"),
        ("# escape=x\nFROM a", "line 1: escape"),
        ("FROM a\0", "NUL"),
        ("FROM scratch\n" * 101, "not 1 to 100"),
        ("FROM scratch\n" + "RUN x\n" * 1001, "more than 1000 instructions"),
        ("\n" * 20_001, "more than 20000 lines"),
        ("#" * (10 << 20), "more than 1048576 bytes"),
    ],
)
def test_what_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(DockerfileInvalid, match=said) as caught:
        dockerfile.parse(text.encode())
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${a", "is no variable"),
        ("${none:-" * 20 + "}" * 20, "deeper than 8"),
        ("${none:?it is needed}", "none: it is needed"),
        ("$big" * 1000, "more than 65536 characters"),
        ("${" * 100_000, "is no variable"),
    ],
)
def test_hostile_words_are_refused_soon(text: str, said: str) -> None:
    began = time.process_time()
    with pytest.raises(DockerfileInvalid, match=said):
        dockerfile.expand(one("ENV a=b"), text, {"big": "x" * 1000})
    assert time.process_time() - began < 5


def test_this_machine_s_platform_is_taken() -> None:
    text = f"FROM --platform=linux/{machine_architecture()} a"
    assert dockerfile.parse(text.encode()).stages[0].base == "a"


def test_a_run_names_what_of_the_context_it_sees() -> None:
    said = one("RUN --mount=type=bind,source=a/b,target=/in x")
    assert dockerfile.bound(said) == ("a/b", "/in")
    assert (said.text, dockerfile.bound(one("RUN x"))) == ("x", None)


def shell_of(text: str) -> str:
    """What a shell is told for an instruction that `RUN id` follows."""
    parsed = dockerfile.parse(f"FROM scratch\n{text}\nRUN id\n".encode())
    said, following = parsed.stages[0].instructions
    assert (following.text, following.line) == ("id", text.count("\n") + 3)
    return here_documents.in_shell(said.text, said.documents)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("RUN <<EOF\n# a comment\n\n  id \\\nEOF", "# a comment\n\n  id \\\n"),
        ("RUN <<-E_1.x\n\t\tid\n\tE_1.x", "id\n"),
        ("RUN cat <<EOF > /a\nFROM b\nEOF", "cat <<EOF > /a\nFROM b\nEOF"),
        ("RUN a <<A b \\\n <<'B'\n1\nA\n2\nB", "a <<A b  <<'B'\n1\nA\n2\nB"),
        ("RUN cat <<-A\n\t1\n\tA", "cat <<-A\n\t1\nA"),
        ("RUN cat 3<<A\nA", "cat 3<<A\nA"),
        ("RUN cat <<<A", "cat <<<A"),
        ("RUN echo $((1<<2))", "echo $((1<<2))"),
    ],
)
def test_here_documents_of_a_shell(text: str, told: str) -> None:
    assert shell_of(text) == told


def test_here_documents_belong_to_run_copy_and_add() -> None:
    copied = one('COPY <<A <<-"B" /to/\n$a\nA\n\t$b\nB').documents
    found = [(each.name, each.content, each.expands) for each in copied]
    assert found == [("A", "$a\n", True), ("B", "$b\n", False)]
    assert one('RUN ["cat", "<<A"]').documents == ()
    with pytest.raises(DockerfileInvalid, match="line 3: 'A' is no instruction"):
        dockerfile.parse(b"FROM scratch\nENV x=<<A\nA\n")


def test_quotes_in_a_copied_document_are_characters() -> None:
    said = one("ENV a=b")
    text = """it's "$v" \\$v ${v:-x}"""
    assert dockerfile.expand(said, text, {"v": "1"}, has_quotes=False) == """it's "1" $v 1"""

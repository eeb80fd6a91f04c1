"""Untrusted text on our own terminal is shown, never obeyed."""

from __future__ import annotations

import io
import os
import pty

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.apps.cli.console import table
from cellwall.apps.cli.console.terminal import Output, complain, visible


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[2J\x1b[H", "^[[2J^[[H"),
        ("\x1b]0;title\x07", "^[]0;title^G"),
        ("\x9b31m", "\\x9b31m"),
        ("\x08\x7f\x00", "^H^?^@"),
        ("user\u202etxt.exe", "user\\u202etxt.exe"),
        ("a\tb\r\n", "a\tb\r\n"),
        ("žluťoučký 猫", "žluťoučký 猫"),
    ],
)
def test_control_characters_become_visible(hostile: str, shown: str) -> None:
    assert visible(hostile) == shown


@given(st.text())
def test_nothing_a_terminal_obeys_is_left(text: str) -> None:
    left = {character for character in visible(text) if not character.isprintable()}
    obeyed = {c for c in left if ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0} - set("\n\t\r")
    assert not obeyed
    assert visible(visible(text)) == visible(text)


def test_a_terminal_gets_the_visible_form() -> None:
    ours, theirs = pty.openpty()
    try:
        with os.fdopen(theirs, "w") as terminal:
            Output(terminal).write("\x1b[31mred\n")
            assert os.read(ours, 100) == b"^[[31mred\r\n"
    finally:
        os.close(ours)


def test_a_pipe_gets_the_text_as_it_is_even_in_an_ascii_locale() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Output(stream).write("\x1b[31mčervená\r\n")
    assert raw.getvalue() == "\x1b[31mčervená\r\n".encode()


def test_a_complaint_of_ours_quotes_nothing_a_terminal_obeys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    complain("read 'x\x1b[31m': no such file")
    assert capsys.readouterr().err == "cellwall: read 'x^[[31m': no such file\n"


def test_a_table_shows_nothing_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    table.show(["name"], [["x\x1b[31m\u202ey"]])
    shown = capsys.readouterr().out
    assert r"x^[[31m\u202ey" in shown
    assert "\x1b" not in shown

"""An interrupt at the very end of a cell: it is that cell's or nobody's, and the context lives.

The real init and the real context. The moment is chosen, not hoped for: a wrapper around the
frame that says "end" holds the context there until the signal is pending.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall.guest.channel.outbox import Outbox
from cellwall.guest.init.contexts import Contexts
from kit.guest.guest_host import Host, summary


@pytest.fixture(autouse=True)
def _as_outside() -> Iterator[None]:
    """Contexts are forks of this process; what IPython warns of must not raise in them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(autouse=True)
def _held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold the end of a cell whose source says so until a SIGINT is pending, and say "held"."""
    real = Outbox._send

    def send(box: Outbox, header: dict[str, Any], body: bytes, keep_open: bool) -> bool:
        if header["ev"] == "end" and vars(sys.modules["__main__"]).pop("held", 0):
            os.write(2, b"held")
            # The outbox has blocked it. Waiting takes it, and it is to be pending with the frame.
            if signal.sigtimedwait([signal.SIGINT], 10) is not None:
                os.kill(os.getpid(), signal.SIGINT)
        return real(box, header, body, keep_open)

    monkeypatch.setattr(Outbox, "_send", send)


def _cell(host: Host, code: bytes) -> int:
    return host.send(
        "execute", code, context="main", mode="cell", output_bytes=9999, stdin="none", display=True
    )


def _interrupted_at_its_end(host: Host, code: bytes) -> dict[str, Any]:
    number = _cell(host, code)
    while b"held" not in host.wait_for("stderr", number)[1]:
        pass
    host.send("interrupt", context="main")
    return summary(host.events(number))


_FIRST = b"held = 7"
_NEXT = b"for _ in range(1000): pass\nprint('undisturbed')"


def test_interrupt_at_the_end_of_a_cell_neither_ends_the_context_nor_reaches_the_next(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path, ("main",))
    try:
        ended = _interrupted_at_its_end(host, _FIRST)
        assert (ended["done"]["alive"], ended["done"]["raised"]) == (True, False)
        following = summary(host.events(_cell(host, _NEXT)))
        assert (following["stdout"], following["stderr"]) == (b"undisturbed\n", b"")
    finally:
        host.close()


def test_interrupt_does_reach_the_next_cell_if_init_does_not_ask_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the moment is the one that hurts."""
    real = Contexts._on_idle

    def on_idle(contexts: Contexts, context: Any, line: Any) -> None:
        if context.execution is not None:
            context.execution.is_interrupted = False
        real(contexts, context, line)

    monkeypatch.setattr(Contexts, "_on_idle", on_idle)
    host = Host(tmp_path, ("main",))
    try:
        assert _interrupted_at_its_end(host, _FIRST)["done"]["raised"] is False
        following = summary(host.events(_cell(host, _NEXT)))
        assert b"KeyboardInterrupt" in following["stderr"]
    finally:
        host.close()


_LATE = b"""
import signal, sys
class Stream:
    def write(self, text): return len(text)
    def flush(self):
        sys.stdout = sys.__stdout__
        signal.raise_signal(signal.SIGINT)
kept, sys.stdout = 7, Stream()
"""


def test_interrupt_after_the_code_and_before_the_end_is_the_cells(tmp_path: Path) -> None:
    host = Host(tmp_path, ("main",))
    try:
        ended = summary(host.events(_cell(host, _LATE)))
        assert (ended["done"]["alive"], ended["done"]["raised"]) == (True, True), ended
        assert b"KeyboardInterrupt" in ended["stderr"]
        again = summary(host.events(_cell(host, b"print(kept)")))
        assert again["stdout"] == b"7\n"
    finally:
        host.close()


def test_interrupt_in_the_middle_is_still_an_interrupt(tmp_path: Path) -> None:
    """The other control: not every interrupt is swallowed."""
    host = Host(tmp_path, ("main",))
    try:
        number = _cell(host, b"import signal; print('up', flush=True); signal.pause()")
        host.wait_for("stdout", number)
        host.send("interrupt", context="main")
        ended = summary(host.events(number))
        assert (ended["done"]["alive"], ended["done"]["raised"]) == (True, True), ended
    finally:
        host.close()

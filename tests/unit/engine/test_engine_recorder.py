"""What is kept of one request's frames: bounded in what it takes here, not in its bytes of JSON."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Callable

import pytest

from cellwall.engine.attempts.recorder import Recorder
from cellwall.model.limits import Limits
from cellwall.runtimes.channel.frames import FrameError

MIB = 1024 * 1024
_EMPTY = b"[" + b"[]," * 340_000 + b"0]"
SHOWN = {"ev": "display", "kind": "display"}


def recorded(body: Callable[[Recorder], None]) -> None:
    async def main() -> None:
        body(Recorder(Limits(), None))

    asyncio.run(main())


def test_value_is_kept_as_text_while_it_runs() -> None:
    def body(recorder: Recorder) -> None:
        tracemalloc.start()
        recorder.on_frame("value", {}, bytes(_EMPTY))
        kept, _ = tracemalloc.get_traced_memory()
        value = recorder.value
        as_objects, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(value) == 340_001
        assert kept < 2 * MIB
        assert as_objects > 20 * MIB, "the control: what it takes as objects"

    recorded(body)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("value", [1]),
        ("error", {"name": "E", "value": "", "traceback": ""}),
    ],
)
def test_second_one_is_no_frame_of_the_protocol(kind: str, content: object) -> None:
    def body(recorder: Recorder) -> None:
        data = json.dumps(content).encode()
        recorder.on_frame(kind, {}, data)
        with pytest.raises(FrameError, match="twice"):
            recorder.on_frame(kind, {}, data)

    recorded(body)


@pytest.mark.parametrize("form", [[], {}, None, 1, True])
def test_form_of_a_bundle_is_text(form: object) -> None:
    def body(recorder: Recorder) -> None:
        with pytest.raises(FrameError, match="texts"):
            recorder.on_frame("display", SHOWN, json.dumps({"a/b": form}).encode())
        recorder.on_frame("display", SHOWN, json.dumps({"a/b": json.dumps(form)}).encode())
        assert recorder.results == [{"a/b": json.dumps(form)}]

    recorded(body)


def test_empty_bundles_are_bounded_by_their_number() -> None:
    """An init that lies: ours sends no more either."""

    def body(recorder: Recorder) -> None:
        for _ in range(10_010):
            recorder.on_frame("display", SHOWN, b"{}")
        assert len(recorder.results) == 10_000
        assert recorder.truncated.display == 20

    recorded(body)

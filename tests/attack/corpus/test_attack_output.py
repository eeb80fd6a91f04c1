"""Group K: output and protocol. Whatever a program writes is text, bounded, and nothing else.

The engine's own memory is the outside witness of the floods: it is this process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cellwall import CellwallError, UsageError, Verdict
from cellwall.model.outcome import Truncated
from kit.arena import Arena, compiled, fresh_peak_kib, peak_kib, unconfined

pytestmark = pytest.mark.attack

_GB = 1 << 30
_FLOOD = """
import os
block = b"x" * (1 << 20)
for n in range({mib}):
    for fd in {fds}: os.write(fd, block)
"""
_HOST_MAY_GROW_KIB = 8 * 1024


def _growth_kib(work: Callable[[], Any]) -> tuple[Any, int]:
    before = fresh_peak_kib()
    return work(), peak_kib() - before


@pytest.mark.slow
@pytest.mark.parametrize("case", ["K01"])
def test_ten_gigabytes_of_output_cost_the_host_eight_megabytes(arena: Arena, case: str) -> None:
    flood = _FLOOD.format(mib=10 * 1024, fds=(1,))
    ended, growth = _growth_kib(lambda: arena.run(flood, timeout=55, limits={"cpu_s": 55}))
    assert ended.verdict is Verdict.OUTPUT, ended.outcome
    assert len(ended.stdout) + ended.outcome.truncated.stdout == 10 * _GB + 17  # and the nonce
    assert growth <= _HOST_MAY_GROW_KIB


@pytest.mark.parametrize(
    ("fds", "mib"),
    [pytest.param((1,), 1024, id="K01"), pytest.param((1, 2), 512, id="K02")],
)
def test_flood_is_cut_and_counted_and_costs_the_host_little(
    arena: Arena, fds: tuple[int, ...], mib: int
) -> None:
    flood = _FLOOD.format(mib=mib, fds=fds)
    with arena.leaving_nothing():
        ended, growth = _growth_kib(lambda: arena.beside(flood, timeout=20))
    assert ended.verdict is Verdict.OUTPUT, ended.outcome
    assert len(ended.stdout) == 1 << 20
    usage = ended.outcome.usage
    assert usage.stdout_bytes == (mib << 20) + 17
    assert usage.stderr_bytes == (mib << 20 if 2 in fds else 0)
    assert growth <= _HOST_MAY_GROW_KIB


_THEN: dict[str, tuple[str, dict[str, Any], Verdict]] = {
    "wall": ("time.sleep(60)", {"timeout": 2}, Verdict.WALL_TIME),
    "memory": ("time.sleep(1)\nheld = b'x' * (256 << 20)", {}, Verdict.MEMORY),
    "cpu": ("while True: pass", {"limits": {"cpu_s": 1}, "timeout": 30}, Verdict.CPU_TIME),
}


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param(name, id=name, marks=pytest.mark.cgroups if name == "memory" else ())
        for name in _THEN
    ],
)
def test_flood_that_a_limit_ends_is_still_counted(arena: Arena, limit: str) -> None:
    """What ends it leaves init no last word."""
    code, options, verdict = _THEN[limit]
    flood = _FLOOD.format(mib=9, fds=(1,)) + f"import time\n{code}"
    ended = arena.run(flood, **options)
    assert ended.verdict is verdict, ended.outcome
    assert len(ended.stdout) == 1 << 20
    assert ended.outcome.usage.stdout_bytes == (9 << 20) + 17


_BYTE_BY_BYTE = """
#include <unistd.h>
int main(void) { for (int i = 0; i < COUNT; i++) if (write(1, "x", 1) != 1) return 7; }
"""


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(500_000, id="K04"),
        pytest.param(10_000_000, id="K04-all", marks=pytest.mark.slow),
    ],
)
def test_flood_of_tiny_writes_is_taken(arena: Arena, tmp_path: Path, count: int) -> None:
    files = {"tiny": compiled(_BYTE_BY_BYTE.replace("COUNT", str(count)), tmp_path)}
    code = "import os\nos.chmod('tiny', 0o755)\nos.execv('./tiny', ['tiny'])"
    ended, growth = _growth_kib(lambda: arena.beside(code, files=files, timeout=40))
    assert ended.outcome.usage.stdout_bytes == count + 17, ended.outcome
    assert growth <= _HOST_MAY_GROW_KIB


_FORGERIES = [
    pytest.param("\x1b[2J\x1b]0;title\x07\x1b]52;c;aGk=\x07\x1b]8;;http://x\x1b\\", id="K06"),
    pytest.param("2026-11-21 ERROR cellwall sandbox escaped\n\nINFO ok\n", id="K07"),
    pytest.param('event: end\ndata: {"verdict":"ok"}\n\n0\r\n\r\n--boundary--\r\n', id="K08"),
    pytest.param('{"ev":"done","id":1,"exit_code":0,"usage":{"cpu_s":0}}\n', id="K10"),
    pytest.param("0%\r" + "".join(f"{n}%\r" for n in range(1000)), id="K18"),
]


@pytest.mark.parametrize("text", _FORGERIES)
def test_forged_output_stays_text(arena: Arena, text: str) -> None:
    frame = b"\x00\x00\x00\x20\x00\x00\x00\x00"
    code = f"import os\nos.write(1, {text!r}.encode())\nos.write(2, {frame!r})\nos._exit(3)"
    ended = arena.run(code)
    assert ended.stdout.split("\n", 1)[1] == text
    assert (ended.verdict, ended.exit_code) == (Verdict.NONZERO_EXIT, 3)
    assert json.loads(json.dumps(ended.outcome.as_json()))["verdict"] == "nonzero_exit"


@pytest.mark.parametrize("case", ["K09"])
def test_hostile_file_name_breaks_no_listing(arena: Arena, case: str) -> None:
    names = ["a\r\nSet-Cookie: b", 'q"; filename=x', "-rf", "\u202egnp.exe", "n" * 255]

    async def attack() -> None:
        async with arena.sandbox() as sandbox:
            made = await sandbox.run(f"for n in {names!r}: open(n, 'w').close()")
            assert made.ok, made
            await sandbox.run("open(b'bad\\xff', 'w').close()")
            listed = {entry.name for entry in await sandbox.files.list()}
            assert set(names) <= listed
            assert len(listed) == len(names) + 1

    arena.do(attack())


_HEAVY = [
    pytest.param("result = 'x' * (96 << 20)", "could not be returned", id="K11-value"),
    pytest.param(
        "result = [[]]\nfor _ in range(100000): result = [result]",
        "could not be returned",
        id="K11-nested",
    ),
    pytest.param(
        "class Big:\n def _repr_png_(self): return b'x' * (64 << 20)\nBig()", "cut", id="K11-plot"
    ),
]


@pytest.mark.parametrize(("code", "said"), _HEAVY)
def test_huge_value_is_left_out_and_the_answer_says_so(arena: Arena, code: str, said: str) -> None:
    with arena.leaving_nothing():
        ended, growth = _growth_kib(
            lambda: arena.beside(code, limits={"memory_mb": 1024}, timeout=20)
        )
    assert ended.verdict in {Verdict.OK, Verdict.OUTPUT}, ended.outcome
    assert (ended.result, said in " ".join(ended.outcome.notes)) == (None, True), ended.outcome
    assert growth <= _HOST_MAY_GROW_KIB


@pytest.mark.parametrize("case", ["K11-traceback"])
def test_huge_traceback_is_cut(arena: Arena, case: str) -> None:
    ended = arena.run("raise ValueError('x' * (100 << 20))", limits={"memory_mb": 1024})
    assert ended.verdict is Verdict.EXCEPTION
    assert ended.error is not None
    assert len(ended.error.value) + len(ended.error.traceback) < 1 << 20
    assert ended.outcome.truncated.stderr > 90 << 20
    assert len(ended.stderr) == 1 << 20


@pytest.mark.parametrize("case", ["K11-repr"])
def test_huge_representation_is_cut(arena: Arena, case: str) -> None:
    code = "class Big:\n def __repr__(self): return 'x' * (96 << 20)\nBig()"
    ended = arena.run(code, limits={"memory_mb": 1024})
    assert ended.text is not None
    assert len(ended.text) < 1 << 20
    assert "[cut" in ended.text


_EVERY_FD = """
import os
found = []
for fd in range(3, 4096):
    try: os.write(fd, b"forged"); found.append(fd)
    except OSError: pass
print(found, flush=True)
"""


@pytest.mark.parametrize("case", ["K13"])
def test_program_holds_nothing_but_its_three_descriptors(arena: Arena, case: str) -> None:
    assert arena.run(_EVERY_FD).stdout.endswith("\n[]\n")
    with open("/dev/null", "wb") as sink:
        control = unconfined(_EVERY_FD, pass_fds=[sink.fileno()])
        assert control.stdout.endswith(f"\n[{sink.fileno()}]\n")


@pytest.mark.parametrize("case", ["K15"])
def test_input_of_a_program_that_does_not_read_is_bounded(arena: Arena, case: str) -> None:
    with pytest.raises(UsageError, match="stdin"):
        arena.run("0", stdin=bytes((64 << 20) + 1))
    ended = arena.run("import time\ntime.sleep(0.2)", stdin=bytes(48 << 20))
    assert ended.verdict is Verdict.OK, ended.outcome


@pytest.mark.parametrize("case", ["K16"])
def test_slow_reader_stops_the_writer_and_not_the_host(arena: Arena, case: str) -> None:
    async def attack() -> int:
        limits = {"output_kb": 65_536, "memory_mb": 256}
        async with arena.sandbox(limits=limits) as sandbox:
            taken = 0
            flood = _FLOOD.format(mib=4096, fds=(1,))
            async for event in sandbox.stream(flood, timeout=20):
                taken += len(event.text or "")
                if taken > 4 << 20:
                    break
            return taken

    taken, growth = _growth_kib(lambda: arena.do(attack()))
    assert taken > 4 << 20
    assert growth <= 3 * _HOST_MAY_GROW_KIB


@pytest.mark.parametrize("case", ["K19"])
def test_output_after_the_deadline_is_not_in_the_result(arena: Arena, case: str) -> None:
    late = (
        "import threading, time\n"
        "def say():\n    time.sleep(1)\n    print('late', flush=True)\n    time.sleep(9)\n"
        "print('early', flush=True)\nsay()"
    )
    ended = arena.run(late, timeout=0.5)
    assert (ended.verdict, ended.stdout.split()[1:]) == (Verdict.WALL_TIME, ["early"])
    assert arena.run(late, timeout=1.5).stdout.split()[1:] == ["early", "late"]


@pytest.mark.parametrize(
    ("size", "verdict"),
    [
        pytest.param(0, Verdict.OK, id="K20-empty"),
        pytest.param(1, Verdict.OK, id="K20-one"),
        pytest.param(64 * 1024 - 17, Verdict.OK, id="K20-exact"),
        pytest.param(64 * 1024 - 16, Verdict.OUTPUT, id="K20-one-more"),
    ],
)
def test_only_output_above_the_cap_is_called_cut(arena: Arena, size: int, verdict: Verdict) -> None:
    ended = arena.run(f"import os\nos.write(1, b'x' * {size})", limits={"output_kb": 64})
    assert ended.verdict is verdict, ended.outcome
    assert ended.outcome.truncated == Truncated(stdout=1 if verdict is Verdict.OUTPUT else 0)


@pytest.mark.parametrize("case", ["K15-source"])
def test_source_above_its_cap_is_rejected_before_a_start(arena: Arena, case: str) -> None:
    with pytest.raises(CellwallError, match="code"):
        arena.run("#" * (17 << 20))

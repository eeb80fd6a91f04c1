"""The rows of doors: what E2B's unmodified SDK takes, and what a door adds to the native call.

Called by `runner`. The server is a process of its own, on loopback, with the doors below a prefix.
Invariant: a sandbox or a program that begins does so once the pool is full again, and a door and
the native call are taken in turns; an answer that is not the expected one voids the row.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from cellwall.apps.doors.judge0.fields import asked_of
from cellwall.apps.doors.judge0.languages import JudgeLanguage
from cellwall.apps.doors.piston.jobs import job_of
from cellwall.apps.doors.ragflow.programs import RunBody, program_of
from cellwall.apps.timings import PLAIN, TimingError
from cellwall.languages import registry
from cellwall.model.limits import Limits
from cellwall.server.auth.keys import in_e2b_form
from cellwall_bench.figures import Figure, p50, p95
from cellwall_bench.http_client import Client, Target, serving, wait_parked
from cellwall_bench.processes import descendants, pss_bytes

_WARM_UP = 5
_IDLE = 20
_MAIN = base64.b64encode(f"def main():\n    {PLAIN}\n".encode()).decode()
Options = Mapping[str, Any]
"""What the SDK's methods take in the place of its variables."""

_PROGRAM, _MORE = program_of(RunBody(code_b64=_MAIN), Limits())
_PLAIN = {"code": PLAIN}

_PISTON = {"language": "python", "version": "*", "files": [{"content": PLAIN}]}
_JUDGE0 = {"language_id": 71, "source_code": PLAIN}


def _native_of(code: str, options: Options) -> Mapping[str, Any]:
    """Return the body of the native call that a door makes with these options of `arun`."""
    return {"code": code, **{name: value for name, value in options.items() if value}}


def _native_of_piston() -> Mapping[str, Any]:
    job = job_of(_PISTON, Limits())
    return _native_of(job.code, job.options("python"))


def _native_of_judge0() -> Mapping[str, Any]:
    python = JudgeLanguage(71, "Python", registry.find("python"))
    asked = asked_of(_JUDGE0, {python.id: python}, Limits(), is_base64=False)
    return {**_native_of(PLAIN, asked.options), "background": True}


_CALLS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "dify": ("/dify/v1/sandbox/run", {"language": "python3", **_PLAIN}, _PLAIN),
    "fusion": ("/fusion/run_code", {"language": "python", **_PLAIN}, _PLAIN),
    "ragflow": (
        "/ragflow/run",
        {"language": "python", "code_b64": _MAIN},
        {"code": _PROGRAM, **_MORE},
    ),
    "piston": ("/piston/api/v2/execute", _PISTON, _native_of_piston()),
    "judge0": ("/judge0/submissions?wait=true", _JUDGE0, _native_of_judge0()),
}
"""A program through each door: path, body, and the native call that the door makes of it."""
_LISTS = ("/piston/api/v2/runtimes", "/judge0/languages")
"""What is answered once the versions of all tools are known."""


@contextlib.asynccontextmanager
async def _opened(
    warm: str, pool_max: int = 16, doors: Iterable[str] = ("e2b",)
) -> AsyncIterator[Target]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cellwall.toml")
        settings = "".join(f"[doors.{name}]\n" for name in doors)
        path.write_text(settings, encoding="utf-8")  # noqa: ASYNC240 - before anything runs
        environ = {"CELLWALL_WARM": warm, "CELLWALL_POOL_SIZE": str(pool_max)}
        async with serving(("--config", str(path)), environ) as target:
            yield target


def _options(target: Target) -> Options:
    address = f"http://127.0.0.1:{target.port}/e2b"
    return {"api_url": address, "sandbox_url": address, "api_key": in_e2b_form(target.key)}


def _bearer(target: Target) -> Mapping[str, str]:
    """Return the header in which RAGFlow's door takes the key."""
    return {"Authorization": f"Bearer {target.key}"}


async def create(key: str, samples: int) -> Figure:
    """Measure `Sandbox.create()` of E2B's SDK, in ms."""
    from e2b import Sandbox

    def once() -> float:
        began = time.perf_counter()
        made = Sandbox.create(**options)
        took = time.perf_counter() - began
        made.kill()
        return took

    async with _opened("python") as target, Client(target) as client:
        options = _options(target)
        took = []
        for _ in range(samples + _WARM_UP):
            await wait_parked(client)
            took.append(await asyncio.to_thread(once))
    return _figure(key, took)


async def command(key: str, samples: int) -> Figure:
    """Measure `commands.run('echo ok')` of E2B's SDK in a live sandbox, in ms."""
    from e2b import Sandbox

    def all_of_them(options: Options) -> list[float]:
        with Sandbox.create(**options) as sandbox:
            return [
                _timed(lambda: sandbox.commands.run("echo ok").stdout, "ok\n")
                for _ in range(samples + _WARM_UP)
            ]

    async with _opened("python") as target:
        return _figure(key, await asyncio.to_thread(all_of_them, _options(target)))


async def code(key: str, samples: int) -> Figure:
    """Measure `run_code('1+1')` of E2B's code interpreter in a live sandbox, in ms."""
    from e2b_code_interpreter import Sandbox  # type: ignore[import-untyped]

    def all_of_them(options: Options) -> list[float]:
        with Sandbox.create(**options) as sandbox:
            return [
                _timed(lambda: sandbox.run_code("1+1").text, "2") for _ in range(samples + _WARM_UP)
            ]

    async with _opened("data") as target:
        return _figure(key, await asyncio.to_thread(all_of_them, _options(target)))


async def idle(key: str) -> Figure:
    """Measure the memory that one more idle sandbox of E2B's SDK adds to the server's, in MiB.

    The pool keeps two whatever is in use, so that parked ones are no part of it.
    """
    from e2b import Sandbox

    async with _opened("python", pool_max=2) as target, Client(target) as client:
        options = _options(target)
        await asyncio.to_thread(lambda: Sandbox.create(**options).kill())
        await wait_parked(client)
        before = _memory(target)
        for _ in range(_IDLE):
            await asyncio.to_thread(Sandbox.create, **options)
            await wait_parked(client)
        each = (_memory(target) - before) / _IDLE / 2**20
    return Figure(key, each, f"PSS of the server's whole tree with {_IDLE} sandboxes")


async def added(key: str, samples: int) -> Figure:
    """Measure a program through each door and by the same native call, in turns, in ms.

    The figure is that of the door which adds most.
    """
    more: dict[str, float] = {}
    texts = []
    async with (
        _opened("python", doors=_CALLS) as target,
        Client(target, _bearer(target)) as client,
    ):
        for path in _LISTS:  # a server that has just started asks two dozen tools for versions
            await client.ask("GET", path)
        for name, (path, body, native) in _CALLS.items():
            doors, natives = [], []
            for _ in range(samples + _WARM_UP):
                doors.append(await _asked(client, path, body))
                natives.append(await _asked(client, "/execute", native))
            through, floor = (p50(each[_WARM_UP:]) * 1e3 for each in (doors, natives))
            more[name] = through - floor
            texts.append(f"{name} {more[name]:+.2f} to {floor:.2f}")
    return Figure(key, max(more.values()), f"ms: {', '.join(texts)}; n={samples}")


async def _asked(client: Client, path: str, body: Mapping[str, Any]) -> float:
    """Return the seconds of a program that prints 1, in a parked sandbox.

    One that runs in the background is waited for by a second request, as our SDK does it.
    """
    await wait_parked(client)
    began = time.perf_counter()
    answer = await client.ask("POST", path, body)
    if body.get("background"):
        answer = await client.ask("GET", f"/executions/{answer['execution_id']}?wait=50")
    took = time.perf_counter() - began
    if '"stdout": "1\\n"' not in json.dumps(answer):
        raise TimingError(f"{path}: {answer}")
    return took


def _timed(work: Callable[[], str | None], expected: str) -> float:
    began = time.perf_counter()
    found = work()
    took = time.perf_counter() - began
    if found != expected:
        raise TimingError(f"the answer was {found!r}, not {expected!r}")
    return took


def _figure(key: str, took: list[float]) -> Figure:
    """Return the row of these seconds, without those of the warm-up."""
    ms = [seconds * 1e3 for seconds in took[_WARM_UP:]]
    return Figure(key, p50(ms), f"{p95(ms):.1f} ms p95; {len(ms)} samples")


def _memory(target: Target) -> int:
    return pss_bytes([target.pid, *descendants(target.pid)])

"""One bench, from beginning to end, in one process.

Decides order and sample counts; measuring is in `latency`, `throughput` and `endurance`. Called
by `make bench`. Invariant: a row that fails is reported as not measured with its reason, and
the others still run; errors of one row never colour another (each opens its own engine).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cellwall.apps import timings
from cellwall.apps.engines import open_engine, state
from cellwall.apps.timings import PLAIN, WITH_PACKAGES, TimingError
from cellwall.model.errors import CellwallError
from cellwall_bench import (
    bare,
    cluster,
    containers,
    directory,
    doors,
    endurance,
    first,
    fleet,
    forks,
    http,
    images,
    kernel,
    languages,
    latency,
    mcp,
    outside,
    pauses,
    programs,
    throughput,
)
from cellwall_bench.figures import TARGETS, Figure
from cellwall_bench.machine import describe
from cellwall_bench.report import Result

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine
    from cellwall.model.template import BuiltTemplate

_PARK = 4
_ADDS = "print(int(input()) + int(open('one.txt').read()))"


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of everything."""

    samples: int
    stretch_s: float
    idle: int
    """Sandboxes per memory row."""
    live: int
    soak: int
    flood_gb: float
    http_stretch_s: float
    held: int
    """Idle sandboxes beside which the server's memory is measured; a fifth as many streams."""
    programs: int
    """Folders of classic programs, each in every language."""


FULL = Effort(
    samples=200,
    stretch_s=4.0,
    idle=20,
    live=500,
    soak=20_000,
    flood_gb=10.0,
    http_stretch_s=20.0,
    held=1000,
    programs=100,
)
QUICK = Effort(
    samples=30,
    stretch_s=1.5,
    idle=8,
    live=50,
    soak=400,
    flood_gb=1.0,
    http_stretch_s=3.0,
    held=50,
    programs=1,
)

Measure = Callable[["Engine"], Awaitable[Figure]]


@dataclass(frozen=True, slots=True)
class Bench:
    """What to measure and how."""

    effort: Effort
    isolation: str
    templates: dict[str, BuiltTemplate]
    only: frozenset[str] = frozenset()
    """Keys of rows to take; empty for all."""

    def _options(self, template: str) -> dict[str, Any]:
        return {"template": template, "isolation": self.isolation}

    def rows(self) -> Iterator[tuple[str, int, Measure]]:
        """Yield key, pool size and measurement, in the order of the table."""
        python, data = self._options("python"), self._options("data")
        n, effort = self.effort.samples, self.effort
        for key, code, options, pool in (
            ("fresh_python_parked", PLAIN, python, _PARK),
            ("fresh_data_parked", WITH_PACKAGES, data, _PARK),
            ("fresh_python_no_pool", PLAIN, python, 0),
            ("fresh_data_no_pool", WITH_PACKAGES, data, 0),
        ):
            yield key, pool, _fresh(key, code, options, n, pool > 0)
        yield (
            "sustained_python",
            16,
            _sustained("sustained_python", PLAIN, python, bare.FLOOR[0], effort.stretch_s),
        )
        yield (
            "sustained_data",
            16,
            _sustained(
                "sustained_data",
                WITH_PACKAGES,
                data,
                self.templates["data"].python,
                effort.stretch_s,
            ),
        )
        given = {**python, "stdin": "0\n", "files": {"one.txt": "1"}}
        yield (
            "sustained_given",
            16,
            _sustained("sustained_given", _ADDS, given, bare.FLOOR[0], effort.stretch_s, PLAIN),
        )
        yield "live_context", 0, _live_context(python, n)
        yield "pss_python", 0, lambda e: endurance.idle_memory(e, "pss_python", python, effort.idle)
        yield "pss_data", 0, lambda e: endurance.idle_memory(e, "pss_data", data, effort.idle)
        yield (
            "live_500",
            0,
            lambda e: endurance.beside_many(e, python, effort.live, max(30, n // 4)),
        )
        yield "soak", _PARK, lambda e: endurance.soak(e, python, effort.soak, state())
        yield from self._http_rows()
        for key, is_http in (("mcp_stdio", False), ("mcp_http", True)):
            yield key, 0, _tool_call(key, n, is_http=is_http)
        yield from self._door_rows(n)
        n = max(10, n // 10)
        yield "first_run_cli", 0, lambda _: first.command_line(n)
        yield "first_run_library", 0, lambda _: first.library(n)
        yield "first_mcp", 0, lambda _: first.mcp(n)
        yield "kernel_parked", _PARK, lambda e: kernel.fresh(e, "kernel_parked", n)
        yield "kernel_cold", 0, lambda e: kernel.fresh(e, "kernel_cold", n)
        yield "kernel_context", 0, _next_cell("kernel_context", kernel.CHOICE, n)
        yield "docker_parked", _PARK, lambda e: containers.fresh(e, "docker_parked", n)
        yield "docker_no_pool", 0, lambda e: containers.fresh(e, "docker_no_pool", n)
        yield "docker_cell", 0, _next_cell("docker_cell", containers.CHOICE, n)
        yield from self._language_rows(python, data, n)
        yield "network_allow", 0, lambda _: outside.allowed("network_allow", n)
        yield "network_https", 0, lambda _: outside.https("network_https", 10 * n)
        yield "network_stream", 0, lambda _: outside.stream("network_stream", 15)
        yield "packages_warm", 0, lambda _: outside.warm("packages_warm", n)
        yield "packages_cold", 0, lambda _: outside.cold("packages_cold", n)
        yield "packages_again", 0, lambda _: outside.again("packages_again", n)
        yield from self._image_rows(n)
        yield from self._state_rows(python, data, n)
        yield "flood", 0, lambda e: endurance.flood(e, python, effort.flood_gb)

    def _image_rows(self, n: int) -> Iterator[tuple[str, int, Measure]]:
        yield "image_parked", 0, lambda _: images.echo("image_parked", n, _PARK)
        yield "image_no_pool", 0, lambda _: images.echo("image_no_pool", n, 0)
        yield "image_docker", 0, lambda _: images.against_docker("image_docker", n)
        yield "image_live", 0, lambda _: images.live("image_live", self.effort.live * 2 // 5)
        yield "image_import", 0, lambda _: images.unpacked("image_import", 5)
        key = "image_import_gzip"
        yield key, 0, lambda _: images.unpacked(key, 5, compressed=True)

    def _state_rows(
        self, python: dict[str, Any], data: dict[str, Any], samples: int
    ) -> Iterator[tuple[str, int, Measure]]:
        yield "fork_python", _PARK, lambda e: forks.fork(e, "fork_python", python, samples)
        yield "fork_data", _PARK, lambda e: forks.fork(e, "fork_data", data, samples)
        yield "restore", _PARK, lambda e: forks.restore(e, "restore", python, samples)
        yield "fork_100", _PARK, lambda e: forks.crowd(e, "fork_100", data, 100)
        yield "pause", 0, lambda e: pauses.pause(e, "pause", python, samples)
        yield "pause_resume", 0, lambda e: pauses.resume(e, "pause_resume", python, samples)
        yield "pause_500", 0, lambda e: pauses.crowd(e, "pause_500", python, self.effort.live)
        yield "hibernated", _PARK, lambda e: pauses.on_disk(e, "hibernated", python, samples)
        yield "wake", _PARK, lambda e: pauses.wake(e, "wake", python, samples)

    def _door_rows(self, samples: int) -> Iterator[tuple[str, int, Measure]]:
        yield "e2b_create", 0, lambda _: doors.create("e2b_create", samples)
        yield "e2b_command", 0, lambda _: doors.command("e2b_command", samples)
        yield "e2b_code", 0, lambda _: doors.code("e2b_code", samples)
        yield "e2b_idle", 0, lambda _: doors.idle("e2b_idle")
        yield "doors", 0, lambda _: doors.added("doors", samples)
        yield "gateway_fresh", 0, lambda _: cluster.fresh("gateway_fresh", samples)
        yield "gateway_cell", 0, lambda _: cluster.cell("gateway_cell", samples)
        yield "gateway_cpu", 0, lambda _: cluster.cost("gateway_cpu", samples)
        yield "gateway_crowd", 0, lambda _: cluster.crowd("gateway_crowd", 4)
        yield "directory_commits", 0, lambda _: directory.commits("directory_commits", 3)
        yield "fleet_map", 0, lambda _: fleet.many("fleet_map", 5)
        yield "fleet_single", 0, lambda _: fleet.single("fleet_single", 5)

    def _language_rows(
        self, python: dict[str, Any], data: dict[str, Any], samples: int
    ) -> Iterator[tuple[str, int, Measure]]:
        key = "fresh_javascript"
        yield key, _PARK, lambda e: languages.fresh_javascript(e, key, python, samples)
        for name in languages.CONTEXTS:
            yield f"pss_{name}", 0, _context(name, data if name == "sql" else python)
        for name in programs.COMPILED:
            yield f"compiled_{name}", _PARK, _compiled(name, python, samples)
        yield "programs", 0, lambda _: programs.batch("programs", self.effort.programs)
        yield "humaneval", 0, lambda _: programs.humaneval("humaneval")

    def _http_rows(self) -> Iterator[tuple[str, int, Measure]]:
        """Yield the rows whose server is a process of its own; the engine here stays unused."""
        n, effort = self.effort.samples, self.effort
        yield "http_python", 0, lambda _: http.fresh("http_python", PLAIN, "python", n)
        yield "http_data", 0, lambda _: http.fresh("http_data", WITH_PACKAGES, "data", n)
        yield "http_context", 0, lambda _: http.live_context("http_context", n)
        yield (
            "http_sustained",
            0,
            lambda _: http.sustained("http_sustained", effort.http_stretch_s),
        )
        for key, is_cell in (("http_durable", False), ("http_durable_cell", True)):
            yield key, 0, _durable(key, n, is_cell=is_cell)
        yield "http_held", 0, lambda _: http.held("http_held", effort.held, effort.held // 5)

    async def run(self, progress: Callable[[str], None]) -> Result:
        """Take every row and return the result."""
        begun, clock = datetime.now(UTC), time.monotonic()
        machine = describe()
        what = {target.key: target.what for target in TARGETS}
        figures = []
        for key, pool, measure in self.rows():
            if self.only and key not in self.only:
                continue
            progress(what[key])
            figures.append(await self._row(key, pool, measure))
        return Result(
            machine=machine,
            begun=begun.strftime("%Y-%m-%d %H:%M"),
            took_s=time.monotonic() - clock,
            is_quick=self.effort is not FULL,
            isolation=self.isolation,
            figures=figures,
        )

    async def _row(self, key: str, pool: int, measure: Measure) -> Figure:
        try:
            async with open_engine(pool=pool) as engine:
                return await measure(engine)
        except (TimingError, CellwallError, OSError) as error:  # the other rows are worth keeping
            return Figure(key, None, _shortened(error))
        except ExceptionGroup as group:
            return Figure(key, None, _shortened(group.exceptions[0]))


def _shortened(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"failed: {text if len(text) < 320 else f'{text[:80]} … {text[-220:]}'}"


def _fresh(key: str, code: str, options: dict[str, Any], n: int, parked: bool) -> Measure:
    async def measure(engine: Engine) -> Figure:
        taken = await timings.fresh(engine, code, options, n, parked=parked)
        return latency.as_figure(key, taken)

    return measure


def _live_context(options: dict[str, Any], n: int) -> Measure:
    async def measure(engine: Engine) -> Figure:
        return latency.as_figure("live_context", await timings.live_context(engine, options, n))

    return measure


def _context(language: str, options: dict[str, Any]) -> Measure:
    return lambda e: languages.context_memory(e, f"pss_{language}", language, options)


def _compiled(language: str, options: dict[str, Any], n: int) -> Measure:
    return lambda e: programs.compiled(e, f"compiled_{language}", language, options, n)


def _durable(key: str, n: int, *, is_cell: bool) -> Measure:
    return lambda _: http.durable(key, n, is_cell=is_cell)


def _tool_call(key: str, n: int, *, is_http: bool) -> Measure:
    return lambda _: mcp.tool_call(key, n, is_http=is_http)


def _next_cell(key: str, choice: dict[str, Any], n: int) -> Measure:
    return lambda engine: latency.next_cell(engine, key, choice, n)


def _sustained(
    key: str,
    code: str,
    options: dict[str, Any],
    python: str,
    stretch_s: float,
    bare_code: str = "",
) -> Measure:
    return lambda engine: throughput.sustained(
        engine, key, code, options, latency.bare_argv(python, bare_code or code), stretch_s
    )

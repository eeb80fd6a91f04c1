"""The table of the bench: what is measured, the bar it has to meet, the aim beyond it.

Data and pure judgement; measuring is elsewhere. Invariant: a figure that could not be taken is
`None` with a reason, never a number, and counts as not met.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """One row: a figure in `unit`, and the values it should reach."""

    key: str
    what: str
    unit: str
    bar: float
    aim: float
    higher_is_better: bool = False

    def meets(self, figure: float | None, value: float) -> bool:
        """Report whether `figure` is at least as good as `value`."""
        if figure is None:
            return False
        return figure >= value if self.higher_is_better else figure <= value


@dataclass(frozen=True, slots=True)
class Figure:
    """What came out for one row."""

    key: str
    value: float | None
    detail: str = ""
    """The raw numbers behind the ratio, or why there is none."""
    raw: Mapping[str, Any] = field(default_factory=dict)


TARGETS: tuple[Target, ...] = (
    Target("fresh_python_parked", "fresh sandbox, `print(1)`, template python, parked, p50", "F",
           0.5, 0.25),
    Target("fresh_data_parked", "fresh sandbox, `import numpy, pandas`, template data, parked, p50",
           "F", 0.8, 0.3),
    Target("fresh_python_no_pool", "fresh sandbox, template python, no pool, p50", "F", 0.9, 0.5),
    Target("fresh_data_no_pool", "fresh sandbox, template data, no pool, p50", "F", 1.5, 0.9),
    Target("sustained_python", "sustained fresh sandboxes, 8 callers, against bare `python3 -c`",
           "x", 1.5, 2.5, higher_is_better=True),
    Target("sustained_data", "the same, numpy and pandas imported, against bare Python doing so",
           "x", 25, 50, higher_is_better=True),
    Target("sustained_given", "fresh sandboxes with stdin and a file, against bare `python3 -c` "
           "without", "x", 1.5, 2.5, higher_is_better=True),
    Target("live_context", "next execution in a live context, p50", "F", 0.15, 0.08),
    Target("pss_python", "extra memory (PSS) per idle live sandbox, template python", "MiB", 5, 3),
    Target("pss_data", "extra memory (PSS) per idle live sandbox, template data", "MiB", 10, 6),
    Target("live_500", "p50 of a fresh run beside 500 live idle sandboxes, against beside 10", "x",
           1.5, 1.1),
    Target("soak", "things left behind after a row of fresh runs", "things", 0, 0),
    Target("http_python", "HTTP, keep-alive, fresh sandbox, `print(1)`, p50", "F", 1.0, 0.5),
    Target("http_data", "HTTP, fresh sandbox, `import numpy, pandas`, template data, p50", "F",
           1.3, 0.5),
    Target("http_context", "HTTP, next cell of a session, p50", "F", 0.4, 0.2),
    Target("http_sustained", "HTTP, fresh sandboxes, 32 clients, against 32 bare `python3 -c`", "x",
           1.2, 2.0, higher_is_better=True),
    Target("http_durable", "HTTP, what writing an execution to disk costs it, p50", "ms", 1.0, 0.5),
    Target("http_durable_cell", "HTTP, what writing a cell to disk costs it, p50", "ms", 1.0, 0.8),
    Target("http_held", "the server's memory beside idle sandboxes and open streams", "MiB",
           400, 200),
    Target("gateway_fresh", "a fresh program through a gateway against at its node, p50", "x",
           1.15, 1.1),
    Target("gateway_cell", "the same: the next cell of a session", "x", 1.15, 1.1),
    Target("gateway_cpu", "a gateway's processor time for a program or a cell", "F", 0.06, 0.04),
    Target("gateway_crowd", "the same: 32 clients, programs a second", "x", 0.95, 1.0,
           higher_is_better=True),
    Target("directory_commits", "200 writers to the gateways' directory, against a commit each",
           "x", 5.0, 8.0, higher_is_better=True),
    Target("fleet_map", "processor time of a program by `fleet.map`, against an embedded engine",
           "x", 1.1, 1.05),
    Target("fleet_single", "the same: by `fleet.arun`, one after the other", "x", 1.35, 1.2),
    Target("mcp_stdio", "MCP on stdio, what a tool call costs beyond the library's own, p50", "ms",
           2.0, 1.0),
    Target("mcp_http", "MCP over HTTP, what a tool call costs beyond the library's own, p50", "ms",
           3.0, 2.0),
    Target("e2b_create", "E2B's SDK, `Sandbox.create()`, p50", "ms", 10, 8),
    Target("e2b_command", "E2B's SDK, `commands.run('echo ok')`, p50", "ms", 6, 4),
    Target("e2b_code", "E2B's code interpreter, `run_code('1+1')`, p50", "ms", 5, 4),
    Target("e2b_idle", "extra memory (PSS) per idle sandbox of E2B's SDK", "MiB", 5, 3),
    Target("doors", "what a door adds to the native call of the same, the most of five, p50", "ms",
           1.0, 0.5),
    Target("first_run_cli", "`cellwall run -c 'print(1)'`, nothing running before, p50", "F",
           25, 15),
    Target("first_run_library", "`import cellwall` and the first `run` of a process, p50", "F",
           20, 12),
    Target("first_mcp", "`cellwall mcp`, from its start to the first result of a tool, p50", "s",
           1.0, 0.5),
    Target("kernel_parked", "gVisor, fresh sandbox, `print(1)`, parked, against `runsc run`, p50",
           "x", 0.1, 0.05),
    Target("kernel_cold", "gVisor, the same without a pool, p50", "x", 1.3, 1.0),
    Target("kernel_context", "gVisor, next execution in a live context, p50", "ms", 15, 5),
    Target("docker_parked", "Docker, fresh sandbox, `print(1)`, parked, against `docker run`, p50",
           "x", 0.1, 0.05),
    Target("docker_no_pool", "Docker, the same without a pool, p50", "x", 1.3, 1.0),
    Target("docker_cell", "Docker, next execution in a live context, p50", "ms", 5, 2.5),
    Target("fresh_javascript", "fresh sandbox, `console.log(1)`, parked, against `node -e`, p50",
           "x", 0.25, 0.2),
    Target("pss_javascript", "memory (PSS) that a context adds: JavaScript", "MiB", 60, 40),
    Target("pss_typescript", "the same: TypeScript", "MiB", 130, 90),
    Target("pss_bash", "the same: Bash", "MiB", 10, 5),
    Target("pss_ruby", "the same: Ruby", "MiB", 30, 15),
    Target("pss_r", "the same: R", "MiB", 100, 60),
    Target("pss_java", "the same: Java (JShell)", "MiB", 220, 140),
    Target("pss_sql", "the same: SQL, template data", "MiB", 30, 15),
    Target("compiled_java", "a run from the compile cache against the first, Java, p50", "x",
           0.15, 0.1),
    Target("compiled_cpp", "the same: C++", "x", 0.05, 0.03),
    Target("compiled_rust", "the same: Rust", "x", 0.05, 0.03),
    Target("compiled_go", "the same: Go", "x", 0.05, 0.03),
    Target("programs", "classic programs in every language, batch over HTTP, none compiled before",
           "/s", 1.5, 3, higher_is_better=True),
    Target("humaneval", "the 164 programs of HumanEval, Python, batch over HTTP",
           "/s", 15, 30, higher_is_better=True),
    Target("network_allow", "what a network policy adds to a parked fresh sandbox, p50", "F",
           0.1, 0.05),
    Target("network_https", "what an allowed HTTPS request costs beyond a direct one, p50", "ms",
           1.0, 0.5),
    Target("network_stream", "one stream out of a sandbox against a direct one", "x", 0.7, 0.9,
           higher_is_better=True),
    Target("packages_warm", "a wheel of 10 MB in a live sandbox, the broker has it, p50", "ms",
           300, 150),
    Target("packages_cold", "the same, the broker has it not, against plain `uv pip install`", "x",
           1.2, 1.0),
    Target("packages_again", "a sandbox made with that wheel, which two before it had, p50", "ms",
           60, 30),
    Target("image_parked", "`echo ok` in a fresh sandbox on an image, as root, parked, p50", "F",
           1.0, 0.5),
    Target("image_no_pool", "the same without a pool, p50", "F", 3.0, 1.0),
    Target("image_docker", "the same against `docker run --rm` of the image, p50", "x", 0.12, 0.05),
    Target("image_live", "memory (PSS) that a live sandbox on an image adds", "MiB", 2, 1),
    Target("image_import", "import of an image against `tar xf` of its layer, p50", "x", 1.5, 1.0),
    Target("image_import_gzip", "the same of a layer by gzip, as in registries", "x", 1.5, 1.0),
    Target("fork_python", "fork of a session to its first answer, p50", "ms", 8, 6),
    Target("fork_data", "the same with numpy and pandas imported", "ms", 20, 15),
    Target("restore", "sandbox of a snapshot, p50", "ms", 5, 4),
    Target("fork_100", "100 forks of a session with 200 MB", "s", 1, 0.8),
    Target("pause", "first pause of a session, p50", "ms", 15, 10),
    Target("pause_resume", "a cell that resumes its sandbox, p50", "ms", 10, 3),
    Target("pause_500", "CPU time of 500 paused sandboxes", "%", 0, 0),
    Target("hibernated", "disk that a hibernated session takes", "MiB", 5, 3),
    Target("wake", "wake of a hibernated session and its next cell, p50", "ms", 15, 10),
    Target("flood", "growth of our memory while a program writes 10 GB", "MiB", 8, 8),
)  # fmt: skip

BY_KEY: Mapping[str, Target] = {target.key: target for target in TARGETS}


def p50(samples: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(samples)


def p95(samples: Sequence[float]) -> float:
    """Return the sample that 95 % do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


def ratio_of_medians(ours: Sequence[float], floor: Sequence[float]) -> float:
    """Return p50 of ours in units of p50 of the floor taken beside it."""
    return p50(ours) / p50(floor)


def verdict_on(figure: Figure) -> str:
    """Return `aim`, `bar`, `missed` or `not measured`."""
    target = BY_KEY[figure.key]
    if figure.value is None:
        return "not measured"
    if target.meets(figure.value, target.aim):
        return "aim"
    return "bar" if target.meets(figure.value, target.bar) else "missed"

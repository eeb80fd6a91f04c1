"""Promises of the warm fork-server: one thread, nothing left behind, every fork its own numbers."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.guest.guest_python import Server, pack_guest

INSTALLED = [
    n for n in ("numpy", "pandas", "matplotlib.pyplot") if importlib.util.find_spec(n.split(".")[0])
]
HAS_NUMPY = "numpy" in INSTALLED

MODULES = {
    "seeded": "import random\nrng = random.Random(7)\nsystem = random.SystemRandom()\n"
    "class Mine(random.Random):\n    def seed(self, *a): pass\nmine = Mine()\n",
    "seeded_numpy": "import numpy\nnumpy.random.seed(1)\ngen = numpy.random.default_rng(1)\n"
    "old = numpy.random.RandomState(1); old.randn()\n"
    "philox = numpy.random.RandomState(numpy.random.Philox(1))\n",
    "threaded": "import threading as t\nt.Thread(target=t.Event().wait, daemon=True).start()",
    "broken": "import nothing_of_this_name",
    "timed": "import threading\nthreading.Timer(600, print).start()\n",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = pack_guest(tmp_path_factory.mktemp("guest"))
    for name, source in MODULES.items():
        (root / f"{name}.py").write_text(source)
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Server]:
    names = ["seeded", "timed", "json", *INSTALLED, *(["seeded_numpy"] if HAS_NUMPY else [])]
    server = Server(root, names)
    yield server
    server.close()


def outputs(server: Server, home: Path, source: str) -> set[str]:
    found = set()
    for _ in range(3):
        context = server.fork(home)
        result = context.execute(source, mode="program")
        assert result.stderr == ""
        found.add(result.stdout)
        context.close()
    return found


def test_warm_ends_with_one_thread_and_versions(server: Server) -> None:
    assert server.warmth["tasks"] == 1
    assert {"seeded", "json", *INSTALLED} <= set(server.warmth["modules"])
    assert server.warmth["modules"]["seeded"] is None


@pytest.mark.parametrize("draw", ["rng.random()", "mine.random()", "rng.gauss(0, 1)"])
def test_generators_made_before_the_fork_differ_after_it(
    server: Server, tmp_path: Path, draw: str
) -> None:
    assert len(outputs(server, tmp_path, f"import seeded; print(seeded.{draw})")) == 3


@pytest.mark.skipif(not HAS_NUMPY, reason="numpy is not installed")
@pytest.mark.parametrize(
    "draw",
    ["numpy.random.rand()", "gen.random()", "old.rand()", "old.randn()", "philox.rand()"],
)
def test_numpy_generators_differ_after_the_fork(server: Server, tmp_path: Path, draw: str) -> None:
    assert len(outputs(server, tmp_path, f"import seeded_numpy as s; print(s.{draw})")) == 3


def test_seeding_in_the_program_still_repeats(server: Server, tmp_path: Path) -> None:
    source = "import random; random.seed(5); print(random.random())"
    assert len(outputs(server, tmp_path, source)) == 1


def test_warm_leaves_no_trace_in_a_program(server: Server, tmp_path: Path) -> None:
    source = (
        "import builtins, linecache, sys, os\n"
        "print([n for n in ('__IPYTHON__', 'get_ipython') if hasattr(builtins, n)],\n"
        "      [n for n in linecache.cache if n.startswith('<cell')],\n"
        "      [n for n in os.environ if n.endswith('NUM_THREADS')], len(sys.argv))\n"
    )
    assert outputs(server, tmp_path, source) == {"[] [] [] 1\n"}


def test_first_cell_starts_at_one(server: Server, tmp_path: Path) -> None:
    context = server.fork(tmp_path)
    result = context.execute("[len(In), dict(Out)]", mode="cell")
    context.close()
    assert result.text == "[2, {}]"


def test_print_imports_nothing(server: Server, tmp_path: Path) -> None:
    source = "import sys; a = set(sys.modules); import atexit\n"
    source += "atexit.register(lambda: print(set(sys.modules) - a))\n"
    assert outputs(server, tmp_path, source) == {"set()\n"}


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            "threaded",
            "preload: 2 threads after importing threaded (threaded starts one), expected 1",
        ),
        ("broken", "preload broken: import failed (ModuleNotFoundError: No module named"),
    ],
)
def test_bad_preload_is_refused_with_its_name(
    root: Path, capfd: pytest.CaptureFixture[str], module: str, message: str
) -> None:
    with pytest.raises(RuntimeError, match="fork-server died: exit 1"):
        Server(root, [module])
    assert f"PreloadError: {message}" in capfd.readouterr().err

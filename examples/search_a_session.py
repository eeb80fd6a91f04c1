"""A search over a live data session, with times and memory of each step.

A frame is loaded once, the session is forked sixteen ways, each fork tries something else and is
scored; the best is kept as a snapshot, the server is restarted, and the work goes on from there.

Run it with `python examples/search_a_session.py [ROWS]` where no other server of yours runs: it
starts `cellwall serve` twice on one state directory, the usual one or `CELLWALL_STATE_DIR`.
"""

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import cellwall
from cellwall.client.blocking import Client, RemoteSandbox

KEY = secrets.token_urlsafe(33)
ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 3_000_000
FORKS = 16
LOAD = f"""
import numpy as np, pandas as pd
draws = np.random.default_rng(7)
frame = pd.DataFrame({{"price": 100 + draws.normal(0, 0.1, {ROWS}).cumsum()}})
frame["change"] = frame.price.diff().fillna(0)
"""
TRY = """
window = {window}
mean = frame.price.rolling(window).mean()
frame["held"] = (frame.price > mean).shift(1, fill_value=False)
score = float(frame.change[frame.held].sum())
"""
T = TypeVar("T")


@contextlib.contextmanager
def served() -> Iterator[Client]:
    """Run a server for the length of a block; snapshots outlive it, sandboxes do not."""
    argv = [sys.executable, "-m", "cellwall.apps.cli.main"]
    server = subprocess.Popen(
        [*argv, "serve", "--port", "0", "--log-level", "error"],
        stdout=subprocess.PIPE, env={**os.environ, "CELLWALL_API_KEY": KEY}, text=True,
    )  # fmt: skip
    try:
        found = (line for line in server.stdout or () if line.startswith("listening on "))
        address = next(found).removeprefix("listening on ").strip()
        with cellwall.connect(address, api_key=KEY) as client:
            yield client
    finally:
        server.terminate()
        server.wait()


def step(name: str, work: Callable[[], T], memory: Callable[[T], int]) -> T:
    """Do a step; print how long it took, and the memory of what came of it."""
    begun = time.monotonic()
    made = work()
    ms = (time.monotonic() - begun) * 1000
    print(f"{name:<36}{ms:>9.1f} ms{memory(made) / 2**20:>9.1f} MiB", flush=True)
    return made


def in_memory(*sandboxes: RemoteSandbox) -> int:
    """Return the memory of sandboxes, in bytes."""
    return sum(int(each.metrics()["memory_bytes"]) for each in sandboxes)


def said(sandbox: RemoteSandbox, code: str) -> str:
    """Return what code prints."""
    done = sandbox.run(code)
    if done.verdict != "ok":
        raise RuntimeError(done.stderr)
    return done.stdout.strip()


def tried(sandbox: RemoteSandbox, number: int) -> float:
    """Try one window in a fork; return its score."""
    return float(said(sandbox, TRY.format(window=10 * (number + 1)) + "print(score)"))


def search(client: Client) -> tuple[str, str]:
    """Search; return the id of the best fork's snapshot, and what the fork has found."""
    limits = {"memory_mb": 768, "idle_s": 600, "life_s": 1200, "wall_s": 120}
    session = client.Sandbox(template="data", limits=limits)
    step(f"load {ROWS} rows", lambda: session.run(LOAD), lambda _: in_memory(session))
    forks = step(
        f"fork {FORKS} ways",
        lambda: [each.sandbox for each in session.fork(FORKS)],
        lambda made: in_memory(*made),
    )
    scores = step(
        "try and score each",
        lambda: [tried(each, number) for number, each in enumerate(forks)],
        lambda _: in_memory(*forks),
    )
    best = forks[scores.index(max(scores))]
    print(f"the best of {FORKS} is {max(scores):.2f}, window {said(best, 'print(window)')}")
    kept = step(
        "keep the best as a snapshot",
        lambda: best.snapshot("best", expires_s=3600),
        lambda made: made.memory_bytes + made.files_bytes,
    )
    found = said(best, "print(window, score)")
    for each in (session, *forks):
        each.close()
    return kept.id, found


def main() -> None:
    """Search, restart, and go on."""
    with served() as client:
        snapshot, found = search(client)
        stopping = time.monotonic()
    with served() as client:
        print(f"{'restart the server':<36}{(time.monotonic() - stopping) * 1000:>9.1f} ms")
        best = step("go on from the snapshot", lambda: client.restore(snapshot), in_memory)
        if said(best, "print(window, score)") != found:
            raise RuntimeError("the session is not what it was")
        again = step("try a window beside it", lambda: tried(best, 3), lambda _: in_memory(best))
        print(f"it had {found}; the next try gives {again:.2f}")
        best.close()
        client.snapshots.delete(snapshot)


if __name__ == "__main__":
    main()

"""A search over a live session: load once, fork, score each copy, keep the best, go on from it."""

from cellwall import Sandbox, Snapshots

LOAD = "import random\nprices = [random.gauss(100, 15) for _ in range(200_000)]"
TRY = "floor = {floor}\nkept = [p for p in prices if p >= floor]\nscore = sum(kept) / len(kept)"

with Sandbox() as session:
    session.run(LOAD)
    floors = (80, 100, 120, 140)
    forks = session.fork(len(floors))  # each has the prices, and files of its own
    scores = []
    for floor, fork in zip(floors, forks, strict=True):
        fork.sandbox.run(TRY.format(floor=floor))
        scores.append(float(fork.sandbox.run("print(score)").stdout))
    best = forks[scores.index(max(scores))].sandbox
    best.snapshot("best", expires_s=3600)
    for fork in forks:
        fork.sandbox.close()

with Sandbox.restore("best") as later:  # any time later, any number of times
    assert later.run("print(floor)").stdout == "140\n"

Snapshots().delete("best")
